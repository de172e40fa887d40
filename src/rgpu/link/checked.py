"""Checksums on stream links that have no keys: a damaged record ends the connection, and the session sends again.

TCP's own sum is 16 bits of each packet between two hosts: it misses one damaged packet of some 65,000, and all that
happens to the bytes within a host, a tunnel or a middlebox. This proves nothing about who wrote them: keys do.
"""

from __future__ import annotations

import struct
from typing import Any

from rgpu._native import crc32c, crc32c_is_fast, transports
from rgpu.link.records import BROKEN, RecordPipe, RecordSocket, is_socket

_HEAD = struct.Struct("<II")  # length, and its sum
_SUM = struct.Struct("<I")


def wanted(place: Any, how: str) -> bool:
    """Whether a link to a place shall have checksums: "on" and "off" say so for every TCP link, "auto" gives them to
    those that leave this host, where the processor computes them in passing."""
    if place.kind != "tcp" or how == "off":
        return False
    return how == "on" or (crc32c_is_fast() and not place.is_loopback)


def checked(pipe: Any) -> Any:
    """The pipe, as either side is to use it from now on."""
    core = transports()
    if core is not None and is_socket(pipe):
        return RecordSocket(pipe, core.check(pipe.fileno()))
    return checked_pipe(pipe)


def checked_pipe(pipe: Any) -> RecordPipe:
    """Any pipe. The twin of csrc/rgpu_check.c: the same records."""
    return RecordPipe(pipe, _Checksum(), _Checksum())


class _Checksum:
    """One direction. A guard of records: their sums go on from their number."""

    head, tail = _HEAD.size, _SUM.size

    def __init__(self) -> None:
        self._number = 0

    def _head(self, length: int) -> bytes:
        size = _SUM.pack(length)
        return size + _SUM.pack(crc32c(size, self._number & 0xFFFFFFFF))

    def wrap(self, data: memoryview) -> bytes:
        head = self._head(len(data))
        self._number += 1
        return b"".join((head, data, _SUM.pack(crc32c(data, _HEAD.unpack(head)[1]))))

    def length(self, head: bytes) -> int:
        size = _HEAD.unpack(head)[0]
        return size if head == self._head(size) else 0

    def open(self, record: bytes) -> bytes:
        data = memoryview(record)[self.head : -self.tail]
        self._number += 1
        if record[-self.tail :] != _SUM.pack(crc32c(data, _HEAD.unpack_from(record)[1])):
            raise ConnectionError(BROKEN)
        return bytes(data)
