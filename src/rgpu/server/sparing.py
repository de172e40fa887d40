"""A log that nobody outside can fill: of lines of one kind so many are written in a while, and then how many were not.

A kind is the text before its values are put in. Never looks at what they are, or who is behind them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

OFTEN, WHILE = 20, 10.0  # lines of one kind, seconds


class Sparing(logging.Filter):
    """For a handler."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._kinds: dict[str, tuple[float, int]] = {}  # since when, how many

    def filter(self, record: logging.LogRecord) -> bool:
        kind, now = f"{record.name} {record.msg}", self._clock()
        since, count = self._kinds.get(kind, (now, 0))
        if now - since >= WHILE:
            if count > OFTEN:
                record.msg = f"{record.msg} (and {count - OFTEN} lines like this before it)"
            since, count = now, 0
        self._kinds[kind] = since, count + 1
        if len(self._kinds) > 1000:  # texts that are made anew each time
            self._kinds.clear()
        return count < OFTEN
