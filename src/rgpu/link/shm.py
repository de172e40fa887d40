"""Links through memory that client and worker share: two rings, and a local socket that is their bell.

The memory has no name (memfd, sealed so that nobody can shrink it under the other) and travels over the
socket, whose name is nowhere in the file system: whatever is killed, nothing stays behind. The other
process is not trusted with more than its own session. Needs Linux and the C core; else there is tcp.
"""

from __future__ import annotations

import contextlib
import importlib
import mmap
import os
import secrets
import socket
import sys
from typing import Any

from rgpu._native import transports
from rgpu.errors import ConfigError, ServerUnavailable
from rgpu.link.base import Link, Listener
from rgpu.link.ends import STRANGERS, WELCOME, DialledLink, StreamListener

CAPACITY = 4 << 20  # bytes of each ring: half a piece of large data, and still in the processor's cache

fcntl: Any = importlib.import_module("fcntl") if sys.platform != "win32" else None  # ``missing`` says so there
_SEALS = 0x1 | 0x2 | 0x4  # F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW (fcntl.h)
_F_ADD_SEALS, _F_GET_SEALS = 1033, 1034


class ShmPipe:
    """One end of two rings. ``side`` 0: the worker's."""

    tells_room = False

    def __init__(self, sock: socket.socket, fd: int, side: int) -> None:
        self.sock = sock
        size = transports().lib.rgpu_shm_size(CAPACITY)
        if os.fstat(fd).st_size < size or fcntl.fcntl(fd, _F_GET_SEALS) & _SEALS != _SEALS:
            raise OSError("the memory offered may change its size")
        self._memory = mmap.mmap(fd, size)
        self._stream = transports().shm(self._memory, CAPACITY, side)
        self.native = sock.fileno(), self._stream.pointer
        self.ended = False

    def fileno(self) -> int:
        return self.sock.fileno()

    def read_into(self, place: memoryview) -> int:
        got = self._stream.read(place)
        if got:
            self._ring()
            return got
        if self.ended:
            raise ConnectionError("the peer is gone")
        return 0

    def write_one(self, data: Any) -> int:
        written = self._stream.write(data)
        if written:
            self._ring()
        return written

    def write(self, buffers: Any) -> int:
        total = 0
        for data in buffers:
            written = self._stream.write(data)
            total += written
            self._ring()  # the reader begins while we go on
            if written < len(data):
                break
        return total

    def _ring(self) -> None:
        if self._stream.ring():
            with contextlib.suppress(BlockingIOError):  # a full socket rings already
                try:
                    self.sock.send(b"!")
                except BlockingIOError:
                    raise
                except OSError as error:
                    raise ConnectionError(str(error)) from None

    def busy(self) -> bool:
        return False

    def before_sleep(self, writing: bool) -> bool:
        return not self.ended and self._stream.doze(writing)

    def awake(self) -> None:
        try:
            self.ended |= not self.sock.recv(64)
        except BlockingIOError:
            pass
        except OSError:
            self.ended = True

    def close(self, linger: float) -> None:
        self.sock.close()  # the memory goes with us: a thread may be looking at it at this moment


class Shm:
    """The place of a URI, ``shm://HOST/NAME``: which boot of which machine, and the bell's name there."""

    kind = "shm"

    def __init__(self, uri: str) -> None:
        self.uri = uri
        host, _, name = uri.partition("://")[2].partition("/")
        if not name or not host:
            raise ConfigError(f"cannot connect to {uri!r}: expected shm://host/name")
        self.address = "\0" + name
        self._host = host

    def new(self) -> socket.socket:
        if self._host != this_host():
            raise OSError("another machine")
        return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)

    def answered(self, sock: socket.socket) -> ShmPipe:
        fd = os.memfd_create("rgpu", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, transports().lib.rgpu_shm_size(CAPACITY))
            fcntl.fcntl(fd, _F_ADD_SEALS, _SEALS)
            socket.send_fds(sock, [WELCOME], [fd])
            return ShmPipe(sock, fd, 0)
        finally:
            os.close(fd)

    def welcomed(self, sock: socket.socket) -> ShmPipe | None:
        try:
            said, fds, _, _ = socket.recv_fds(sock, len(WELCOME), 1)
        except BlockingIOError:
            return None
        try:
            if said != WELCOME or len(fds) != 1:
                raise ConnectionError("nobody of ours listens there, or for somebody else")
            return ShmPipe(sock, fds[0], 1)
        finally:
            for fd in fds:
                os.close(fd)


def this_host() -> str:
    """Which boot of which machine this is; containers of one machine share it."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def missing() -> str:
    """Why this process cannot have such links; empty: it can."""
    if sys.platform != "linux" or not hasattr(os, "memfd_create") or not this_host():
        return "shared memory links need Linux"
    if transports() is None:
        return "shared memory links need the C core, which is not built here (or RGPU_PURE is set)"
    return ""


def place(uri: str) -> Shm:
    if why := missing():
        raise ConfigError(f"cannot connect to {uri!r}: {why}")
    return Shm(uri)


def connect(uri: str, identity: bytes) -> Link:
    return DialledLink(identity, [place(uri)])


def listen(uri: str) -> Listener:
    """Listens under a name that nobody can guess, whatever the URI says."""
    if why := missing():
        raise ServerUnavailable(f"cannot listen at {uri!r}: {why}")
    where = Shm(f"shm://{this_host()}/rgpu-{secrets.token_hex(16)}")
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(where.address)
        listening.listen(STRANGERS)
    except OSError as error:
        listening.close()
        raise ServerUnavailable(f"cannot listen at {uri!r}: {error}") from None
    return StreamListener([(listening, where)])
