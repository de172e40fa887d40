"""Messages in a stream of bytes: how they are written, and put together again as the bytes come.

A message is a head (the number of frames, then each frame's size, all u32 little-endian) and the
frames; a head of no frames asks for, or is, a sign of life. Sizes are checked before anything is stored.
Knows pipes (``link.tcp``), no addresses.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import Any

import numpy as np

from rgpu.errors import ProtocolError
from rgpu.link.base import PLACED, Sink
from rgpu.wire import limits

FRAMES = 64  # of one message
MESSAGE = 2 * limits.FRAME_BYTES  # bytes
BUFFER = 256 << 10  # bytes taken in at once; a frame that is larger goes straight to its place
BACKLOG = 64 << 10  # bytes the pipe may still owe when the next message is taken

_HEADS = [struct.Struct(f"<{n + 1}I") for n in range(FRAMES + 1)]
_COUNT = struct.Struct("<I")


class Malformed(ConnectionError):
    """The peer sent what is no message: the connection has no use any more."""


class Writer:
    """Puts messages into a pipe; keeps what the pipe did not take yet."""

    def __init__(self, pipe: Any) -> None:
        self._pipe = pipe
        self._rest: deque[memoryview] = deque()
        self.backlog = 0  # bytes

    def write(self, frames: list, copy_below: int) -> bool:
        """False: the pipe is full, nothing was taken."""
        if self.backlog and not self.push() and self.backlog > BACKLOG:
            return False
        count = len(frames)
        sizes = [len(frame) for frame in frames]
        total = sum(sizes)
        if count > FRAMES or total > MESSAGE:
            raise ValueError(f"a message of {count} frames and {total} bytes")
        head = _HEADS[count].pack(count, *sizes)
        if self.backlog:
            written = 0
        elif total < BUFFER // 16:
            whole = b"".join((head, *frames))
            written = self._pipe.write_one(whole)
            if written == len(whole):
                return True
            head, frames, total = whole, [], 0
        else:
            written = self._pipe.write((head, *frames))
        self._keep((head, *frames), written, copy_below)
        return True

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
        return True


class Reader:
    """Puts messages together from a pipe."""

    def __init__(self, pipe: Any) -> None:
        self._pipe = pipe
        self._buffer = memoryview(bytearray(BUFFER))
        self._low = self._high = 0  # where the bytes not looked at yet are
        self._sizes: tuple[int, ...] | None = None  # of the message under way
        self._frames: list = []
        self._place: memoryview | None = None  # of the frame under way, when it is a large one
        self._filled = 0
        self._skipping = self._expected = 0  # bytes to pass over, because a frame does not fit its place
        self.fresh = False  # bytes have come since ``read`` found no whole message
        self.heard = True  # bytes have come; set False by who wants to know
        self.signs = 0  # of life
        self._emptied = False  # the pipe gave less than it was asked for

    def fill(self) -> bool:
        """Take in what has come, without waiting. Whether anything has."""
        if self._place is not None:
            got = self._pipe.read_into(self._place[self._filled :])
            self._filled += got
        else:
            if self._low == self._high:
                self._low = self._high = 0
            elif self._high == BUFFER:
                left = bytes(self._buffer[self._low : self._high])
                self._buffer[: len(left)] = left
                self._low, self._high = 0, len(left)
            got = self._pipe.read_into(self._buffer[self._high :] if self._high else self._buffer)
            self._high += got
        if got:
            self._emptied = self._place is None and self._high < BUFFER
            self.fresh = self.heard = True
            return True
        return False

    def read(self, sink: Sink | None) -> list | None:
        """The next whole message, or None; ``sink`` as in ``Link.recv``."""
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
        self._frames, self._sizes = [], None
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
                self._sizes = sizes
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

    def _skip(self, size: int) -> None:
        """Pass over a frame that does not fit its place, and over the rest of its message."""
        here = min(self._high - self._low, self._skipping)
        self._low += here
        self._skipping -= here
        if not self._skipping:
            self._frames, self._sizes = [], None
            raise ProtocolError(f"a frame of {size} bytes came where {self._expected} were expected")
