"""Keeps handlers of signals out of moments in which a session's state changes.

Handlers run in the main thread between any two instructions, and may do anything: raise (Ctrl-C, an alarm), which in
the middle of a message would lose it, or use the same session, whose messages would then leave in another order than
they are numbered. Inside ``with shield`` signals that have a handler of Python's are noted, and come on leaving.
Waiting loops look at ``noted`` and leave early, so that they are answered at once.
"""

from __future__ import annotations

import os
import signal
import threading
from _signal import getsignal  # beneath the signal module, whose conversions cost fifteen times as much
from _signal import signal as handle
from _thread import get_ident, interrupt_main
from typing import Any


def _numbers(names: str) -> tuple[int, ...]:
    return tuple(int(found) for name in names.split() if (found := getattr(signal, f"SIG{name}", None)) is not None)


_ALWAYS = _numbers("INT")
#: which of these have handlers is looked up by ``look``; those that a fault raises are not among them
_OTHERS = _numbers("TERM HUP QUIT USR1 USR2 ALRM VTALRM PROF CHLD IO XCPU WINCH CONT TSTP BREAK")


class _Shield:
    """Counts its depth for the main thread; in other threads it does nothing (no handlers there)."""

    def __init__(self) -> None:
        self.noted: set[int] = set()
        self._main = threading.main_thread().ident
        self._depth = 0
        self._numbers = _ALWAYS
        self._seen: list[Any] = []  # their handlers, and
        self._found: list[tuple[int, Any]] = []  # those of Python's among them
        self._held: list[tuple[int, Any]] = []  # what is put back at the end
        self._whole = False  # whether no handler can come
        self._noting = self._note  # one object

    def __enter__(self) -> _Shield:
        if get_ident() == self._main:
            if not self._whole:
                self._hold()
            self._depth += 1
        return self

    def __exit__(self, *_: object) -> None:
        if get_ident() == self._main:
            self._depth -= 1
            if not self._depth:
                self._whole = False
                _put_back(self._held)
                if self.noted:
                    self._tell()

    def look(self) -> None:
        """See which signals have handlers: often, from any thread. Sixteen looks each time would cost too much."""
        numbers = (*_ALWAYS, *(number for number in _OTHERS if callable(getsignal(number))))
        if numbers != self._numbers:
            self._numbers = numbers

    def _hold(self) -> None:
        seen = [*map(getsignal, self._numbers)]
        if seen != self._seen:
            pairs = zip(self._numbers, seen)
            self._found = [pair for pair in pairs if callable(pair[1]) and pair[1] is not self._noting]
            self._seen = seen
        found = self._found
        try:
            for number, _ in found:  # one that comes before it is held may be in here: it leaves alone what is held
                handle(number, self._noting)
        except BaseException:
            _put_back(found)
            raise
        self._held, self._whole = found, True

    def _tell(self) -> None:
        """What was noted comes now; if a handler raises, the others come all the same."""
        waiting, self.noted = self.noted, set()
        try:
            while waiting:
                interrupt_main(waiting.pop())  # type: ignore[arg-type]
        finally:
            self.noted |= waiting
            if waiting and self._depth == 0:
                self._tell()

    def _note(self, number: int, _: Any) -> None:
        self.noted.add(number)

    def after_fork(self) -> None:
        """The thread that forked is the child's main thread."""
        self._main, self._depth, self.noted = get_ident(), 0, set()


def _put_back(held: list[tuple[int, Any]]) -> None:
    """A handler that has been put back may come and raise at once."""
    try:
        for number, handler in held:
            handle(number, handler)
    except BaseException:
        _put_back(held)
        raise


shield = _Shield()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=shield.after_fork)
