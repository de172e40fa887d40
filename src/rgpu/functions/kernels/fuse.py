"""``cupy.fuse``: the decorator, with the function run as it is written.

CuPy compiles a fused function to one kernel to spare memory traffic; its results are those of the function.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


class Fusion:
    """A function that asked to be fused."""

    __module__ = "cupy._core.fusion"

    def __init__(self, func: Callable[..., Any], name: str | None = None) -> None:
        self.func, self.name = func, name or func.__name__
        functools.update_wrapper(self, func)

    def __repr__(self) -> str:
        return f"<Fusion name={self.name}>"

    def __call__(self, *args: Any) -> Any:
        return self.func(*args)

    def clear_cache(self) -> None:
        """Nothing is kept."""


def fuse(*args: Any, **kwargs: Any) -> Any:
    """``@fuse``, ``@fuse()`` or ``@fuse(kernel_name=...)``."""
    name = kwargs.pop("kernel_name", None)
    if kwargs:
        raise TypeError(f"fuse() got unexpected keyword arguments {sorted(kwargs)}")
    if not args:
        return lambda func: Fusion(func, name)
    if len(args) == 1 and callable(args[0]):
        return Fusion(args[0], name)
    raise TypeError("fuse() takes a function")
