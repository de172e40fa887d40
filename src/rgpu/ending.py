"""What rgpu does at the end of a process: behind all that the program registered with ``atexit`` after ``import rgpu``,
whose handlers may still read arrays. Most of rgpu loads at first use, which would be too late to register."""

from __future__ import annotations

import atexit
import contextlib
from collections.abc import Callable

_steps: list[Callable[[], None]] = []


def at_end(step: Callable[[], None]) -> None:
    """Call this at the end, before whatever was given earlier."""
    _steps.append(step)


@atexit.register
def _end() -> None:
    with contextlib.ExitStack() as stack:  # each of them, whatever another one raises
        for step in _steps:
            stack.callback(step)
