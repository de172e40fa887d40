"""``cupyx.profiler``: timing that works over the network; ranges and profiling are accepted.

There is no NVTX on a machine without CUDA: ranges are remembered by nobody, and programs that mark
them run unchanged.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

from rgpu import surface
from rgpu.client import pool
from rgpu.cupyx.profiler._time import benchmark as benchmark


@contextlib.contextmanager
def profile() -> Iterator[None]:
    """Accepted; a profiler on the server sees the worker with or without it."""
    yield


class time_range:  # noqa: N801 - CuPy's name
    """A named range, as decorator or context manager; ``sync`` waits at both ends."""

    def __init__(
        self, message: str | None = None, color_id: Any = None, argb_color: Any = None, sync: bool = False
    ) -> None:
        if color_id is not None and argb_color is not None:
            raise ValueError("Only either color_id or argb_color can be specified")
        self.message, self.color_id, self.argb_color, self.sync = message, color_id, argb_color, sync

    def __enter__(self) -> Any:
        if self.message is None:
            raise ValueError("when used as a context manager, the message argument cannot be None")
        self._wait()
        return self

    def __exit__(self, *_: Any) -> None:
        self._wait()

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
