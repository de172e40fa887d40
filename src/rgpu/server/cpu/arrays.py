"""What NumPy lacks, or does differently from CuPy, for the cpu backend.

``OVERRIDES`` maps declared function names to implementations. Each follows CuPy's documented
behaviour: integer indices wrap, random streams are objects, results are arrays.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from rgpu.server.cpu import random_streams, scientific
from rgpu.server.cpu.casts import cast

OVERRIDES: dict[str, Callable[..., Any]] = {**random_streams.OVERRIDES, **scientific.OVERRIDES}


def override(name: str, wants_backend: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register an implementation; with ``wants_backend`` its first argument is the backend."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        if wants_backend:
            function.wants_backend = True  # type: ignore[attr-defined]
        OVERRIDES[name] = function
        return function

    return register


# ---- arrays -----------------------------------------------------------------------------------


def _wrapped(array: np.ndarray, index: tuple) -> tuple:
    """Integer index arrays modulo the extent, as on a GPU."""
    result: list = []
    axis = 0
    if Ellipsis in [i for i in index if not isinstance(i, np.ndarray)]:
        consumed = sum(_axes(i) for i in index)
    else:
        consumed = array.ndim
    for item in index:
        if item is Ellipsis:
            axis += array.ndim - consumed
        elif isinstance(item, np.ndarray) and item.dtype.kind in "iu" and axis < array.ndim:
            extent = array.shape[axis]
            item = item.astype(np.int64) % extent if extent else item
            axis += 1
        else:
            axis += _axes(item)
        result.append(item)
    return tuple(result)


def _axes(item: Any) -> int:
    if item is None or item is Ellipsis:
        return 0
    return item.ndim if isinstance(item, np.ndarray) and item.dtype.kind == "b" else 1


@override("ndarray.getitem")
def _getitem(array: np.ndarray, index: tuple) -> Any:
    return np.array(array[_wrapped(array, index)])


@override("ndarray.setitem")
def _setitem(array: np.ndarray, index: Any, value: Any) -> None:
    if isinstance(value, np.ndarray) and value.dtype.kind == "f" and array.dtype.kind in "iu":
        value = cast(value, array.dtype)
    array[_wrapped(array, index) if isinstance(index, tuple) else index] = value


@override("ndarray.fill")
def _fill(array: np.ndarray, value: Any) -> None:
    array[...] = np.asarray(value).astype(array.dtype) if array.dtype.names is None else value


@override("ndarray.astype")
def _astype(target: np.ndarray, source: np.ndarray) -> None:
    of, to = source.dtype.kind, target.dtype.kind
    target[...] = cast(source, target.dtype) if (of == "c" and to != "c") or (of == "f" and to in "iu") else source


@override("ndarray.copy")
def _copy(source: np.ndarray, dtype: np.dtype) -> np.ndarray:
    return cast(source, dtype, "C")


@override("ndarray.byteswap")
def _byteswap(array: np.ndarray) -> None:
    array.byteswap(inplace=True)


@override("ndarray.sort")
def _sort(array: np.ndarray, axis: int = -1) -> None:
    array.sort(axis=axis, kind="stable")


@override("ndarray.partition")
def _partition(array: np.ndarray, kth: Any, axis: int = -1) -> None:
    array.partition(kth, axis=axis)


@override("take")
def _take(array: np.ndarray, indices: Any, axis: Any = None, out: Any = None) -> Any:
    return np.take(array, indices, axis=axis, out=out, mode="wrap")


@override("argsort")
def _argsort(array: np.ndarray, axis: Any = -1, kind: Any = None) -> Any:
    return np.argsort(array, axis=axis, kind="stable")


def _comparison(compare: np.ufunc, of_records: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """Structured values have no ufunc; NumPy's operators compare them field by field."""

    def function(a: Any, b: Any, *args: Any, **kwargs: Any) -> Any:
        records = getattr(a, "dtype", None), getattr(b, "dtype", None)
        if any(dtype is not None and dtype.kind == "V" and dtype.type is np.void for dtype in records):
            return np.asarray(of_records(a, b))
        return compare(a, b, *args, **kwargs)

    return function


OVERRIDES["equal"] = _comparison(np.equal, operator.eq)
OVERRIDES["not_equal"] = _comparison(np.not_equal, operator.ne)


# ---- ufunc methods ----------------------------------------------------------------------------


def _ufunc(name: str) -> np.ufunc:
    from rgpu.wire.functions import BY_NAME

    found = getattr(np, name, None)
    if name not in BY_NAME or not isinstance(found, np.ufunc):
        raise TypeError(f"{name!r} is not a ufunc")
    return found


@override("ufunc.call")
def _ufunc_call(target: Any, name: str, *args: Any) -> Any:
    *operands, outs, options = args
    if outs:
        return _ufunc(name)(*operands, out=outs if len(outs) > 1 else outs[0], **{"casting": "same_kind", **options})
    return _ufunc(name)(*operands, **options)


@override("ufunc.reduce")
def _ufunc_reduce(name: str, *args: Any, **kwargs: Any) -> Any:
    return _ufunc(name).reduce(*args, **kwargs)


@override("ufunc.accumulate")
def _ufunc_accumulate(name: str, *args: Any, **kwargs: Any) -> Any:
    return _ufunc(name).accumulate(*args, **kwargs)


@override("ufunc.reduceat")
def _ufunc_reduceat(name: str, *args: Any, **kwargs: Any) -> Any:
    return _ufunc(name).reduceat(*args, **kwargs)


@override("ufunc.at")
def _ufunc_at(target: np.ndarray, name: str, indices: Any, b: Any = None) -> None:
    _ufunc(name).at(target, indices, *([] if b is None else [b]))
