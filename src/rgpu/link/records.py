"""Pipes whose bytes travel in records, each guarded by what somebody else knows how to do: ``link.seal`` seals them,
``link.checked`` gives them a checksum. No byte leaves here whose record did not open.
"""

from __future__ import annotations

from typing import Any, Protocol

RECORD = 64 << 10  # bytes of data in one; as in csrc/rgpu_records.h
BROKEN = "the peer broke the rules of records, or they were damaged on their way"


class Guard(Protocol):
    """One direction of a connection."""

    head: int
    tail: int

    def wrap(self, data: memoryview) -> bytes:
        """The next record."""

    def length(self, head: bytes) -> int:
        """The length that the head of the next record names; 0: it is none."""

    def open(self, record: bytes) -> bytes:
        """What is in the next record; ConnectionError: it is none, or not the next."""


def is_socket(pipe: Any) -> bool:
    """Whether the C core can take a pipe's socket."""
    return getattr(pipe, "native", (0, 1))[1] == 0


class _Records:
    """What both have."""

    write_one: Any

    def write(self, buffers: Any) -> int:
        """Small ones share a record."""
        if sum(map(len, buffers)) <= RECORD:
            return self.write_one(b"".join(buffers))
        total = 0
        for data in buffers:
            written = self.write_one(data)
            total += written
            if written < len(data):
                break
        return total


class RecordSocket(_Records):
    """A socket's pipe through the C core."""

    tells_room = True
    ended = False  # its reads say so

    def __init__(self, pipe: Any, stream: Any) -> None:
        self._pipe, self._stream = pipe, stream
        self.native = pipe.fileno(), stream.pointer
        self.sock = pipe.sock
        self.fileno, self.awake, self.close = pipe.fileno, pipe.awake, pipe.close
        self.read_into, self.write_one = stream.read, stream.write

    def busy(self) -> bool:
        return False

    def before_sleep(self, writing: bool) -> bool:
        return self._stream.doze(writing)


class RecordPipe(_Records):
    """Any pipe. The twin of csrc/rgpu_records.c."""

    def __init__(self, pipe: Any, out: Guard, into: Guard) -> None:
        self._pipe, self._out, self._in = pipe, out, into
        self._leaving = memoryview(b"")  # what has not left of a record
        self._stands_for = self._credit = 0  # its data's bytes; those that have left, and nobody was told
        self._taken = bytearray()
        self._plain = memoryview(b"")
        self._over = False
        self.tells_room = pipe.tells_room
        self.fileno, self.awake, self.busy, self.close = pipe.fileno, pipe.awake, pipe.busy, pipe.close

    def write_one(self, data: Any) -> int:
        """A record counts as given when all of it has left: until then the caller offers its bytes again."""
        total, view = 0, memoryview(data).cast("B")
        while True:
            known = min(self._credit, len(view) - total)
            self._credit -= known
            total += known
            if total == len(view):
                return total
            if not self._stands_for:
                self._stands_for = min(RECORD, len(view) - total)
                self._leaving = memoryview(self._out.wrap(view[total : total + self._stands_for]))
            while len(self._leaving):
                left = self._pipe.write_one(self._leaving)
                if not left:
                    return total
                self._leaving = self._leaving[left:]
            self._credit, self._stands_for = self._stands_for, 0

    def read_into(self, place: memoryview) -> int:
        done = 0
        while done < len(place):
            try:
                if not len(self._plain) and not self._open():
                    break
            except ConnectionError:
                if done:
                    break  # the next call says it again
                raise
            size = min(len(place) - done, len(self._plain))
            place[done : done + size] = self._plain[:size]
            self._plain = self._plain[size:]
            done += size
        return done

    def _open(self) -> bool:
        """Whether there is another record. ConnectionError: what came is none, and nothing after it counts."""
        if self._over:
            raise ConnectionError(BROKEN)
        while not (end := self._whole()):
            more = bytearray(RECORD)
            got = self._pipe.read_into(memoryview(more))
            if not got:
                return False
            self._taken += more[:got]
        record, self._taken = bytes(self._taken[:end]), self._taken[end:]
        self._over = True
        self._plain = memoryview(self._in.open(record))
        self._over = False
        return True

    def _whole(self) -> int:
        """Where the next record ends, if all of it is here; else 0."""
        if len(self._taken) < self._in.head:
            return 0
        size = self._in.length(bytes(self._taken[: self._in.head]))
        if not 0 < size <= RECORD:
            raise ConnectionError(BROKEN)
        end = self._in.head + size + self._in.tail
        return end if len(self._taken) >= end else 0

    def before_sleep(self, writing: bool) -> bool:
        return not len(self._plain) and not self._whole() and self._pipe.before_sleep(writing)
