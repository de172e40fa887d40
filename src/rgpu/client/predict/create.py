"""Rules for arrays made from a few numbers: windows, grids, triangles, diagonals."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from rgpu.client.meta import Meta, fresh
from rgpu.client.predict.axes import one
from rgpu.client.predict.dry import WAIT

_FLOAT = np.dtype(float)
_INT = np.dtype(np.int64)


def window(M: Any, *_: Any) -> Meta:
    return fresh((max(0, operator.index(M)),), _FLOAT)


def tri(N: Any, M: Any = None, k: Any = 0, dtype: Any = float) -> Meta:
    return fresh((operator.index(N), operator.index(N if M is None else M)), np.dtype(dtype))


def diag(v: Any, k: Any = 0) -> Meta | None:
    if type(v) is not Meta:
        return None
    k = operator.index(k)
    if v.ndim == 1:
        side = v.size + abs(k)
        return fresh((side, side), v.dtype)
    if v.ndim != 2:
        return None
    rows, columns = (v.shape[0] + k, v.shape[1]) if k < 0 else (v.shape[0], v.shape[1] - k)
    return fresh((max(0, min(rows, columns)),), v.dtype)


def diagflat(v: Any, k: Any = 0) -> Meta | None:
    return diag(fresh((v.size,), v.dtype), k) if type(v) is Meta else None


def indices(dimensions: Any, dtype: Any = int) -> Meta:
    shape = tuple(operator.index(n) for n in dimensions)
    return fresh((len(shape), *shape), np.dtype(dtype))


def vander(x: Any, N: Any = None, increasing: bool = False) -> Meta | None:
    if type(x) is not Meta or x.ndim != 1:
        return None
    columns = x.size if N is None else operator.index(N)
    return fresh((x.size, columns), np.promote_types(x.dtype, int)) if columns >= 0 else None


def logspace(
    start: Any,
    stop: Any,
    num: Any = 50,
    endpoint: bool = True,
    base: Any = 10.0,
    dtype: Any = None,
    axis: Any = 0,
) -> Meta | None:
    if not all(isinstance(x, int | float) for x in (start, stop, base)) or num < 0 or axis:
        return None
    return fresh((operator.index(num),), _FLOAT if dtype is None else np.dtype(dtype))


def linspace(
    start: Any,
    stop: Any,
    num: Any = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: Any = None,
    axis: Any = 0,
) -> Meta | None:
    if retstep or num < 0:
        return None
    operands = [
        np.empty(x.shape and (0,), x.dtype) if type(x) is Meta else np.asarray(x) for x in (start, stop)
    ]
    shape = np.broadcast_shapes(*[x.shape if type(x) is Meta else np.shape(x) for x in (start, stop)])
    index = one(axis, len(shape) + 1)
    result = np.result_type(*operands, float(num)) if dtype is None else np.dtype(dtype)
    return fresh((*shape[:index], operator.index(num), *shape[index:]), result)


def _triangle(lower: bool) -> Callable[..., Any]:
    def rule(n: Any, k: Any = 0, m: Any = None) -> Any:
        n = operator.index(n)
        m = n if m is None else operator.index(m)
        below = np.clip(np.arange(n) + k + (1 if lower else 0), 0, m).sum()
        count = int(below if lower else n * m - below)
        return fresh((count,), _INT), fresh((count,), _INT)

    return rule


def _triangle_of(lower: bool) -> Callable[..., Any]:
    def rule(arr: Any, k: Any = 0) -> Any:
        return _triangle(lower)(arr.shape[0], k, arr.shape[1]) if arr.ndim == 2 else None

    return rule


def diag_indices(n: Any, ndim: Any = 2) -> Any:
    return (fresh((operator.index(n),), _INT),) * operator.index(ndim)


def diag_indices_from(arr: Any) -> Any:
    return diag_indices(arr.shape[0], arr.ndim) if arr.ndim > 1 and len(set(arr.shape)) == 1 else None


def meshgrid(*xi: Any, indexing: str = "xy", copy: bool = True, sparse: bool = False) -> Any:
    if not all(type(x) is Meta and x.ndim == 1 for x in xi) or indexing not in ("xy", "ij"):
        return None
    sizes = [x.size for x in xi]
    order = list(range(len(sizes)))
    if indexing == "xy" and len(sizes) > 1:
        order[:2] = 1, 0
    shape = tuple(sizes[i] for i in order)
    if not sparse:
        return tuple(fresh(shape, x.dtype) for x in xi)
    return tuple(
        fresh(tuple(x.size if axis == i else 1 for axis in order), x.dtype) for i, x in enumerate(xi)
    )


def poly(seq_of_zeros: Any) -> Any:
    x = seq_of_zeros
    return fresh((x.size + 1,), np.dtype(np.mintypecode(x.dtype.char))) if x.ndim == 1 else WAIT


def polysub(a1: Any, a2: Any) -> Meta | None:
    return polysum(a1, a2) if (a1.dtype.kind, a2.dtype.kind) != ("b", "b") else None


def polysum(a1: Any, a2: Any) -> Meta:
    return fresh((max(a1.size, a2.size),), np.result_type(a1.dtype, a2.dtype))


def polyval(p: Any, x: Any) -> Meta | None:
    return fresh(x.shape, np.result_type(p.dtype, x.dtype)) if p.ndim == 1 else None


RULES: dict[str, Callable[..., Any]] = {
    **dict.fromkeys("bartlett blackman hamming hanning kaiser".split(), window),
    "tri": tri, "diag": diag, "diagflat": diagflat, "indices": indices, "vander": vander,
    "logspace": logspace,
    "linspace": linspace, "tril_indices": _triangle(True), "triu_indices": _triangle(False),
    "tril_indices_from": _triangle_of(True), "triu_indices_from": _triangle_of(False),
    "diag_indices": diag_indices, "diag_indices_from": diag_indices_from, "meshgrid": meshgrid,
    "poly": poly, "polyadd": polysum, "polysub": polysub, "polyval": polyval,
}  # fmt: skip
