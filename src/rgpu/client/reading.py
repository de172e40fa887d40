"""Waiting for what is small: a read or a synchronization is a question and its answer, in one turn if that can be.

Part of a command stream. Where nothing is queued and nobody else waits the question leaves at once, its answer is
looked for in the same call, and what only a longer wait needs is not made; everything else goes through the queue.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from rgpu.client import failures
from rgpu.client.queue import next_reply
from rgpu.link.base import PLACED
from rgpu.wire import codec, ops, values

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
    _abandoned: set[int]
    raise_failed: Any
    _batch: int
    _failed: list
    _profile: Any
    _sent_places: dict[int, Any]
    _sinks: dict[int, tuple[memoryview, list, np.dtype]]
    _plain: dict[bytes, tuple[int, memoryview]]
    _queue: Any
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
        """Send a command and wait for its answer: these bytes, and so many that belong into ``out``. At once only
        where nobody else waits, who would wait for us."""
        small = nbytes < PLACED and self.mirror is None and self._profile is None
        found = None
        try:
            if small and self.direct and not self._plain and not self._sinks:
                found = self._in_one_turn(reply, command, answer, out)
                if found:
                    return
            if found is None:
                place = self._expect(reply, answer, out)
                wanted = (answer, place, reply) if small and len(self._plain) == 1 else None
                self._queue(command)
                self._wait(reply, what, nbytes, wanted)
            else:
                self._awaited(reply, flush=False)
        finally:
            self._plain.pop(answer, None)
            self._sinks.pop(reply, None)

    def _in_one_turn(self, reply: int, command: tuple, answer: bytes, out: np.ndarray | None) -> bool | None:
        """Whether the answer is here already; None: nothing was sent."""

        def missed() -> None:
            self._sent_places[batch] = [failures.place_of(sys._getframe(1))]
            self._expect(reply, answer, out)

        with self.lock:
            connection, counters, sent = self.connection, self.counters, self._sent_places
            if self.unsent:
                return None
            batch = self._batch + 1
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
                return None
            self._batch = batch
            if found:
                sent[batch] = ()  # nobody will ask for its lines
            if len(sent) > PLACES:
                del sent[next(iter(sent))]
            counters.commands += 1
            counters.batches += 1
            counters.round_trips += 1
            return found

    def _expect(self, reply: int, answer: bytes, out: np.ndarray | None) -> memoryview:
        """Say where the answer belongs when it comes; the place."""
        if out is None:
            self._plain[answer] = reply, _NOTHING
            return _NOTHING
        flat = memoryview(out.reshape(-1).view(np.uint8) if out.nbytes else bytearray())
        self._sinks[reply] = flat, [0], out.dtype
        if len(flat) < PLACED:
            self._plain[answer] = reply, flat
        return flat
