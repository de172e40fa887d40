"""Keeps a signal handler's exception (Ctrl-C) out of moments in which a session's state changes.

Handlers run in the main thread between any two instructions; a KeyboardInterrupt in the middle of a
message would lose it. Inside ``with shield`` a SIGINT is noted, and handled on leaving. Waiting loops
look at ``noted`` and leave early, so that Ctrl-C is answered at once.
"""

from __future__ import annotations

import _signal  # beneath the signal module, whose conversions cost fifteen times as much
import os
import threading
from signal import SIGINT
from typing import Any


class _Shield:
    """Counts its depth for the main thread; in other threads it does nothing (no handlers there)."""

    def __init__(self) -> None:
        self.noted: tuple | None = None
        self._main = threading.main_thread().ident
        self._depth = 0
        self._before: Any = None

    def __enter__(self) -> _Shield:
        if threading.get_ident() == self._main:
            if not self._depth:
                before = _signal.getsignal(SIGINT)
                if callable(before):  # else nothing of Python's runs at a SIGINT
                    self._before = before
                    _signal.signal(SIGINT, self._note)
            self._depth += 1
        return self

    def __exit__(self, *_: object) -> None:
        if threading.get_ident() != self._main:
            return
        self._depth -= 1
        if self._depth or self._before is None:
            return
        before, self._before = self._before, None
        _signal.signal(SIGINT, before)
        noted, self.noted = self.noted, None
        if noted is not None:
            before(*noted)

    def _note(self, *signal: Any) -> None:
        self.noted = signal

    def after_fork(self) -> None:
        """The thread that forked is the child's main thread."""
        self._main, self._depth, self.noted = threading.get_ident(), 0, None


shield = _Shield()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=shield.after_fork)
