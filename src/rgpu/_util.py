"""``cupy._util``: results remembered per argument and device, and small helpers that libraries built on CuPy call.

CuPy calls this module private, its users do not. Nothing of rgpu's own lives here, and nothing waits for a device.
"""

from __future__ import annotations

import functools
import importlib
import os
import warnings
from collections.abc import Callable
from typing import Any

from rgpu.cuda import addresses, runtime
from rgpu.errors import PerformanceWarning as PerformanceWarning

ENABLE_SLICE_COPY = bool(int(os.environ.get("CUPY_EXPERIMENTAL_SLICE_COPY", 0)))
CUDA_ARRAY_INTERFACE_SYNC = bool(int(os.environ.get("CUPY_CUDA_ARRAY_INTERFACE_SYNC", 1)))
CUDA_ARRAY_INTERFACE_EXPORT_VERSION = addresses.interface_version

_memories: list[dict] = []


def memoize(for_each_device: bool = False) -> Callable[[Callable], Callable]:
    """A decorator: a function called again with equal arguments (hashable ones) gives what it gave the first time,
    with ``for_each_device`` on the current device of that call. `clear_memo` forgets."""

    def decorate(function: Callable) -> Callable:
        memory: dict = {}
        _memories.append(memory)

        @functools.wraps(function)
        def remembered(*args: Any, **kwargs: Any) -> Any:
            key = (runtime.getDevice() if for_each_device else -1, args, frozenset(kwargs.items()))
            try:
                return memory[key]
            except KeyError:
                return memory.setdefault(key, function(*args, **kwargs))

        return remembered

    return decorate


def clear_memo() -> None:
    """Forget what functions under `memoize` gave."""
    for memory in _memories:
        memory.clear()


def experimental(api_name: str) -> None:
    """Issue CuPy's FutureWarning that ``api_name`` may change, unless the program switched it off."""
    if not importlib.import_module("rgpu").disable_experimental_feature_warning:
        warnings.warn(
            f"{api_name} is experimental. The interface can change in the future.", FutureWarning, stacklevel=2
        )


def check_array(obj: Any, *, arg_name: str) -> None:
    """Raise TypeError if ``obj`` is no device array."""
    if not isinstance(obj, importlib.import_module("rgpu").ndarray):
        raise TypeError(f"'{arg_name}' must be a cupy.ndarray object, not {type(obj)}.")
