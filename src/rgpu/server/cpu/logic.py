"""Truth, sets, order and search where CuPy differs from NumPy: 0-d arrays for answers, renamed parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rgpu.server.cpu.arrays import override


def _answer(function: Callable[..., Any]) -> Callable[..., Any]:
    """NumPy's function with its Python scalar made a 0-d array."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return np.asarray(function(*args, **kwargs))

    return call


for _name in ("array_equal", "array_equiv", "allclose", "count_nonzero"):
    override(_name)(_answer(getattr(np, _name)))

override("trapezoid")(getattr(np, "trapezoid", None) or np.trapz)  # type: ignore[attr-defined]


@override("msort")
def _msort(a: np.ndarray) -> Any:
    return np.sort(a, axis=0, kind="stable")


@override("sort")
def _sort(a: np.ndarray, axis: Any = -1, kind: Any = None) -> Any:
    return np.sort(a, axis=axis, kind="stable")


@override("partition")
def _partition(a: np.ndarray, kth: Any, axis: Any = -1) -> Any:
    return np.partition(a, kth, axis=axis)


@override("argmax")
def _argmax(
    a: np.ndarray, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False
) -> Any:
    result = np.argmax(a, axis=axis, out=out, keepdims=keepdims)
    return result if dtype is None else result.astype(dtype)


@override("argmin")
def _argmin(
    a: np.ndarray, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False
) -> Any:
    result = np.argmin(a, axis=axis, out=out, keepdims=keepdims)
    return result if dtype is None else result.astype(dtype)


def _packing(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(a: np.ndarray, axis: Any = None, bitorder: Any = "big") -> Any:
        if bitorder not in ("big", "little"):
            raise ValueError("bitorder must be either 'big' or 'little'")
        return function(a, axis=axis, bitorder=bitorder)

    return call


override("packbits")(_packing(np.packbits))
override("unpackbits")(_packing(np.unpackbits))


@override("lexsort")
def _lexsort(keys: np.ndarray) -> Any:
    if keys.ndim == 1:
        return np.array(0, dtype=np.intp)
    if keys.ndim > 2:
        raise NotImplementedError("Keys with the rank of three or more is not supported in lexsort")
    return np.lexsort(keys)


@override("in1d")
def _in1d(ar1: np.ndarray, ar2: np.ndarray, assume_unique: bool = False, invert: bool = False) -> Any:
    return np.isin(ar1.ravel(), ar2.ravel(), assume_unique=assume_unique, invert=invert)


@override("sort_complex")
def _sort_complex(a: np.ndarray) -> Any:
    return np.sort(a.astype(np.complex64 if a.dtype.char in "bhBHF" else np.complex128))


@override("bincount")
def _bincount(x: np.ndarray, weights: Any = None, minlength: Any = None) -> Any:
    if x.ndim != 1:
        raise ValueError(
            "object too deep for desired array" if x.ndim else "object of too small depth for desired array"
        )
    if x.dtype.kind == "f":
        raise TypeError("x must be int array")
    if weights is not None and x.shape != weights.shape:
        raise ValueError("The weights and list don't have the same length.")
    if x.size and x.min() < 0:
        raise ValueError("The first argument of bincount must be non-negative")
    if not x.size:
        return np.zeros(0 if minlength is None else minlength, np.intp)
    return np.bincount(x.astype(np.int64), weights, 0 if minlength is None else minlength)


@override("put")
def _put(a: np.ndarray, ind: Any, v: Any, mode: str = "wrap") -> None:
    np.put(a, ind, v, mode=mode)


@override("ravel_multi_index")
def _ravel_multi_index(multi_index: Any, dims: Any, mode: Any = "wrap", order: Any = "C") -> Any:
    return np.ravel_multi_index(tuple(multi_index), tuple(dims), mode=mode, order=order or "C")


@override("choose")
def _choose(a: np.ndarray, choices: Any, out: Any = None, mode: str = "raise") -> Any:
    return np.choose(a, choices, out=out, mode=mode)


@override("meshgrid")
def _meshgrid(*xi: Any, **kwargs: Any) -> Any:
    return tuple(np.meshgrid(*xi, **kwargs))
