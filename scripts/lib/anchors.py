"""What scripts/bench compares waits and large arrays with: raw sockets and raw ZeroMQ, to a process that echoes."""

from __future__ import annotations

import contextlib
import select
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator

import zmq


def line_of(process: subprocess.Popen, patience: float) -> str:
    if not select.select([process.stdout], [], [], patience)[0]:
        raise TimeoutError("a helper process does not answer")
    return process.stdout.readline().decode()


RAW_PEER = """
import socket
memory = memoryview(bytearray(1 << 30))
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
peer, _ = listener.accept()
peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
while head := peer.recv(16, socket.MSG_WAITALL):
    size = int(head[1:])
    if head[:1] == b"u":
        got = 0
        while got < size:
            got += peer.recv_into(memory[got:size])
        peer.sendall(b"k")
    else:
        peer.sendall(memory[:size])
"""

ZMQ_PEER = """
import zmq
peer = zmq.Context().socket(zmq.ROUTER)
print(peer.bind_to_random_port("tcp://127.0.0.1"), flush=True)
while (message := peer.recv_multipart())[-1] != b"end":
    peer.send_multipart(message)
"""


@contextlib.contextmanager
def helper(source: str) -> Iterator[int]:
    """A process that prints its port and serves; ends when its peer hangs up."""
    process = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE)
    try:
        yield int(line_of(process, 20))
    finally:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(2)
        process.kill()
        process.wait()
        process.stdout.close()


@contextlib.contextmanager
def raw_tcp() -> Iterator[tuple[Callable, Callable]]:
    """(upload, download) of a memoryview's bytes over one plain socket."""
    with helper(RAW_PEER) as port, socket.create_connection(("127.0.0.1", port)) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def upload(data: memoryview) -> None:
            peer.sendall(b"u%015d" % len(data))
            peer.sendall(data)
            peer.recv(1)

        def download(data: memoryview) -> None:
            peer.sendall(b"d%015d" % len(data))
            got = 0
            while got < len(data):
                got += peer.recv_into(data[got:])

        yield upload, download


@contextlib.contextmanager
def raw_zmq() -> Iterator[Callable[[], None]]:
    """A ping-pong between DEALER and ROUTER with our sizes of frames."""
    with helper(ZMQ_PEER) as port, zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.connect(f"tcp://127.0.0.1:{port}")

        def ping() -> None:
            dealer.send_multipart([b"h" * 48, b"b" * 16])
            dealer.recv_multipart()

        yield ping
        dealer.send(b"end")
