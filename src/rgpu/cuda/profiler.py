"""``cupy.cuda.profiler``: accepted and without effect, a profiler on the client sees no device."""

from __future__ import annotations

from rgpu.cuda import runtime


def start() -> None:
    """Would begin profiling."""
    runtime.profilerStart()


def stop() -> None:
    """Would end it."""
    runtime.profilerStop()
