"""``cupy._core.core``: arrays by their other name, and the copy that never asks what a cast loses."""

from __future__ import annotations

import importlib
from typing import Any

from rgpu._ndarray import ndarray as ndarray

#: the headers that every kernel of CuPy includes, and that kernels here may
_cupy_header_list = ["cupy/complex.cuh", "cupy/carray.cuh", "cupy/atomics.cuh", "cupy/math_constants.h"]


def public(name: str) -> Any:
    """Something by CuPy's public name."""
    return getattr(importlib.import_module("rgpu"), name)


def elementwise_copy(source: Any, target: Any) -> Any:
    """Write ``source`` (an array or a number, broadcast, cast as it comes) into ``target``, which is returned."""
    target[...] = source
    return target


def __getattr__(name: str) -> Any:
    if name in ("array", "ascontiguousarray", "asfortranarray", "divmod", "from_dlpack", "fromDlpack"):
        return public(name)
    raise AttributeError(f"module 'cupy._core.core' has no attribute {name!r}")
