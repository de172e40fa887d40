"""Functions that take a Python callable: their loop runs here, each step is a command.

A client's Python never runs on a server.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from rgpu.client import predict
from rgpu.client.remote import Remote
from rgpu.functions import creation, dispatch, indexing, views


def apply_along_axis(func1d: Callable[..., Any], axis: int, arr: Any, *args: Any, **kwargs: Any) -> Any:
    """``func1d`` applied to every one-dimensional slice along an axis."""
    if not isinstance(arr, Remote):
        raise TypeError(f"Unsupported type {type(arr)}")
    ndim = arr._metadata.ndim
    axis = predict.normalize_axis(int(axis), ndim)[0] if ndim else _no_axis(axis)
    moved = views.apply(np.moveaxis, arr, axis, -1)
    outer = moved._metadata.shape[:-1]
    if 0 in outer:
        raise ValueError("Cannot apply_along_axis when any iteration dimensions are 0")
    results = []
    for index in np.ndindex(outer):
        result = func1d(moved[index], *args, **kwargs)
        if not isinstance(result, Remote):
            result = creation.array(result)
        results.append(result)
    inner = results[0]._metadata.shape
    stacked = views.reshape(dispatch.call("stack", results), outer + inner)
    return views.apply(np.moveaxis, stacked, list(range(len(outer), len(outer) + len(inner))),
                       list(range(axis, axis + len(inner)))) if inner else stacked  # fmt: skip


def _no_axis(axis: int) -> int:
    raise np.exceptions.AxisError(axis, 0)


def apply_over_axes(func: Callable[..., Any], a: Any, axes: Any) -> Any:
    """``func(a, axis)`` for each axis in turn, with the reduced axes kept."""
    ndim = a._metadata.ndim
    predict.normalize_axis(axes, ndim)
    for axis in (axes,) if np.ndim(axes) == 0 else axes:
        result = func(a, axis)
        if result.ndim != ndim:
            result = views.reshape(
                result, a._metadata.shape[: axis % ndim] + (1,) + a._metadata.shape[axis % ndim + 1 :]
            )
        if result.ndim != ndim:
            raise ValueError("function is not returning an array of the correct shape")
        a = result
    return a


def fromfunction(
    function: Callable[..., Any], shape: Any, *, dtype: Any = float, like: Any = None, **kwargs: Any
) -> Any:
    """``function`` called with the coordinates of every point, as arrays."""
    return function(*dispatch.call("indices", tuple(shape), dtype=np.dtype(dtype)), **kwargs)


def piecewise(x: Any, condlist: Any, funclist: Any) -> Any:
    """Values by condition; a callable is refused, as CuPy refuses it."""
    conditions = [condlist] if np.isscalar(condlist) else condlist
    values = [funclist] if np.isscalar(funclist) else funclist
    count = len(conditions)
    if len(values) not in (count, count + 1):
        raise ValueError(f"with {count} condition(s), either {count} or {count + 1} functions are expected")
    if any(callable(values[i]) for i in range(len(values))):
        raise NotImplementedError("Callable functions are not supported currently")
    result = creation.zeros(x.shape, x.dtype)
    if len(values) > count:
        result[...] = values[count]
    for i in range(count):
        value, condition = values[i], conditions[i]
        value = value.astype(x.dtype) if isinstance(value, Remote) else x.dtype.type(value)
        condition = condition.astype(bool) if isinstance(condition, Remote) else bool(condition)
        indexing.copyto(result, value, where=condition)
    return result


def diag_indices(n: int, ndim: int = 2) -> tuple:
    """Indices of the main diagonal: one array, ``ndim`` times."""
    return (creation.arange(n),) * ndim


def diag_indices_from(arr: Any) -> tuple:
    if not isinstance(arr, Remote):
        raise TypeError("Argument must be cupy.ndarray")
    if arr._metadata.ndim < 2:
        raise ValueError("input array must be at least 2-d")
    if len(set(arr._metadata.shape)) > 1:
        raise ValueError("All dimensions of input must be of equal length")
    return diag_indices(arr._metadata.shape[0], arr._metadata.ndim)


class UniqueAllResult(NamedTuple):
    values: Any
    indices: Any
    inverse_indices: Any
    counts: Any


class UniqueCountsResult(NamedTuple):
    values: Any
    counts: Any


class UniqueInverseResult(NamedTuple):
    values: Any
    inverse_indices: Any


def unique_all(x: Any) -> UniqueAllResult:
    return UniqueAllResult(*dispatch.call("unique_all", x))


def unique_counts(x: Any) -> UniqueCountsResult:
    return UniqueCountsResult(*dispatch.call("unique_counts", x))


def unique_inverse(x: Any) -> UniqueInverseResult:
    return UniqueInverseResult(*dispatch.call("unique_inverse", x))


def asarray_chkfinite(a: Any, dtype: Any = None, order: Any = None) -> Any:
    """``asarray`` that refuses infinities and NaNs (waits)."""
    result = creation.asarray(a, dtype, order)
    if result._metadata.dtype.kind in "fc" and not bool(dispatch.call("all", dispatch.call("isfinite", result))):
        raise ValueError("array must not contain Infs or NaNs")
    return result


def asfarray(a: Any, dtype: Any = np.float64) -> Any:
    dtype = np.dtype(dtype) if np.issubdtype(dtype, np.inexact) else np.dtype(np.float64)
    return creation.asarray(a, dtype)


NAMES: dict[str, Any] = {
    function.__name__: function
    for function in (
        apply_along_axis, apply_over_axes, fromfunction, piecewise, asarray_chkfinite, asfarray, diag_indices,
        diag_indices_from, unique_all, unique_counts, unique_inverse,
    )
}  # fmt: skip
