"""A plain TCP peer and what can be measured against it: what the network could do without rgpu.

`rgpu netperf` starts one on its own host for servers there; `rgpu netperf --serve` is one for other hosts. It answers
bytes with bytes, one connection at a time, each with a time limit; nothing it is sent means anything.
"""

from __future__ import annotations

import socket
import sys
import time
from typing import Any

BLOCK = 1 << 20
LIMIT_SECONDS = 30.0
PING, UPLOAD, DOWNLOAD = b"P", b"U", b"D"
PING_BYTES = 64


def serve(host: str, port: int) -> None:
    """Answer until the process ends. Prints the port in a line of its own."""
    with socket.create_server((host, port)) as listener:
        print(listener.getsockname()[1], flush=True)
        while True:
            peer, _ = listener.accept()
            with peer:
                peer.settimeout(LIMIT_SECONDS)
                try:
                    _answer(peer)
                except OSError:  # it left, or took too long
                    continue


def _answer(peer: socket.socket) -> None:
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    mode, room = peer.recv(1), bytearray(BLOCK)
    end = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < end:
        if mode == DOWNLOAD:
            peer.sendall(room)
            continue
        count = peer.recv_into(room)
        if not count:
            return
        if mode == PING:
            peer.sendall(room[:count])


def measure(host: str, port: int, seconds: float) -> dict[str, Any]:
    """Median round trip in seconds, and bytes a second in both directions. OSError when there is nobody."""
    return {
        "rtt": _ping(host, port, seconds),
        "up": _stream(host, port, UPLOAD, seconds),
        "down": _stream(host, port, DOWNLOAD, seconds),
    }


def _open(host: str, port: int, mode: bytes) -> socket.socket:
    peer = socket.create_connection((host, port), 5.0)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    peer.sendall(mode)
    return peer


def _ping(host: str, port: int, seconds: float) -> float:
    times, message = [], bytes(PING_BYTES)
    with _open(host, port, PING) as peer:
        end = time.perf_counter() + seconds
        while (began := time.perf_counter()) < end or not times:
            peer.sendall(message)
            missing = PING_BYTES
            while missing:
                got = len(peer.recv(missing))
                if not got:
                    raise ConnectionError("the peer closed the connection")
                missing -= got
            times.append(time.perf_counter() - began)
    return sorted(times)[len(times) // 2]


def _stream(host: str, port: int, mode: bytes, seconds: float) -> float:
    room, total = bytearray(BLOCK), 0
    with _open(host, port, mode) as peer:
        began = time.perf_counter()
        while (elapsed := time.perf_counter() - began) < seconds:
            if mode == UPLOAD:
                peer.sendall(room)
                total += BLOCK
            else:
                got = peer.recv_into(room)
                if not got:
                    raise ConnectionError("the peer closed the connection")
                total += got
    return total / elapsed


if __name__ == "__main__":
    serve("127.0.0.1", int(sys.argv[1]))
