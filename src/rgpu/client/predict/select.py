"""Rules for picking, ordering and comparing: take, where, clip, sort, percentile, histogram, truth values.

Each rule has CuPy's parameters and returns a layout, ``WAIT`` where the data decides, or None.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from rgpu.client.meta import Meta, fresh
from rgpu.client.predict.axes import normalize, one, replaced, shape_of
from rgpu.client.predict.dry import WAIT
from rgpu.client.predict.elementwise import elementwise

_INT = np.dtype(np.int64)
_BOOL = np.dtype(bool)


def where(condition: Any, x: Any = None, y: Any = None) -> Any:
    if x is None and y is None:
        return WAIT
    if type(condition) is not Meta or any(x is None or isinstance(x, tuple | list) for x in (x, y)):
        return None
    operands = (condition, x, y)
    dummies = [np.empty((0,), o.dtype) if type(o) is Meta else o for o in operands]
    shape = np.broadcast_shapes(*[o.shape for o in operands if type(o) is Meta])
    return fresh(shape, np.where(*dummies).dtype)


def clip(a: Any, a_min: Any = None, a_max: Any = None, out: Any = None) -> Any:
    bounds = [x for x in (a_min, a_max) if x is not None]
    if type(a) is not Meta or not bounds:
        return None
    # All operands decide the dtype together: bool, 0 and float32(1) are float32, step by step float64.
    dummies = [np.empty((0,), x.dtype) if type(x) is Meta else x for x in (a, a_min, a_max)]
    shape = np.broadcast_shapes(*[np.shape(x) if not isinstance(x, Meta) else x.shape for x in (a, *bounds)])
    return fresh(shape, np.clip(*dummies).dtype)


def triangle(m: Any, k: Any = 0) -> Meta | None:
    """Layout of ``tril`` and ``triu``: a vector becomes a square."""
    if type(m) is not Meta or not m.ndim:
        return None
    return fresh(m.shape if m.ndim > 1 else m.shape * 2, m.dtype)


def same(a: Any, *_: Any, **rest: Any) -> Meta | None:
    """Layout equal to the first argument's, in C order."""
    return fresh(a.shape, a.dtype) if type(a) is Meta and "axis" not in rest else None


def roll(a: Any, shift: Any, axis: Any = None) -> Meta | None:
    if type(a) is not Meta or isinstance(shift, np.ndarray):
        return None
    for item in axis if isinstance(axis, tuple | list) else () if axis is None else (axis,):
        one(item, a.ndim)
    return fresh(a.shape, a.dtype)


def sort(a: Any, axis: Any = -1, kind: Any = None) -> Meta | None:
    if type(a) is not Meta or not a.ndim or kind not in (None, "stable"):
        return None
    if axis is None:
        return fresh((a.size,), a.dtype)
    one(axis, a.ndim)
    return fresh(a.shape, a.dtype)


def argsort(a: Any, axis: Any = -1, kind: Any = None) -> Meta | None:
    found = sort(a, axis, kind)
    return found and fresh(found.shape, _INT)


def partition(a: Any, kth: Any, axis: Any = -1) -> Meta | None:
    found = sort(a, axis)
    if found is None or isinstance(kth, Meta):
        return None
    extent = found.shape[0 if axis is None else one(axis, a.ndim)]
    inside = all(
        -extent <= operator.index(k) < extent for k in (kth if isinstance(kth, tuple | list) else (kth,))
    )
    return found if inside else None


def argpartition(a: Any, kth: Any, axis: Any = -1) -> Meta | None:
    found = partition(a, kth, axis)
    return found and fresh(found.shape, _INT)


def lexsort(keys: Any) -> Meta | None:
    return fresh(keys.shape[1:], _INT) if type(keys) is Meta and keys.ndim in (1, 2) else None


def take(a: Any, indices: Any, axis: Any = None, out: Any = None) -> Meta | None:
    if type(a) is not Meta or (type(indices) is Meta and indices.dtype.kind not in "biu"):
        return None
    shape = shape_of(indices)
    size = a.size if axis is None else a.shape[one(axis, a.ndim)]
    if not size and 0 not in shape:
        return None
    return fresh(shape if axis is None else replaced(a.shape, one(axis, a.ndim), *shape), a.dtype)


def truth(*arrays: Any, **_: Any) -> Meta | None:
    """A 0-d answer about whole arrays that fit any other array."""
    return fresh((), _BOOL) if all(type(x) is Meta for x in arrays[:2]) else None


def allclose(a: Any, b: Any, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: bool = False) -> Meta | None:
    elementwise("equal", (a, b))
    return fresh((), _BOOL)


