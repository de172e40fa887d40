"""Packets that get lost: a link of TUN devices between two network namespaces, with everything a bad network does.

Where tests/support/faultproxy breaks connections, this breaks what they are made of, and both ends run the system's own
TCP. Needs root, /dev/net/tun and nsenter (``missing`` says what is not there), no kernel module and no other tool. A
program enters a side by putting ``link.client`` or ``link.server`` in front of its command.
By hand: ``python -m tests.support.faultlink --loss 0.01 --server 'rgpu-server --insecure --bind 10.99.0.2' -- CMD``.
"""

import argparse
import ctypes
import fcntl
import heapq
import os
import random
import select
import shutil
import socket
import struct
import subprocess
import threading
import time
from typing import Self

CLIENT, SERVER = "10.99.0.1", "10.99.0.2"  # each alone in a namespace of its own
MTU = 9000
QUEUE = 16 << 20  # bytes under way in one direction; what comes beyond is lost, as in any router
BURST = 64  # packets read from one side before the other has its turn

CLONE_NEWNET = 0x40000000
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
SIOCSIFFLAGS, SIOCSIFADDR, SIOCSIFNETMASK, SIOCSIFMTU = 0x8914, 0x8916, 0x891C, 0x8922
IFF_UP_RUNNING = 0x41


def missing() -> str:
    """What this machine lacks for such a link; empty: nothing."""
    if os.getuid() != 0:
        return "a link of packets needs root, for network namespaces"
    if not os.path.exists("/dev/net/tun") or not shutil.which("nsenter"):
        return "a link of packets needs /dev/net/tun and nsenter"
    try:
        _Side(CLIENT).close()
    except OSError as error:
        return f"this system does not let us make a network namespace with a TUN device: {error}"
    return ""


class _Side:
    """A namespace with a loopback and a TUN device; its packets are read from and written to ``fd``."""

    def __init__(self, address: str) -> None:
        self.fd = self.namespace = -1
        failed: list[OSError] = []
        thread = threading.Thread(target=self._make, args=(address, failed))  # a namespace is a thread's
        thread.start()
        thread.join()
        if failed:
            self.close()
            raise failed[0]
        self.enter = ("nsenter", f"--net=/proc/{os.getpid()}/fd/{self.namespace}")

    def _make(self, address: str, failed: list[OSError]) -> None:
        try:
            if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "unshare")
            self.namespace = os.open(f"/proc/self/task/{threading.get_native_id()}/ns/net", os.O_RDONLY)
            self.fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
            fcntl.ioctl(self.fd, TUNSETIFF, struct.pack("16sH22x", b"tun0", IFF_TUN | IFF_NO_PI))
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
                for call, value in ((SIOCSIFADDR, address), (SIOCSIFNETMASK, "255.255.255.0")):
                    packed = struct.pack("16sHH4s16x", b"tun0", socket.AF_INET, 0, socket.inet_aton(value))
                    fcntl.ioctl(control, call, packed)
                fcntl.ioctl(control, SIOCSIFMTU, struct.pack("16si20x", b"tun0", MTU))
                for name in (b"lo", b"tun0"):
                    fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sH22x", name, IFF_UP_RUNNING))
        except OSError as error:
            failed.append(error)

    def close(self) -> None:
        for fd in (self.fd, self.namespace):
            if fd >= 0:
                os.close(fd)
        self.fd = self.namespace = -1


