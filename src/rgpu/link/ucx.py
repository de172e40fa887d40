"""Links over UCX: RDMA where the network has it, and UCX's other transports.

A TCP connection introduces the two ends, carries their UCX addresses and tells of a process's end; the
messages go through UCX (csrc/rgpu_ucx.c). The library is the operator's: RGPU_UCX_LIB, the loader's path, or
PyPI's libucx-cu12. UCX does not encrypt. Offered by itself only where there is an RDMA device.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import secrets
import select
import socket
import struct
from pathlib import Path
from typing import Any

from rgpu._native import transports
from rgpu.errors import ConfigError, ServerUnavailable
from rgpu.link.base import Link, Listener
from rgpu.link.ends import WELCOME, DialledLink, StreamListener, heard_welcome
from rgpu.link.tcp import Tcp, bound, prompt

_CARD = struct.Struct("<QH")  # the tag that messages to this end carry; how long its UCX address is
_ADDRESS_BYTES = 16 << 10
_DEFAULTS = {  # UCX is a guest in somebody's Python
    "UCX_HANDLE_ERRORS": "none",
    "UCX_LOG_LEVEL": "fatal",
    "UCX_MEM_MMAP_HOOK_MODE": "none",  # only buffers of our own are sent
    "UCX_MEM_CUDA_HOOK_MODE": "none",
}


class UcxPipe:
    """One end; usable before the other end's card has come, which then means "nothing yet"."""

    tells_room = False

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        tag = secrets.randbits(64)
        self._stream = transports().ucx(tag)
        try:
            address = self._stream.address(_ADDRESS_BYTES)
            sock.send(_CARD.pack(tag, len(address)) + address)  # fits into an empty socket
            self._poll = select.epoll()
            for fd in (sock.fileno(), self._stream.fileno()):
                self._poll.register(fd, select.EPOLLIN)
        except BaseException:
            self._stream.close()
            raise
        self.native = sock.fileno(), self._stream.pointer
        self._card = b""
        self._met = self.ended = False

    def fileno(self) -> int:
        return self._poll.fileno()

    def _meet(self) -> bool:
        """Whether the other end is known by now."""
        while not self._met:
            wanted = _CARD.size
            if len(self._card) >= wanted:
                wanted += _CARD.unpack_from(self._card)[1]
            if wanted > _ADDRESS_BYTES:
                raise ConnectionError("not an address of UCX")
            try:
                more = self.sock.recv(wanted - len(self._card))
            except BlockingIOError:
                return False
            except OSError as error:
                raise ConnectionError(str(error)) from None
            if not more:
                raise ConnectionError("the peer hung up")
            self._card += more
            if len(self._card) > _CARD.size and len(self._card) == _CARD.size + _CARD.unpack_from(self._card)[1]:
                self._stream.connect(self._card[_CARD.size :], _CARD.unpack_from(self._card)[0])
                self._met = True
        return True

    def read_into(self, place: memoryview) -> int:
        got = self._stream.read(place) if self._meet() else 0
        if not got and self.ended:
            raise ConnectionError("the peer is gone")
        return got

    def write_one(self, data: Any) -> int:
        return self._stream.write(data) if self._meet() else 0

    def write(self, buffers: Any) -> int:
        total = 0
        for data in buffers:
            written = self.write_one(data)
            total += written
            if written < len(data):
                break
        return total

    def busy(self) -> bool:
        return self._met and self._stream.busy()

    def before_sleep(self, writing: bool) -> bool:
        return not self._met or (not self.ended and self._stream.doze(writing))

    def awake(self) -> None:
        with contextlib.suppress(ConnectionError):  # the next read says so
            if not self._meet():
                return
        try:
            self.ended |= not self.sock.recv(64)
        except BlockingIOError:
            pass
        except OSError:
            self.ended = True

    def close(self, linger: float) -> None:
        self._poll.close()
        # Its memory goes with us: a thread may be looking for news at this moment.
        self._stream.shut(0.0 if self.ended else linger)
        self.sock.close()


class Ucx(Tcp):
    """The place of a URI, ``ucx://HOST:PORT``: where the introduction takes place."""

    kind = "ucx"

    def answered(self, sock: socket.socket) -> Any:
        sock.send(WELCOME)
        return UcxPipe(prompt(sock).sock)

    def welcomed(self, sock: socket.socket) -> Any:
        return UcxPipe(prompt(sock).sock) if heard_welcome(sock) else None


def library() -> str:
    """The UCX that the operator has."""
    if named := os.environ.get("RGPU_UCX_LIB"):
        return named
    with contextlib.suppress(ImportError, ValueError):
        spec = importlib.util.find_spec("libucx")
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            found = Path(folder) / "lib" / "libucp.so.0"
            if found.exists():
                return str(found)
    return "libucp.so.0"


@functools.cache
def missing() -> str:
    """Why this process cannot have such links; empty: it can."""
    if transports() is None:
        return "ucx links need the C core, which is not built here (or RGPU_PURE is set)"
    if not hasattr(select, "epoll"):
        return "ucx links need Linux"
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    if why := transports().load_ucx(library()):
        return f"ucx links need UCX (RGPU_UCX_LIB, libucp.so.0 or PyPI's libucx-cu12): {why}"
    return ""


def worthwhile() -> bool:
    """Whether a server should offer it unasked: over plain TCP our own link is faster."""
    return any(Path("/sys/class/infiniband").glob("*")) and not missing()


def place(uri: str) -> Ucx:
    if why := missing():
        raise ConfigError(f"cannot connect to {uri!r}: {why}")
    return Ucx(uri)


def connect(uri: str, identity: bytes) -> Link:
    return DialledLink(identity, [place(uri)])


def listen(uri: str) -> Listener:
    if why := missing():
        raise ServerUnavailable(f"cannot listen at {uri!r}: {why}")
    where = Ucx(uri)
    return StreamListener([(bound(where), where)])