def isclose(a: Any, b: Any, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: bool = False) -> Meta | None:
    if type(a) is not Meta and type(b) is not Meta:
        return None
    return fresh(elementwise("equal", (a, b)).shape, _BOOL)  # type: ignore[union-attr]


def searchsorted(a: Any, v: Any, side: str = "left", sorter: Any = None) -> Meta | None:
    if type(a) is not Meta or a.ndim != 1 or isinstance(v, np.ndarray | list | tuple):
        return None
    if sorter is not None and (sorter.size != a.size or sorter.dtype.kind not in "iu"):
        return None
    return fresh(shape_of(v), _INT)


def digitize(x: Any, bins: Any, right: bool = False) -> Meta | None:
    ok = (
        type(x) is Meta
        and type(bins) is Meta
        and bins.ndim == 1
        and "c" not in x.dtype.kind + bins.dtype.kind
    )
    return fresh(x.shape, _INT) if ok else None


def _quantile(
    scale: float, a: Any, q: Any, axis: Any = None, out: Any = None, overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False, *, interpolation: Any = None,
) -> Meta | None:  # fmt: skip
    q_shape = shape_of(q)
    if type(a) is not Meta or interpolation is not None or len(q_shape) > 1 or type(q) is Meta or not a.size:
        return None
    ratios = np.asarray(q, float) / scale
    if not ((ratios >= 0).any() and (ratios <= 1).any()):
        return None
    if method not in ("linear", "lower", "higher", "midpoint", "nearest"):
        return None
    axes = normalize(axis, a.ndim)
    asked = np.asarray(q) if q_shape else q
    asked = asked if scale == 1.0 else asked / scale  # the quantiles 0 and 1 of integers are integers
    dtype = a.dtype if method in ("lower", "higher", "nearest") else np.result_type(a.dtype, asked)
    if keepdims:
        rest = tuple(1 if i in axes else n for i, n in enumerate(a.shape))
    else:
        rest = tuple(n for i, n in enumerate(a.shape) if i not in axes)
    return fresh(q_shape + rest, dtype)


def histogram(x: Any, bins: Any = 10, range: Any = None, density: bool = False, weights: Any = None) -> Any:  # noqa: A002
    if type(x) is not Meta or x.dtype.kind == "c":
        return None
    if type(weights) is Meta and weights.shape != x.shape:
        return None
    if not isinstance(bins, int):
        return WAIT  # the edges are checked, as CuPy does
    if range is not None and not (len(range) == 2 and all(isinstance(n, int | float) for n in range)):
        return WAIT
    if range is not None and not (-math.inf < range[0] <= range[1] < math.inf):
        return None
    count, edges = bins, np.result_type(x.dtype, *(range or ()))
    edges = np.result_type(edges, np.float64) if edges.kind in "biu" else edges
    if count < 1:
        return None
    counts = (
        _INT if weights is None or weights.dtype.kind in "biu" else np.result_type(weights.dtype, np.float64)
    )
    if density:
        counts = np.result_type(counts, np.float64)
    return fresh((count,), counts), fresh((count + 1,), edges)


def ravel_multi_index(multi_index: Any, dims: Any, mode: Any = "wrap", order: str = "C") -> Any:
    if "raise" in (mode if isinstance(mode, tuple | list) else (mode,)) or order not in ("C", "F"):
        return None
    if type(multi_index) is Meta:
        return fresh(multi_index.shape[1:], _INT) if len(dims) == multi_index.shape[0] else None
    if len(multi_index) != len(dims) or not all(
        type(x) is Meta and x.dtype.kind in "iu" for x in multi_index
    ):
        return None
    return fresh(np.broadcast_shapes(*[x.shape for x in multi_index]), _INT)


def learn(*_: Any, **__: Any) -> None:
    """The signature decides, but only the worker knows: the first call waits."""


RULES: dict[str, Callable[..., Any]] = {
    "where": where, "clip": clip, "roll": roll, "sort": sort, "argsort": argsort, "take": take,
    "lexsort": lexsort, "msort": functools.partial(sort, axis=0),
    "partition": partition, "argpartition": argpartition, "tril": triangle, "triu": triangle,
    "array_equal": truth, "array_equiv": truth, "allclose": allclose, "isclose": isclose,
    "searchsorted": searchsorted, "digitize": digitize, "percentile": functools.partial(_quantile, 100.0),
    "quantile": functools.partial(_quantile, 1.0),
    "histogram": histogram, "histogram2d": learn, "histogramdd": learn,
    "ravel_multi_index": ravel_multi_index,
}  # fmt: skip
