"""TCP sockets of our own as links: one connection, no threads between the caller and the kernel.

``SocketPipe`` is what a stream link expects of a pipe. Heartbeats beneath it are the kernel's
(keep-alive), so that a process that is busy is not taken for one that is gone.
"""

from __future__ import annotations

import contextlib
import socket
from typing import Any

from rgpu.errors import ConfigError, ServerUnavailable
from rgpu.link.base import Link, Listener
from rgpu.link.ends import STRANGERS, WELCOME, DialledLink, StreamListener, heard_welcome
from rgpu.link.stream import SILENCE

JOINED = 1 << 16  # bytes that are copied together for one call, where the system takes no list of buffers


class SocketPipe:
    """A connected stream socket. Every call returns at once; ConnectionError: it has ended."""

    tells_room = True  # its file descriptor is writable when, and only when, there is room

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._send, self._recv_into = sock.send, sock.recv_into
        self._send_all = getattr(sock, "sendmsg", self._joined)  # Windows has none
        self.native = sock.fileno(), 0

    def fileno(self) -> int:
        return self.sock.fileno()

    def read_into(self, place: memoryview) -> int:
        """Bytes taken; 0: there are none now."""
        try:
            got = self._recv_into(place)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            raise ConnectionError(str(error)) from None
        if not got and len(place):
            raise ConnectionError("the peer hung up")
        return got

    def write_one(self, data: Any) -> int:
        """Bytes given; 0: it is full."""
        try:
            return self._send(data)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            raise ConnectionError(str(error)) from None

    def write(self, buffers: Any) -> int:
        try:
            return self._send_all(buffers)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            raise ConnectionError(str(error)) from None

    def _joined(self, buffers: Any) -> int:
        head = bytearray()
        for data in buffers:
            if len(head) + len(data) > JOINED:
                return self._send(head or data)
            head += data
        return self._send(head)

    def busy(self) -> bool:
        """Whether what was written still needs calls to leave."""
        return False

    def before_sleep(self, writing: bool) -> bool:
        """Whether its file descriptor will tell of all news from now on (else look again)."""
        return True

    def awake(self) -> None:
        """The file descriptor has told something."""

    def close(self, linger: float) -> None:
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_WR)
            if linger:  # unread data would turn the end into a reset, which takes what is under way with it
                while self.sock.recv(1 << 16):
                    pass
        self.sock.close()


class Tcp:
    """The place of a URI."""

    kind = "tcp"

    def __init__(self, uri: str) -> None:
        self.uri = uri
        host, port = _host_and_port(uri)
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        except OSError as error:
            raise ConfigError(f"cannot connect to {uri!r}: {error}") from None
        self._family, self.address = found[0], found[4]

    @property
    def is_loopback(self) -> bool:
        return self.address[0] == "::1" or self.address[0].startswith(("127.", "::ffff:127."))

    def new(self) -> socket.socket:
        return socket.socket(self._family, socket.SOCK_STREAM)

    def answered(self, sock: socket.socket) -> Any:
        sock.send(WELCOME)
        return prompt(sock)

    def welcomed(self, sock: socket.socket) -> Any:
        return prompt(sock) if heard_welcome(sock) else None


def prompt(sock: socket.socket) -> SocketPipe:
    """Nothing waits for more to send, and silence of the other machine is noticed."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    silence = int(SILENCE * 1000)
    for name, value in (("KEEPIDLE", 1), ("KEEPINTVL", 1), ("KEEPCNT", 2), ("USER_TIMEOUT", silence)):
        if (option := getattr(socket, f"TCP_{name}", None)) is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
    return SocketPipe(sock)


def _host_and_port(uri: str) -> tuple[str, int]:
    host, _, port = uri.partition("://")[2].rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"cannot connect to {uri!r}: expected tcp://host:port")
    return host.strip("[]"), int(port)


def place(uri: str) -> Tcp:
    return Tcp(uri)


def connect(uri: str, identity: bytes) -> Link:
    return DialledLink(identity, [Tcp(uri)])


def listen(uri: str) -> Listener:
    where = Tcp(uri)
    return StreamListener([(bound(where), where)])


def bound(where: Tcp) -> socket.socket:
    """A socket that listens there; ``where.uri`` is its true name afterwards."""
    listening = where.new()
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(where.address)
        listening.listen(STRANGERS)
    except OSError as error:
        listening.close()
        raise ServerUnavailable(f"cannot listen at {where.uri!r}: {error}") from None
    where.uri = f"{where.uri.rpartition(':')[0]}:{listening.getsockname()[1]}"
    return listening
