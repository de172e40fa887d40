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
from rgpu.client.shield import shield
from rgpu.link.base import PLACED
from rgpu.wire import codec, limits, ops, values

EARLY = 16  # commands that leave first after an answer: whoever gave it has nothing to do
PLACES = 320  # batches whose lines are remembered: the window, and a little more
_T_READ, _T_SYNC = ops.Read.tag, ops.Sync.tag
_T_DATA, _T_DONE = ops.Data.tag, ops.Done.tag
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
    _batch: int
    _failed: list
    _profile: Any
    _sent_places: dict[int, Any]
    _sinks: dict[int, tuple[memoryview, list, np.dtype]]
    _plain: dict[bytes, tuple[int, memoryview]]
    _queue: Any
    _inline: int
    _sending: bool
    _early: dict[int, list]
    _receive_data: Any
    take: Any
    _post: Any
    _wait: Any
    _awaited: Any
    _raise_lost: Any

    def sync(self) -> None:
        """Wait until everything submitted has run; raises the first error nobody has seen."""
        reply = next_reply()
        self._exchange(reply, (_T_SYNC, reply), codec.pack((_T_DONE, reply, None)), None, 0)
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
        self._exchange(reply, command, codec.pack((_T_DATA, reply, 0)), place, out.nbytes, "values")
        if self._failed:
            self._raise_lost()

    def _exchange(
        self, reply: int, command: tuple, answer: bytes, out: np.ndarray | None, nbytes: int, what: str = "completion"
    ) -> None:
        """Send a command, behind what is queued, and wait for its answer: these bytes, and so many that belong into
        ``out``. In one turn only where nobody else waits, who would wait for us."""
        connection = self.connection  # before the look for a mirror, which may take its place at any moment
        alone = self.mirror is None and self._profile is None
        small = nbytes < PLACED and alone
        began, found = monotonic(), None
        try:
            short = small or (alone and nbytes <= connection.link.chunk)
            if short and self.direct and not self._plain and not self._sinks:
                turn = self._behind_the_queue if self.unsent else self._alone
                found = turn(reply, command, answer, out)
            if found is None:
                self._expect(reply, answer, out)
                self._queue(command)
                self._wait(reply, what, nbytes)
            elif not found:
                self._awaited(reply, flush=False)
            if small:
                connection.answered(monotonic() - began)
            self.ripe = EARLY
        finally:
            if answer in self._plain:  # no calls: a handler that raises after the first would keep the second away
                del self._plain[answer]
            if reply in self._sinks:
                del self._sinks[reply]

    def _behind_the_queue(self, reply: int, command: tuple, answer: bytes, out: np.ndarray | None) -> bool | None:
        """Send what is queued with the command at its end, all in one message. Whether the answer is here already;
        None: nothing was sent."""
        with self.lock:
            room = self.unsent < limits.BATCH and self._inline < limits.CHUNK_BYTES and not self._sending
            if not room or self.mirror is not None or not self.connection.can_send(2 * limits.CHUNK_BYTES):
                return None
            try:
                with shield:
                    self._queue(command)
                    self._sending = True
                    try:
                        body, places = self.take(self._batch + 1, limits.BATCH, True)
                        self._inline = 0
                        ask = answer, _NOTHING if out is None else out, lambda: self._expect(reply, answer, out)
                        self.counters.round_trips += 1
                        return self._post([body], places, ask)
                    finally:
                        self._sending = False
            except BaseException:
                self._abandoned.add(reply)
                raise

    def _alone(self, reply: int, command: tuple, answer: bytes, out: np.ndarray | None) -> bool | None:
        """The same where nothing is queued."""

        def missed() -> None:
            self._sent_places[batch] = [failures.place_of(sys._getframe(1))]
            self._expect(reply, answer, out)

        with self.lock:
            connection, counters, sent = self.connection, self.counters, self._sent_places
            if self.unsent or self._sending or self.mirror is not None:
                return None
            self._batch = batch = self._batch + 1  # what a handler sends in the midst of this has another number
            try:  # needs no shield: see ``Connection.exchange``
                body = [codec.pack((batch, (command,)))]
                found = connection.exchange(body, answer, _NOTHING if out is None else out, missed)
            except BaseException as error:
                self._batch = connection.progress[0]
                self._abandoned.add(reply)
                if error is connection.failure:
                    raise failures.fresh(error) from error.__cause__
                raise
            if found is None:
                self._batch -= self._batch == batch
                return None
            if found:
                sent[batch] = ()  # nobody will ask for its lines
            sent.pop(batch - PLACES, None)  # by its number: a handler that computes here forgets others
            counters.commands += 1
            counters.batches += 1
            counters.round_trips += 1
            return found

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
