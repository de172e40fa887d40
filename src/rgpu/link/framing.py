"""Messages in a stream of bytes: how they are written, and put together again as the bytes come.

A message is a head (the number of frames, then each frame's size, all u32 little-endian) and the
frames; a head of no frames asks for, or is, a sign of life. Sizes are checked before anything is stored.
Knows pipes (``link.tcp``), no addresses.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from rgpu import _native
from rgpu.errors import ProtocolError
from rgpu.link.base import PLACED, Sink
from rgpu.wire import limits

FRAMES = 64  # of one message
MESSAGE = 2 * limits.FRAME_BYTES  # bytes
BUFFER = 256 << 10  # bytes taken in at once; a frame that is larger goes straight to its place
SMALL = 16 << 10  # bytes of a message that leaves in one piece, copied together
BACKLOG = 64 << 10  # bytes the pipe may still owe when the next message is taken

_HEADS = [struct.Struct(f"<{n + 1}I") for n in range(FRAMES + 1)]
_COUNT = struct.Struct("<I")


class Malformed(ConnectionError):
    """The peer sent what is no message: the connection has no use any more."""


class Outlet:
    """The twin of the C core's."""

    def __init__(self, pipe: Any) -> None:
        self._to = pipe

    def give(self, frames: list) -> int:
        """How many bytes of the message the pipe did not take, its head included."""
        head, size = _head_of(frames)
        if size < SMALL:
            return size - self._to.write_one(b"".join((head, *frames)))
        return size - self._to.write((head, *frames))


def _head_of(frames: list) -> tuple[bytes, int]:
    """A message's head, and the size of the whole."""
    sizes = [len(frame) for frame in frames]
    if len(sizes) > FRAMES or sum(sizes) > MESSAGE:
        raise ValueError(f"a message of {len(sizes)} frames and {sum(sizes)} bytes")
    head = _HEADS[len(sizes)].pack(len(sizes), *sizes)
    return head, len(head) + sum(sizes)


class _Rest:
    """Puts messages into a pipe; keeps what the pipe did not take yet."""

    give: Any  # an outlet's

    def __init__(self, pipe: Any) -> None:
        self._pipe = pipe
        self._rest: deque[memoryview] = deque()
        self.backlog = 0  # bytes
        self.borrowed = False  # whether some of them are in memory of others

    def write(self, frames: list, copy_below: int) -> bool:
        """False: the pipe is full, nothing was taken."""
        if self.backlog and not self.push() and self.backlog > BACKLOG:
            return False
        missing = -1 if self.backlog else self.give(frames)
        if missing:
            self.keep(frames, missing, copy_below)
        return True

    def keep(self, frames: list, missing: int, copy_below: int) -> None:
        """A message of which the pipe did not take so many bytes (-1: any)."""
        head, whole = _head_of(frames)
        self._keep((head, *frames), 0 if missing < 0 else whole - missing, copy_below)

    def sign(self) -> None:
        """A sign of life, unless there are better ones on their way."""
        if not self.backlog:
            self._keep((_HEADS[0].pack(0),), self._pipe.write_one(_HEADS[0].pack(0)), 0)

    def _keep(self, frames: tuple, written: int, copy_below: int) -> None:
        for frame in frames:
            size = len(frame)
            if written >= size:
                written -= size
                continue
            left = memoryview(frame)[written:]
            written = 0
            if size < copy_below and not isinstance(frame, bytes):
                left = memoryview(bytes(left))
            if len(left):
                self._rest.append(left)
                self.backlog += len(left)
                self.borrowed |= not isinstance(left.obj, bytes)

    def push(self) -> bool:
        """Give the pipe what it would not take before. True: it owes nothing now."""
        rest = self._rest
        while rest:
            written = self._pipe.write(tuple(rest)[:FRAMES])
            if not written:
                return False
            self.backlog -= written
            while rest and written >= len(rest[0]):
                written -= len(rest.popleft())
            if written:
                rest[0] = rest[0][written:]
        self.borrowed = False
        return True


class PureWriter(_Rest, Outlet):
    """Through any pipe."""

    def __init__(self, pipe: Any) -> None:
        _Rest.__init__(self, pipe)
        Outlet.__init__(self, pipe)


class Inlet:
    """The twin of the C core's: a buffer, of which the bytes from ``_low`` to ``_high`` are to be looked at."""

    def __init__(self, pipe: Any) -> None:
        self._from = pipe
        self._memory = bytearray(BUFFER)
        self._low = self._high = 0
        self._partial = False  # a message is under way
        self.fresh = False  # bytes have come since ``read`` found no whole message
        self.heard = True  # bytes have come; set False by who wants to know
        self.signs = 0  # of life
        self._emptied = False  # the pipe gave less than it was asked for

    def take(self) -> Any:
        """The next message, None, or NotImplemented: it is not a plain one. This twin knows none."""
        return NotImplemented

    def fill_buffer(self) -> bool:
        """Take in what has come, without waiting. Whether anything has."""
        memory = self._memory
        if self._low == self._high:
            self._low = self._high = 0
        elif self._high == BUFFER:
            left = memory[self._low :]
            memory[: len(left)] = left
            self._low, self._high = 0, len(left)
        got = self._from.read_into(memoryview(memory)[self._high :])
        if got:
            self._high += got
            self._emptied = self._high < BUFFER
            self.fresh = self.heard = True
        return got > 0

    def fill_place(self, place: memoryview, filled: int) -> int:
        """Take in more of a large frame; how much of it is filled now."""
        if got := self._from.read_into(place[filled:]):
            self._emptied = False
            self.fresh = self.heard = True
        return filled + got


