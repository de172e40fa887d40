"""``cupyx.profiler``: timing that works over the network; ranges and profiling go where CuPy's do.

That is ``cupy.cuda.nvtx`` and the runtime, which accept them: no profiler on a machine without CUDA shows them.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

from rgpu import surface
from rgpu.client import pool
from rgpu.cuda import nvtx, runtime
from rgpu.cupyx.profiler._time import benchmark as benchmark


@contextlib.contextmanager
def profile() -> Iterator[None]:
    """Accepted; a profiler on the server sees the worker with or without it."""
    runtime.profilerStart()
    try:
        yield
    finally:
        runtime.profilerStop()


class time_range:  # noqa: N801 - CuPy's name
    """A named range, as decorator or context manager; ``sync`` waits at both ends."""

    def __init__(
        self, message: str | None = None, color_id: Any = None, argb_color: Any = None, sync: bool = False
    ) -> None:
        if color_id is not None and argb_color is not None:
            raise ValueError("Only either color_id or argb_color can be specified")
        if not nvtx.available:
            raise RuntimeError("nvtx is not installed")
        self.message, self.color_id, self.argb_color, self.sync = message, color_id, argb_color, sync

    def __enter__(self) -> Any:
        if self.message is None:
            raise ValueError("when used as a context manager, the message argument cannot be None")
        self._wait()
        if self.argb_color is not None:
            nvtx.RangePushC(self.message, self.argb_color)
        else:
            nvtx.RangePush(self.message, -1 if self.color_id is None else self.color_id)
        return self

    def __exit__(self, *_: Any) -> None:
        self._wait()
        nvtx.RangePop()

    def _wait(self) -> None:
        if self.sync:
            pool.current_stream().sync()

    def __call__(self, func: Any) -> Any:
        message = self.message or func.__name__

        @functools.wraps(func)
        def inner(*args: Any, **kwargs: Any) -> Any:
            with time_range(message, self.color_id, self.argb_color, self.sync):
                return func(*args, **kwargs)

        return inner


__getattr__, __dir__ = surface.face(__name__)
