"""A TCP proxy that hurts on purpose: latency, bandwidth, resets, stalls, cuts, tiny segments.

Needs no privilege. One thread and one selector; buffers are bounded, ``close`` leaves nothing behind.
By hand: ``python -m tests.support.faultproxy --to 127.0.0.1:9000 --latency 0.03``; a
number on standard input is another latency.
"""

import argparse
import contextlib
import heapq
import random
import selectors
import socket
import struct
import sys
import threading
import time
from typing import Self

BUFFER = 4 << 20  # bytes under way in one direction before the proxy stops reading
READ = 256 << 10
TICK = 0.02  # seconds of a line's bandwidth that are read at once, so that bytes come steadily at its end


class _Flow:
    """One direction of one connection: what was read and when it may be written."""

    def __init__(self, source: socket.socket, target: socket.socket) -> None:
        self.source, self.target = source, target
        self.chunks: list[tuple[float, int, bytes]] = []  # heap by (time, order)
        self.order = self.size = 0
        self.free_at = 0.0  # when the (bandwidth-limited) line is free again
        self.ended = self.finished = False  # the source said so; the target was told


class FaultProxy:
    """Forwards ``address`` (host, port) to ``target``. Settings may change at any time.

    latency (s) each way, bandwidth (bytes/s) each way, slice_bytes: largest segment written. corrupt: the chance that
    what is read at once has one bit flipped (``seed`` says which).
    reset(): every connection gets an RST. stall()/resume(): accepted, but nothing moves.
    cut()/heal(): connections vanish without a word and new ones are not answered.
    heard: all that passed, where a bytearray is put there.
    """

    def __init__(
        self,
        target: tuple[str, int],
        *,
        latency: float = 0.0,
        bandwidth: float = 0.0,
        slice_bytes: int = 0,
        corrupt: float = 0.0,
        seed: int = 0,
        port: int = 0,
    ) -> None:
        self.target = target
        self.latency, self.bandwidth, self.slice_bytes = latency, bandwidth, slice_bytes
        self.corrupt, self._random = corrupt, random.Random(seed)
        self.corrupted = 0
        self.heard: bytearray | None = None
        self.accepted = self.resets = self.forwarded = 0
        self._stalled = self._cut = self._closing = False
        self._selector = selectors.DefaultSelector()
        self._listener = socket.create_server(("127.0.0.1", port))
        self._listener.setblocking(False)
        self.address: tuple[str, int] = self._listener.getsockname()
        self._flows: dict[socket.socket, _Flow] = {}  # by source
        self._orphans: list[socket.socket] = []  # cut: kept open so that nobody is told
        self._calls: list = []
        self._waker, self._bell = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="faultproxy", daemon=True)
        self._thread.start()

    @property
    def uri(self) -> str:
        return f"tcp://{self.address[0]}:{self.address[1]}"

    # What a test may do, from any thread

    def reset(self) -> None:
        self._do(self._reset_all)

    def stall(self) -> None:
        self._do(lambda: setattr(self, "_stalled", True))

    def resume(self) -> None:
        self._do(lambda: setattr(self, "_stalled", False))

    def cut(self) -> None:
        self._do(self._cut_all)

    def heal(self) -> None:
        self._do(self._heal)

    def close(self) -> None:
        if self._thread.is_alive():
            self._closing = True
            with contextlib.suppress(OSError):  # it may have seen _closing already
                self._bell.send(b"!")
            self._thread.join(5)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc) -> None:
        self.close()

    def _do(self, call) -> None:
        """Run call in the proxy's thread and wait for it."""
        done = threading.Event()
        self._calls.append((call, done))
        self._bell.send(b"!")
        if not done.wait(5):
            raise RuntimeError("the fault proxy does not answer")

    # The proxy's thread

    def _run(self) -> None:
        try:
            while not self._closing:
                now = time.monotonic()
                self._register(now)
                for key, _ in self._selector.select(self._sleep(now)):
                    if key.fileobj is self._waker:
                        self._waker.recv(64)
                while self._calls:
                    call, done = self._calls.pop(0)
                    call()
                    done.set()
                if not self._stalled and not self._cut:
                    self._accept()
                    for flow in list(self._flows.values()):
                        self._move(flow)
        finally:
            for sock in [*self._flows, *self._orphans, self._listener, self._waker, self._bell]:
                sock.close()
            self._selector.close()

    def _register(self, now: float) -> None:
        """Ask the selector exactly for what can be moved now."""
        wanted: dict[socket.socket, int] = {self._waker: selectors.EVENT_READ}
        if not self._stalled and not self._cut:
            wanted[self._listener] = selectors.EVENT_READ
            for flow in self._flows.values():
                if flow.size < BUFFER and not flow.ended:
                    wanted[flow.source] = wanted.get(flow.source, 0) | selectors.EVENT_READ
                if flow.chunks and flow.chunks[0][0] <= now:
                    wanted[flow.target] = wanted.get(flow.target, 0) | selectors.EVENT_WRITE
        present = {key.fileobj: key.events for key in self._selector.get_map().values()}
        for sock in present.keys() - wanted.keys():
            self._selector.unregister(sock)
        for sock, events in wanted.items():
            if sock not in present:
                self._selector.register(sock, events)
            elif present[sock] != events:
                self._selector.modify(sock, events)

    def _sleep(self, now: float) -> float | None:
        if self._stalled or self._cut:
            return None
        times = [flow.chunks[0][0] for flow in self._flows.values() if flow.chunks]
        future = [t - now for t in times if t > now]
        return min(future) if future else None

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            client, _ = self._listener.accept()
            try:
                server = socket.create_connection(self.target, timeout=2)
            except OSError:
                client.close()
                return
            self.accepted += 1
            for sock in (client, server):
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._flows[client] = _Flow(client, server)
            self._flows[server] = _Flow(server, client)

    def _move(self, flow: _Flow) -> None:
        if self._flows.get(flow.source) is not flow:
            return
        try:
            self._read(flow)
            self._write(flow)
            if flow.ended and not flow.chunks and not flow.finished:
                flow.finished = True
                flow.target.shutdown(socket.SHUT_WR)
                if self._flows[flow.target].finished:
                    self._drop(flow)
        except BlockingIOError:
            pass
        except OSError:
            self._drop(flow)

    def _read(self, flow: _Flow) -> None:
        if flow.ended or flow.size >= BUFFER:
            return
        try:
            data = flow.source.recv(max(1, min(READ, int(self.bandwidth * TICK))) if self.bandwidth else READ)
        except BlockingIOError:
            return
        if not data:
            flow.ended = True
            return
        if self.heard is not None:
            self.heard += data
        if self.corrupt and self._random.random() < self.corrupt:
            data = bytearray(data)
            data[self._random.randrange(len(data))] ^= 1 << self._random.randrange(8)
            self.corrupted += 1
        now = time.monotonic()
        if self.bandwidth:
            flow.free_at = max(flow.free_at, now) + len(data) / self.bandwidth
            now = flow.free_at
        flow.order += 1
        flow.size += len(data)
        heapq.heappush(flow.chunks, (now + self.latency, flow.order, data))

    def _write(self, flow: _Flow) -> None:
        now = time.monotonic()
        while flow.chunks and flow.chunks[0][0] <= now:
            at, order, data = flow.chunks[0]
            sent = flow.target.send(data[: self.slice_bytes] if self.slice_bytes else data)
            flow.size -= sent
            self.forwarded += sent
            if sent == len(data):
                heapq.heappop(flow.chunks)
            else:
                flow.chunks[0] = (at, order, data[sent:])

    def _drop(self, flow: _Flow, close=socket.socket.close) -> None:
        for sock in (flow.source, flow.target):
            self._flows.pop(sock, None)
            with contextlib.suppress(KeyError):
                self._selector.unregister(sock)
            close(sock)

    def _reset_all(self) -> None:
        self.resets += 1
        for flow in list(self._flows.values()):
            if flow.source in self._flows:
                self._drop(flow, _close_with_rst)

    def _cut_all(self) -> None:
        self._cut = True
        for flow in list(self._flows.values()):
            if flow.source in self._flows:
                self._drop(flow, self._orphans.append)

    def _heal(self) -> None:
        self._cut = False
        for sock in self._orphans:
            _close_with_rst(sock)
        self._orphans.clear()


