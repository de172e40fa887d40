"""Scattering: updates of chosen elements in which equal indices all count; and ``rsqrt``."""

from __future__ import annotations

from typing import Any

import numpy as np

from rgpu.client.remote import Remote
from rgpu.cupyx.scipy._table import SpecialFunction
from rgpu.functions import creation, dispatch, indexing

rsqrt = SpecialFunction("cupyx.rsqrt")


def _index(item: Any) -> Any:
    """An index as the worker takes it: sequences become device arrays."""
    if isinstance(item, tuple):
        return tuple(_index(x) for x in item)
    return creation.array(item) if isinstance(item, list | np.ndarray) else item


def _scatter(name: str, array: Any, slices: Any, value: Any) -> None:
    if not isinstance(array, Remote):
        raise TypeError(f"Unsupported type {type(array)}")
    if array._metadata.dtype.kind == "b":
        raise TypeError(f"scatter_{name} does not support boolean arrays")
    with array._stream.device:
        value = (
            creation.array(value, dtype=array._metadata.dtype) if isinstance(value, list | np.ndarray) else value
        )
        slices = _index(slices)
        indexing.check_scattered(array, slices, value)
        dispatch.run_internal(f"cupyx.scatter_{name}", array, slices, value)


def scatter_add(a: Any, slices: Any, value: Any) -> None:
    """``a[slices] += value``, adding every value of an index that occurs more than once."""
    _scatter("add", a, slices, value)


def scatter_max(a: Any, slices: Any, value: Any) -> None:
    """``a[slices] = maximum(a[slices], value)`` over every value of an index."""
    _scatter("max", a, slices, value)


def scatter_min(a: Any, slices: Any, value: Any) -> None:
    """``a[slices] = minimum(a[slices], value)`` over every value of an index."""
    _scatter("min", a, slices, value)
