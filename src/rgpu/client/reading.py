"""Waiting for what is small: a read or a synchronization is a question and its answer, in one turn if that can be.

Part of a command stream. Where nothing is queued and nobody else waits the question leaves at once, its answer is
looked for in the same call, and what only a longer wait needs is not made; everything else goes through the queue.
"""

from __future__ import annotations

import sys
from time import monotonic
from typing import Any

import numpy as np

from rgpu.client import failures
from rgpu.client.queue import next_reply
from rgpu.link.base import PLACED
from rgpu.wire import codec, limits, ops, values

EARLY = 16  # commands that leave first after an answer: whoever gave it has nothing to do
COMMANDS = 64 << 10  # bytes that a batch has about, without the data in it
_T_READ, _T_SYNC = ops.Read.tag, ops.Sync.tag
_SYNC = codec.pack([_T_SYNC, None])[:-1]  # and the reply's number
_DONE, _DATA = codec.pack([ops.Done.tag, None, None])[:-2], codec.pack([ops.Data.tag, None, None])[:-2]
_NONE, _ZERO = codec.pack(None), codec.pack(0)
_NOTHING = memoryview(bytearray())


class Reading:
    """What a stream does for those who wait."""

    lock: Any
    connection: Any
    mirror: Any
    counters: Any
    direct: Any
    unsent: Any
    ripe: int
    _abandoned: set[int]
    raise_failed: Any
    gather: Any
    _failed: list
    _profile: Any
    _sinks: dict[int, tuple[memoryview, list, np.dtype]]
    _plain: dict[bytes, tuple[int, memoryview]]
    _queue: Any
    _inline: int
    _sending: bool
    _early: dict[int, list]
    _receive_data: Any
    places: Any
    _wait: Any
    _awaited: Any
    _raise_lost: Any

    def sync(self) -> None:
        """Wait until everything submitted has run; raises the first error nobody has seen."""
        reply = next_reply()
        said = codec.pack(reply)
        self._exchange(reply, (_T_SYNC, reply), _SYNC + said, _DONE + said + _NONE, None, 0)
        if self._failed:
            self.raise_failed()

    def read(self, handle: int, out: np.ndarray, order: str = "C", wire: Any = None) -> None:
        """Fill ``out`` (contiguous in ``order``, writable) with the array's content; ``wire``: its dtype, encoded."""
        reply = next_reply()
        if wire is None:
            wire = values.encode_dtype(out.dtype)
        fortran = order == "F"
        command = (_T_READ, reply, handle, 1 if fortran else 0, wire, out.shape)
        place = out.T if fortran else out
        answer = _DATA + codec.pack(reply) + _ZERO
        self._exchange(reply, command, codec.pack(command), answer, place, out.nbytes, "values")
        if self._failed:
            self._raise_lost()

    def _exchange(
        self,
        reply: int,
        command: tuple,
        encoded: bytes,
        answer: bytes,
        out: np.ndarray | None,
        nbytes: int,
        what: str = "completion",
    ) -> None:
        """Send a command, behind what is queued, and wait for its answer: these bytes, and so many that belong into
        ``out``. In one turn only where nobody else waits, who would wait for us."""
        connection = self.connection  # before the look for a mirror, which may take its place at any moment
        small = nbytes < PLACED
        began, found = monotonic(), None
        try:
            free = self.direct and not self._plain and not self._sinks and self._profile is None and self.mirror is None
            if free and (small or nbytes <= connection.link.chunk):
                found = self._at_once(reply, encoded, answer, out, not small)
            if not found:
                if found is None:
                    self._expect(reply, answer, out)
                    self._queue(command)
                    self._wait(reply, what, nbytes)
                else:
                    self._awaited(reply, flush=False)
                if small and self._profile is None and self.mirror is None:
                    connection.answered(monotonic() - began)
            self.ripe = EARLY
        finally:
            if answer in self._plain:  # no calls: a handler that raises after the first would keep the second away
                del self._plain[answer]
            if reply in self._sinks:
                del self._sinks[reply]

    def _at_once(self, reply: int, command: bytes, answer: bytes, out: np.ndarray | None, large: bool) -> bool | None:
        """Send what is queued with the encoded command at its end, in one message. Whether the answer is here already;
        None: nothing was sent."""
        with self.entry() if self.connection.held() else self.lock:
            if self.unsent:
                self.gather()
            if self._sending or self.mirror is not None or self.unsent >= limits.BATCH:
                return None
            how, place = (limits.BATCH - 1, True, command), _NOTHING if out is None else out
            try:  # needs no shield: it is one call
                found = self.connection.exchange(
                    self, how, None, self._inline + COMMANDS, answer, place, large, self._missed, (reply, answer, out)
                )
            except BaseException:
                self._abandoned.add(reply)
                raise
            if found is not None:
                self._inline = 0
                self.counters.round_trips += 1
            return found

    def _missed(self, batch: int, reply: int, answer: bytes, out: np.ndarray | None) -> None:
        """The answer to the last command of this message comes later."""
        self.places(batch)[-1] = failures.place_of(sys._getframe(1))
        self._expect(reply, answer, out)

    def _expect(self, reply: int, answer: bytes, out: np.ndarray | None) -> None:
        """Say where the answer belongs when it comes."""
        if out is None:
            self._plain[answer] = reply, _NOTHING
            return
        flat = memoryview(out.reshape(-1).view(np.uint8) if out.nbytes else bytearray())
        self._sinks[reply] = flat, [0], out.dtype
        if len(flat) < PLACED:
            self._plain[answer] = reply, flat
        for early in self._early.pop(reply, ()):  # a handler of a signal came between the question and this, and waited
            self._receive_data(*early)
