"""``cupy.cuda.nvtx``: accepted and without effect, there is no profiler that could show the marks."""

from __future__ import annotations

import threading

available = True


class _Depth(threading.local):
    depth = 0


_thread = _Depth()


def Mark(message: str, id_color: int = -1) -> None:
    """A point in time."""


def MarkC(message: str, color: int = 0) -> None:
    """A point in time, in a colour."""


def RangePush(message: str, id_color: int = -1) -> int:
    """Begin a range; returns its depth."""
    _thread.depth += 1
    return _thread.depth - 1


def RangePushC(message: str, color: int = 0) -> int:
    """Begin a range, in a colour; returns its depth."""
    return RangePush(message)


def RangePop() -> int:
    """End the innermost range; returns its depth."""
    _thread.depth = max(0, _thread.depth - 1)
    return _thread.depth


def RangeStart(message: str, id_color: int = -1) -> int:
    """Begin a range that may overlap others."""
    return 0


def RangeEnd(range_id: int) -> None:
    """End a range begun by ``RangeStart``."""