class FaultLink:
    """Settings may change at any time and hold for both directions. ``delay`` in seconds each way, ``jitter`` as a
    part of it (order is kept), ``loss``, ``duplicate``, ``reorder`` (5 ms late, others pass) and ``corrupt`` (one bit)
    as chances of a packet. ``cut``: nothing passes, and nobody is told. ``counts`` says what was done to how many."""

    def __init__(self, seed: int = 0) -> None:
        self.delay = self.jitter = self.loss = self.duplicate = self.reorder = self.corrupt = 0.0
        self.cut = False
        self.counts = dict.fromkeys(("passed", "cut", "lost", "doubled", "late", "corrupted", "full"), 0)
        self._random = random.Random(seed)
        self._sides = [_Side(CLIENT), _Side(SERVER)]
        self.client, self.server = (side.enter for side in self._sides)
        self._flight: list[tuple[float, int, int, bytes]] = []  # (arrival, order, to, packet)
        self._under_way, self._last, self._order = [0, 0], [0.0, 0.0], 0
        self._wake, self._bell = os.pipe()
        self._thread = threading.Thread(target=self._run, name="faultlink", daemon=True)
        self._thread.start()

    def clean(self) -> None:
        """A good link again."""
        self.delay = self.jitter = self.loss = self.duplicate = self.reorder = self.corrupt = 0.0
        self.cut = False

    def close(self) -> None:
        os.close(self._bell)
        self._thread.join(5)
        os.close(self._wake)
        for side in self._sides:
            side.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def _run(self) -> None:
        fds = [side.fd for side in self._sides]
        while True:
            pause = max(0.0, self._flight[0][0] - time.monotonic()) if self._flight else None
            ready = select.select([*fds, self._wake], [], [], pause)[0]
            if self._wake in ready:
                return
            for index, fd in enumerate(fds):
                if fd in ready:
                    self._read(fd, 1 - index)
            now = time.monotonic()
            while self._flight and self._flight[0][0] <= now:
                _, _, to, packet = heapq.heappop(self._flight)
                self._under_way[to] -= len(packet)
                self._write(fds[to], packet)

    def _read(self, fd: int, to: int) -> None:
        for _ in range(BURST):
            try:
                packet = os.read(fd, MTU + 100)
            except BlockingIOError:
                return
            for copy, late in self._fate(packet):
                if not (self.delay or late or self._flight):
                    self._write(self._sides[to].fd, copy)
                elif self._under_way[to] + len(copy) > QUEUE:
                    self.counts["full"] += 1
                else:
                    self._send_later(copy, to, late)

    def _fate(self, packet: bytes) -> list[tuple[bytes, float]]:
        """What arrives of a packet, and how much later than the others."""
        chance, counts = self._random.random, self.counts
        if self.cut:
            counts["cut"] += 1
            return []
        if self.loss and chance() < self.loss:
            counts["lost"] += 1
            return []
        counts["passed"] += 1
        if self.corrupt and chance() < self.corrupt:
            counts["corrupted"] += 1
            broken = bytearray(packet)
            broken[self._random.randrange(len(broken))] ^= 1 << self._random.randrange(8)
            packet = bytes(broken)
        late = 0.0
        if self.reorder and chance() < self.reorder:
            counts["late"] += 1
            late = 0.005
        if self.duplicate and chance() < self.duplicate:
            counts["doubled"] += 1
            return [(packet, late), (packet, late + 0.001)]
        return [(packet, late)]

    def _send_later(self, packet: bytes, to: int, late: float) -> None:
        at = time.monotonic() + self.delay * (1 + self.jitter * (2 * self._random.random() - 1))
        if not late:
            at = self._last[to] = max(at, self._last[to])
        self._order += 1
        self._under_way[to] += len(packet)
        heapq.heappush(self._flight, (at + late, self._order, to, packet))

    @staticmethod
    def _write(fd: int, packet: bytes) -> None:
        try:
            os.write(fd, packet)
        except OSError:  # its header was broken, or the other side takes no more: lost
            pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name in ("delay", "jitter", "loss", "duplicate", "reorder", "corrupt"):
        parser.add_argument(f"--{name}", type=float, default=0.0)
    parser.add_argument("--server", required=True, help=f"a command that listens on {SERVER}, as one argument")
    parser.add_argument("command", nargs="+", help="what runs on the client's side")
    given = parser.parse_args()
    with FaultLink() as link:
        with subprocess.Popen([*link.server, "sh", "-c", given.server]) as server:
            time.sleep(2)
            for name in ("delay", "jitter", "loss", "duplicate", "reorder", "corrupt"):
                setattr(link, name, getattr(given, name))
            subprocess.run([*link.client, *given.command], check=False)
            server.terminate()
        print(link.counts)


if __name__ == "__main__":
    main()
