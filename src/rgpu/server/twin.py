"""The worker's side of redundancy: it knows that another worker runs the same stream, and what follows from that.

The second of two workers answers reads with digests and keeps the bytes until the client has its answer, in case the
first is lost meanwhile. Memory that nobody has written is zero, so that both have the same. Which results may differ
is declared in ``wire.functions``; the client compares, nothing is decided here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np

from rgpu.wire import codec, ops
from rgpu.wire.functions import LEEWAY


class TwinMixin:
    """What an executor does in addition when its session is one of two."""

    backend: Any
    functions: dict
    post: Callable[[list], None]
    second = False
    standing = (1, 1)  # workers that run the stream, and that should
    leeway = 0  # of the functions called so far

    def __init__(self) -> None:
        self._kept: dict[int, Any] = {}  # bytes of reads, which may be an array's own memory
        self._fluid: set[int] = set()  # those that are
        self._unwatched: dict[int, Any] = {}  # functions as they are when there is no other worker

    @property
    def keeps(self) -> bool:
        """Whether memory of arrays is kept as it was read."""
        return bool(self._fluid)

    def do_twin(self, second: bool, alike: int, whole: int, wanted: int) -> None:
        before, self.standing = self.standing, (whole, wanted)
        self.second = second
        if (wanted > 1) != (before[1] > 1):
            self._watch_functions(wanted > 1, alike)

    def do_again(self, reply_to: int) -> None:
        data = self._kept.get(reply_to)
        if data is not None:
            self.send_data(reply_to, data)

    def do_retire(self, replies: list) -> None:
        for reply in replies:
            self._kept.pop(reply, None)
            self._fluid.discard(reply)

    def answer_read(self, reply_to: int, data: memoryview, dtype: np.dtype) -> None:
        """The bytes, or their digest from the second of two."""
        if self.second:
            self._kept[reply_to] = data
            self._fluid.add(reply_to)
            if not (self.leeway and dtype.kind in "fcV"):  # V: fields may be floating-point numbers
                self.post([codec.pack(ops.Digest.encode(reply_to, hashlib.sha256(data).digest()))])
                return
        self.send_data(reply_to, data)

    def send_data(self, reply_to: int, data: memoryview) -> None:
        raise NotImplementedError

    def freeze(self) -> None:
        """Before an array changes in place: what was kept of it stays as it was read."""
        for reply in self._fluid:
            self._kept[reply] = memoryview(bytes(self._kept[reply]))
        self._fluid.clear()

    def blank(self, array: Any) -> None:
        """New memory is the same on both workers."""
        if self.standing[1] > 1 and array.nbytes:
            self.backend.view(array, (array.nbytes,), np.dtype(np.uint8), (1,), 0)[...] = 0

    def _watch_functions(self, on: bool, alike: int) -> None:
        """Notice when a function is called whose results the other worker may have differently."""
        self.functions.update(self._unwatched)
        self._unwatched = {}
        for number, level in LEEWAY.items():
            if on and level > alike:
                self._unwatched[number] = self.functions[number]
                self.functions[number] = self._noticing(self.functions[number], level)
        self.functions_changed()

    def functions_changed(self) -> None:
        raise NotImplementedError

    def _noticing(self, call: Callable[..., Any], level: int) -> Callable[..., Any]:
        def noticed(*args: Any, **kwargs: Any) -> Any:
            if level > self.leeway:
                self.leeway = level
                self.post([codec.pack(ops.Leeway.encode(level))])
            return call(*args, **kwargs)

        return noticed
