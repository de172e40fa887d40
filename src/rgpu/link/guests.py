"""Who is connected to a listening ZeroMQ socket, so that nobody keeps others out by connecting often.

libzmq takes whoever comes. Here is room for so many, and when there is none, whoever has the most connections loses
the one that has been silent for longest: a key that was proven, or an address as long as nothing was said. Clients
come again with their next question, so that costs little where it is not meant. Reads no message.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
from collections.abc import Hashable, Iterator
from typing import Any

import zmq

MOST = 2048  # connections; one that says nothing takes 40 KiB
RESERVED = 48  # descriptors for everything else, or a quarter of them
_EVENTS = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED
_EVENT = struct.Struct("=HI")  # kind, descriptor


def room() -> int:
    """How many connections this process can have."""
    import resource  # here: clients on systems without it import this module, too

    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if descriptors == resource.RLIM_INFINITY:
        return MOST
    return max(16, min(MOST, descriptors - max(RESERVED, descriptors // 4)))


class Guests:
    """Of one bound socket. ``monitor`` tells of them; it is to be polled, and ``look`` called."""

    def __init__(self, sock: zmq.Socket, most: int | None = None) -> None:
        self._socket, self._most = sock, most or room()
        self._port = int(sock.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])
        self.monitor = sock.get_monitor_socket(_EVENTS)
        self._owners: dict[int, Hashable] = {}  # descriptor -> whose it is
        self._owned: dict[Hashable, dict[int, None]] = {}  # the other way round; who was heard last comes last

    def __len__(self) -> int:
        return len(self._owners)

    def look(self) -> None:
        """Take note of who has come and gone; make room."""
        while True:
            try:
                kind, descriptor = _EVENT.unpack_from(self.monitor.recv_multipart(zmq.NOBLOCK)[0])
            except zmq.Again:
                break
            self._forget(descriptor)
            if kind == zmq.EVENT_ACCEPTED:
                self._note(descriptor, _address(descriptor, self._port))
        while len(self._owners) > self._most:
            most = max(self._owned.values(), key=len)
            descriptor = next(iter(most))
            self._forget(descriptor)
            _hang_up(descriptor, self._port)

    def heard(self, frame: zmq.Frame, key: str) -> None:
        """A message came, from whoever has proven this key."""
        with contextlib.suppress(zmq.ZMQError):
            descriptor: Any = frame.get(zmq.SRCFD)
            owner = self._owners.get(descriptor)
            if owner is not None:
                self._forget(descriptor)
                self._note(descriptor, ("key", key) if key else ("heard", owner[-1]))  # type: ignore[index]

    def _note(self, descriptor: int, owner: Hashable) -> None:
        if owner is not None:
            self._owners[descriptor] = owner
            self._owned.setdefault(owner, {})[descriptor] = None

    def _forget(self, descriptor: int) -> None:
        owner = self._owners.pop(descriptor, None)
        if owner is not None:
            owned = self._owned[owner]
            del owned[descriptor]
            if not owned:
                del self._owned[owner]

    def close(self) -> None:
        if not self._socket.closed:
            self._socket.disable_monitor()
        self.monitor.close(0)


@contextlib.contextmanager
def _borrowed(descriptor: int, port: int) -> Iterator[socket.socket]:
    """libzmq's descriptor as a socket that was accepted on a port. OSError if it is none any more: the number may be
    another's by now, a pipe to a worker, say. Takes no other descriptor, of which none may be left."""
    sock = socket.socket(fileno=descriptor)
    try:
        if sock.family not in (socket.AF_INET, socket.AF_INET6) or sock.getsockname()[1] != port:
            raise OSError(errno.ENOTCONN, "not the connection that it was")
        yield sock
    finally:
        sock.detach()


def _address(descriptor: int, port: int) -> Hashable:
    """Where a connection comes from; None: it has gone already."""
    try:
        with _borrowed(descriptor, port) as sock:
            return "address", sock.getpeername()[0]
    except OSError:
        return None


def _hang_up(descriptor: int, port: int) -> None:
    """libzmq sees the end of the connection, and closes it."""
    with contextlib.suppress(OSError), _borrowed(descriptor, port) as sock:
        sock.getpeername()  # OSError for what only listens
        sock.shutdown(socket.SHUT_RDWR)
