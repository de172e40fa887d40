"""Joining and deleting: what CuPy says on the caller's line before the table's function runs.

Nothing here waits or computes; the layouts are predicted as for every declared function.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from rgpu.client.remote import Remote
from rgpu.functions import dispatch, signatures


def _joining(name: str) -> Callable[..., Any]:
    bind = signatures.binder(name)

    def function(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = bind(args, kwargs)
        if kwargs.get("casting") == "unsafe" and kwargs.get("dtype") is not None:
            _warn_of_lost_parts(args[0], np.dtype(kwargs["dtype"]))
        return dispatch.call(name, *args, **kwargs)

    function.__name__ = function.__qualname__ = name
    function.__module__ = "cupy"
    function.__doc__ = f"CuPy's ``{name}``, on the current device."
    return function


def _warn_of_lost_parts(arrays: Any, dtype: np.dtype) -> None:
    arrays = arrays if isinstance(arrays, list | tuple) else (arrays,)
    if dtype.kind not in "bc" and any(isinstance(a, Remote) and a._meta.dtype.kind == "c" for a in arrays):
        warnings.warn(
            "Casting complex values to real discards the imaginary part",
            np.exceptions.ComplexWarning,
            stacklevel=3,
        )


def delete(arr: Any, obj: Any, axis: Any = None) -> Any:
    """The array without the elements that ``obj`` names (a mask waits for their number)."""
    if not isinstance(arr, Remote):
        raise ValueError(f"arr must be a cupy.ndarray, not {type(arr)}")
    return dispatch.call("delete", arr, obj, axis)


NAMES: dict[str, Any] = {name: _joining(name) for name in ("concatenate", "concat", "stack", "hstack", "vstack")}
NAMES["delete"] = delete
