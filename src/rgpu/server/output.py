"""What a worker writes to its output, on its way into the server's own: so much in a second, and the rest is left out.

A client's native code prints what it likes; the disk that the log is on, and whoever reads it, are everybody's.
Runs in the daemon's one thread and never waits: neither for who writes nor for who reads.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import time
from collections.abc import Callable
from typing import Any

log = logging.getLogger("rgpu.server")

BURST, RATE = 64 << 10, 2 << 10  # bytes at once, and in a second: tracebacks are few
_PIECE = select.PIPE_BUF  # what a pipe takes whole or not at all


class Output:
    """``theirs``: the descriptor that a worker writes to; whoever hands it over closes it here."""

    def __init__(self, watcher: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._watcher, self._clock = watcher, clock
        self._ours, self.theirs = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)  # a writer that is too fast loses, and goes on
        self._left, self._at = float(BURST), clock()
        self._watched = False
        self.name: object = "a worker"

    def watch(self) -> None:
        self._watcher.watch(self._ours, self._pass_on)
        self._watched = True

    def tick(self) -> None:
        """Listen again to who was too fast."""
        if not self._watched and self._ours >= 0 and self._room() >= BURST // 4:
            self.watch()

    def close(self) -> None:
        """The worker has ended: what it said last counts as well."""
        if self._ours < 0:
            return
        while self._room() >= _PIECE and self._pass_on():
            pass
        self._unwatch()
        os.close(self._ours)
        self._ours = -1

    def _unwatch(self) -> None:
        if self._watched:
            self._watcher.unwatch(self._ours)
            self._watched = False

    def _room(self) -> float:
        now = self._clock()
        self._left, self._at = min(BURST, self._left + RATE * (now - self._at)), now
        return self._left

    def _pass_on(self) -> bool:
        """A piece, if there is one; whether there may be more."""
        try:
            data = os.read(self._ours, _PIECE)
        except OSError:
            return False
        if not data:
            self._unwatch()
            return False
        self._left -= len(data)
        with contextlib.suppress(OSError):
            if select.select([], [2], [], 0)[1]:
                os.write(2, data)
        if self._room() < _PIECE:
            self._unwatch()
            log.warning("%r writes more than %d KiB a second into the log: the rest is left out", self.name, RATE >> 10)
        return True
