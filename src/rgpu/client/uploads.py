"""Uploads that were sent before: the worker keeps what it got, and the same content again is a few bytes.

Of one session, in slots that this end numbers, so that nobody learns another's data by their hash: no hash leaves this
process. Hashing has to cost less than sending does, so it begins when a large upload has been seen to take
much longer. Knows contents and numbers, no streams.
"""

from __future__ import annotations

import functools
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable

from rgpu.wire import limits

LEAST = 1 << 20  # bytes of an upload that is worth remembering
DEARER = 4.0  # times what hashing costs that sending has to take
SAMPLE = 64  # every so many uploads it is measured again
_SLOW = 2  # measurements in turn that have to say that sending is slow: one may be a moment of somebody else's


class Uploads:
    """``mode``: "auto", or always "on" or "off"."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self._slots: OrderedDict[tuple[int, bytes], int] = OrderedDict()  # the latest used last
        self._bytes = 0
        self._pays = mode == "on"
        self._left = 1  # uploads up to the next that is measured, which is sent whatever the worker has
        self._slow = 0  # measurements in turn that said that sending takes long

    def clear(self) -> None:
        """What the worker has is not known any more."""
        self._slots.clear()
        self._bytes = 0

    def found(self, data: memoryview) -> tuple[tuple[int, bytes], int | None] | None:
        """What names this content, and its slot if the worker has it; None: it is not worth looking."""
        if self.mode == "auto" and len(data) >= LEAST:
            self._left -= 1
        if not self._pays or not LEAST <= len(data) <= limits.UPLOAD_BYTES or (self.mode == "auto" and self._left <= 0):
            return None
        name = self.name(data)
        slot = self._slots.get(name)
        if slot is not None:
            self._slots.move_to_end(name)
        return name, slot

    def slot(self, name: tuple[int, bytes]) -> int | None:
        """Where the worker has a content now. Another thread may have had it thrown out since it was found."""
        return self._slots.get(name)

    def name(self, data: memoryview) -> tuple[int, bytes]:
        """What names a content."""
        return len(data), _hasher()(data).digest()

    def enter(self, name: tuple[int, bytes]) -> tuple[int, list[int]]:
        """The slot in which the worker shall keep a new content, and those that it shall empty before."""
        gone: list[int] = []
        while self._slots and (len(self._slots) >= limits.UPLOADS or self._bytes + name[0] > limits.UPLOAD_BYTES):
            (size, _), slot = self._slots.popitem(last=False)
            self._bytes -= size
            gone.append(slot)
        taken = set(self._slots.values())
        slot = next(number for number in range(limits.UPLOADS) if number not in taken)
        self._slots[name] = slot
        self._bytes += name[0]
        return slot, gone

    def measures(self, nbytes: int) -> float:
        """Seconds that the sender of this upload, which was not ``found``, shall wait for its arrival, to tell
        ``took``; 0.0: none."""
        if self.mode != "auto" or nbytes < LEAST or self._left > 0:
            return 0.0
        self._left = SAMPLE
        return DEARER * nbytes / _hasher.rate()

    def took(self, arrived: bool) -> None:
        """Whether it had arrived by then."""
        self._slow = 0 if arrived else self._slow + 1
        self._pays = self._slow >= _SLOW
        if 0 < self._slow < _SLOW:
            self._left = 1


class _Hasher:
    """The faster of two strong hashes on this machine, measured at the first need."""

    def __call__(self) -> Callable:
        return self._measured[0]

    def rate(self) -> float:
        """Bytes a second."""
        return self._measured[1]

    @functools.cached_property
    def _measured(self) -> tuple[Callable, float]:
        data = bytes(256 << 10)
        best: tuple[Callable, float] = hashlib.sha256, 0.0
        for hasher in (hashlib.sha256, hashlib.blake2b):
            for _ in range(3):
                began = time.perf_counter()
                hasher(data)
                best = max(best, (hasher, len(data) / (time.perf_counter() - began)), key=lambda found: found[1])
        return best


_hasher = _Hasher()