class _Parts:
    """Puts messages together from a pipe; an inlet beside it has the buffer, and the plain ones ready."""

    take: Any
    fill_buffer: Any
    fill_place: Any
    _memory: bytearray
    _low: int
    _high: int
    _emptied: bool
    _partial: bool
    fresh: bool
    heard: bool
    signs: int

    def __init__(self, pipe: Any) -> None:
        self._pipe = pipe
        self._buffer = memoryview(self._memory)
        self._sizes: tuple[int, ...] | None = None  # of the message under way
        self._frames: list = []
        self._place: memoryview | None = None  # of the frame under way, when it is a large one
        self._filled = 0
        self._skipping = self._expected = 0  # bytes to pass over, because a frame does not fit its place

    def fill(self) -> bool:
        """Take in what has come, without waiting. Whether anything has."""
        if self._place is None:
            return self.fill_buffer()
        before, self._filled = self._filled, self.fill_place(self._place, self._filled)
        return self._filled > before

    @property
    def midway(self) -> bool:
        """Whether a part of a message is here."""
        return self._partial or self._low < self._high

    def read(self, sink: Sink | None) -> list | None:
        """The next whole message, or None; ``sink`` as in ``Link.recv``."""
        frames = self.take()
        return self._read(sink) if frames is NotImplemented else frames

    def _read(self, sink: Sink | None) -> list | None:
        while True:
            frames = self._parse(sink)
            if frames is not None:
                return frames
            if self._emptied or not self.fill():  # a look in vain costs as much as a message
                self.fresh = self._emptied = False
                return None

    def _parse(self, sink: Sink | None) -> list | None:
        """The next message, if all of it is here."""
        if self._sizes is None and not self._begin():
            return None
        frames, sizes = self._frames, self._sizes
        while len(frames) < len(sizes):
            size, low = sizes[len(frames)], self._low
            if size < PLACED and low + size <= self._high:
                frames.append(bytes(self._buffer[low : low + size]))
                self._low = low + size
            elif not self._large_frame(size, sink):
                return None
        self._frames, self._sizes, self._partial = [], None, False
        return frames

    def _begin(self) -> bool:
        """The head of a message, if it is here."""
        while self._high - self._low >= 4:
            (count,) = _COUNT.unpack_from(self._buffer, self._low)
            if count > FRAMES:
                raise Malformed(f"a message of {count} frames")
            head = _HEADS[count]
            if self._high - self._low < head.size:
                return False
            sizes = head.unpack_from(self._buffer, self._low)[1:]
            if sum(sizes) > MESSAGE:
                raise Malformed(f"a message of {sum(sizes)} bytes")
            self._low += head.size
            if count:
                self._sizes, self._partial = sizes, True
                return True
            self.signs += 1
        return False

    def _large_frame(self, size: int, sink: Sink | None) -> bool:
        """The frame under way, which is large or not all here. Whether it is complete now."""
        if self._skipping:
            self._skip(size)
            return False
        if self._place is None:
            if size < PLACED:
                return False
            self._settle_place(size, sink)
        if self._place is None or self._filled < size:
            return False
        self._frames.append(self._place)
        self._place = None
        return True

    def _settle_place(self, size: int, sink: Sink | None) -> None:
        """Begin a large frame: from here on its bytes go where it belongs."""
        into = sink(self._frames) if self._frames and sink is not None else None
        if into is not None and size > len(into):
            self._expected, self._skipping = len(into), sum(self._sizes[len(self._frames) :])
            self._skip(size)
            return
        # Memory of NumPy's is not cleared first, which would cost as much as the copy.
        place = memoryview(np.empty(size, np.uint8)) if into is None else into[:size]
        here = min(self._high - self._low, size)
        place[:here] = self._buffer[self._low : self._low + here]
        self._low += here
        self._place, self._filled = place, here
        self._emptied = False  # the rest of it is on its way, and worth a look

    def _skip(self, size: int) -> None:
        """Pass over a frame that does not fit its place, and over the rest of its message."""
        here = min(self._high - self._low, self._skipping)
        self._low += here
        self._skipping -= here
        if not self._skipping:
            self._frames, self._sizes, self._partial = [], None, False
            raise ProtocolError(f"a frame of {size} bytes came where {self._expected} were expected")


class PureReader(_Parts, Inlet):  # type: ignore[misc]
    """From any pipe."""

    def __init__(self, pipe: Any) -> None:
        Inlet.__init__(self, pipe)
        _Parts.__init__(self, pipe)


if not TYPE_CHECKING and _native.link is not None:

    class Writer(_Rest, _native.link.Outlet):
        """Through a pipe that the C core can use itself."""

    class Reader(_Parts, _native.link.Inlet):
        """From a pipe that the C core can use itself."""

        flat = staticmethod(np.frombuffer)  # csrc/link_large.c, which begins with a large frame, and leaves it to us

else:
    Writer, Reader = PureWriter, PureReader


def ends_of(pipe: Any) -> tuple[Any, Any]:
    """What reads from a pipe, and what writes into it."""
    if hasattr(pipe, "native"):
        return Reader(pipe), Writer(pipe)
    return PureReader(pipe), PureWriter(pipe)