def _close_with_rst(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--to", required=True, metavar="HOST:PORT")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--latency", type=float, default=0.0, help="seconds, each way")
    parser.add_argument("--bandwidth", type=float, default=0.0, help="bytes a second, each way")
    parser.add_argument("--slice", type=int, default=0, help="largest segment in bytes")
    parser.add_argument("--reset-every", type=float, default=0.0, help="seconds")
    parser.add_argument("--corrupt", type=float, default=0.0, help="chance that what is read at once has a bit flipped")
    args = parser.parse_args()
    host, _, port = args.to.rpartition(":")
    with FaultProxy(
        (host, int(port)),
        latency=args.latency,
        bandwidth=args.bandwidth,
        slice_bytes=args.slice,
        corrupt=args.corrupt,
        port=args.port,
    ) as proxy:
        print(f"{proxy.address[0]}:{proxy.address[1]} -> {args.to}", flush=True)
        threading.Thread(target=_obey, args=(proxy,), daemon=True).start()
        with contextlib.suppress(KeyboardInterrupt):
            while True:
                time.sleep(args.reset_every or 3600)
                if args.reset_every:
                    proxy.reset()


def _obey(proxy: FaultProxy) -> None:
    for line in sys.stdin:
        proxy.latency = float(line)


if __name__ == "__main__":
    main()
