"""Rules for results put together from whole arrays: joining, repeating, padding, products of extents.

Each rule has CuPy's parameters and returns a layout, or None where the worker must decide.
"""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from rgpu.client.meta import Meta, fresh
from rgpu.client.predict import dry
from rgpu.client.predict.axes import common, metas, normalize, one, replaced, shape_of
from rgpu.client.predict.elementwise import elementwise


def concatenate(
    tup: Any, axis: Any = 0, out: Any = None, *, dtype: Any = None, casting: str = "same_kind"
) -> Meta | None:
    arrays = metas(tup)
    if arrays is None or casting != "same_kind":
        return None
    if axis is None:
        return fresh((sum(x.size for x in arrays),), common(arrays, dtype))
    first = arrays[0]
    index = one(axis, first.ndim)
    rest = replaced(first.shape, index)
    if any(x.ndim != first.ndim or replaced(x.shape, index) != rest for x in arrays):
        return None
    result = common(arrays, dtype)
    if not all(np.can_cast(x.dtype, result, casting) for x in arrays):
        return None
    return fresh(replaced(first.shape, index, sum(x.shape[index] for x in arrays)), result)


def stack(
    tup: Any, axis: Any = 0, out: Any = None, *, dtype: Any = None, casting: str = "same_kind"
) -> Meta | None:
    arrays = metas(tup)
    if arrays is None or len({x.shape for x in arrays}) > 1 or casting != "same_kind":
        return None
    first = arrays[0]
    index = one(axis, first.ndim + 1)
    result = common(arrays, dtype)
    if not all(np.can_cast(x.dtype, result, casting) for x in arrays):
        return None
    return fresh((*first.shape[:index], len(arrays), *first.shape[index:]), result)


def _at_least(x: Meta, ndim: int) -> Meta:
    """The layout that ``atleast_<ndim>d`` gives."""
    if x.ndim >= ndim:
        return x
    shape = {0: (1,) * ndim, 1: (1, *x.shape) if ndim == 2 else (1, *x.shape, 1), 2: (*x.shape, 1)}[x.ndim]
    return fresh(shape, x.dtype)


def vstack(tup: Any, *, dtype: Any = None, casting: str = "same_kind") -> Meta | None:
    arrays = metas(tup)
    if arrays is None:
        return None
    return concatenate([_at_least(x, 2) for x in arrays], 0, dtype=dtype, casting=casting)


def hstack(tup: Any, *, dtype: Any = None, casting: str = "same_kind") -> Meta | None:
    arrays = metas(tup)
    if arrays is None:
        return None
    arrays = tuple(fresh((1,), x.dtype) if not x.ndim else x for x in arrays)
    return concatenate(arrays, 0 if arrays[0].ndim == 1 else 1, dtype=dtype, casting=casting)


def dstack(tup: Any) -> Meta | None:
    arrays = metas(tup)
    return None if arrays is None else concatenate([_at_least(x, 3) for x in arrays], 2)


def column_stack(tup: Any) -> Meta | None:
    arrays = metas(tup)
    if arrays is None:
        return None
    columns = [fresh((x.size, 1), x.dtype) if x.ndim < 2 else x for x in arrays]
    return concatenate(columns, 1)


def append(arr: Any, values: Any, axis: Any = None) -> Meta | None:
    if type(arr) is not Meta or type(values) is not Meta:
        return None
    return concatenate([arr, values], axis)


def tile(A: Any, reps: Any) -> Meta | None:
    if type(A) is not Meta:
        return None
    reps = (
        tuple(operator.index(n) for n in reps) if isinstance(reps, tuple | list) else (operator.index(reps),)
    )
    ndim = max(len(reps), A.ndim)
    shape = (1,) * (ndim - A.ndim) + A.shape
    reps = (1,) * (ndim - len(reps)) + reps
    return None if min(reps, default=0) < 0 else fresh(tuple(n * r for n, r in zip(shape, reps)), A.dtype)


def repeat(a: Any, repeats: Any, axis: Any = None) -> Any:
    if type(repeats) is Meta:
        return dry.WAIT  # how long the result is stands in the data
    if type(a) is not Meta:
        return None
    shape = (a.size,) if axis is None else a.shape
    index = 0 if axis is None else one(axis, a.ndim)
    if isinstance(repeats, tuple | list):
        if len(repeats) == 1:
            total = shape[index] * operator.index(repeats[0])
        elif len(repeats) == shape[index] and min(repeats) >= 0:
            total = sum(map(operator.index, repeats))
        else:
            return None
    else:
        total = shape[index] * operator.index(repeats)
    return None if total < 0 else fresh(replaced(shape, index, total), a.dtype)


def pad(array: Any, pad_width: Any, mode: Any = "constant", **options: Any) -> Meta | None:
    allowed = {
        "constant": {"constant_values"}, "edge": set(), "wrap": set(), "empty": set(),
        "linear_ramp": {"end_values"},
        "maximum": {"stat_length"}, "mean": {"stat_length"}, "minimum": {"stat_length"},
        "reflect": {"reflect_type"}, "symmetric": {"reflect_type"},
    }  # fmt: skip
    if (
        type(array) is not Meta
        or mode not in allowed
        or set(options) - allowed[mode]
        or "stat_length" in options
    ):
        return None
    widths = np.asarray(pad_width)
    if widths.dtype.kind != "i" or widths.size and widths.min() < 0:
        return None
    widths = np.broadcast_to(widths, (array.ndim, 2))
    if not array.size and mode not in ("constant", "empty"):
        return None
    return fresh(tuple(n + int(w.sum()) for n, w in zip(array.shape, widths)), array.dtype)


def diff(a: Any, n: Any = 1, axis: Any = -1, prepend: Any = None, append: Any = None) -> Meta | None:
    if type(a) is not Meta or operator.index(n) < 1:
        return None
    index = one(axis, a.ndim)
    extent, dtypes = a.shape[index], [a.dtype]
    for extra in (prepend, append):
        if type(extra) is Meta:
            if extra.ndim not in (0, a.ndim):
                return None
            extent += extra.shape[index] if extra.ndim else 1
            dtypes.append(extra.dtype)
        elif extra is not None:
            if not isinstance(extra, numbers.Number):
                return None
            extent += 1
            dtypes.append(np.asarray(extra).dtype)
    if extent == 0:
        return None
    return fresh(replaced(a.shape, index, max(extent - n, 0)), np.result_type(*dtypes))


def ediff1d(arr: Any, to_end: Any = None, to_begin: Any = None) -> Meta | None:
    extra = [x for x in (to_end, to_begin) if x is not None]
    if type(arr) is not Meta or any(type(x) is not Meta for x in extra) or arr.dtype.kind == "b":
        return None
    if not all(np.can_cast(x.dtype, arr.dtype, "same_kind") for x in extra):
        return None
    return fresh((max(arr.size - 1, 0) + sum(x.size for x in extra),), arr.dtype)


def _convolved(a: Any, v: Any, mode: str) -> Meta | None:
    if type(a) is not Meta or type(v) is not Meta or not a.size or not v.size or a.ndim != 1 or v.ndim != 1:
        return None
    long, short = max(a.size, v.size), min(a.size, v.size)
    extent = {"full": long + short - 1, "same": long, "valid": long - short + 1}.get(mode)
    return None if extent is None else fresh((extent,), np.result_type(a.dtype, v.dtype))


def convolve(a: Any, v: Any, mode: str = "full") -> Meta | None:
    return _convolved(a, v, mode)


def correlate(a: Any, v: Any, mode: str = "valid") -> Meta | None:
    return _convolved(a, v, mode)


def outer(a: Any, b: Any, out: Any = None) -> Meta | None:
    if type(a) is not Meta or type(b) is not Meta:
        return None
    found: Any = elementwise("multiply", (fresh((a.size, 1), a.dtype), fresh((b.size,), b.dtype)))
    return found


def kron(a: Any, b: Any) -> Meta | None:
    if type(a) is not Meta or type(b) is not Meta:
        return None
    ndim = max(a.ndim, b.ndim)
    left, right = ((1,) * (ndim - x.ndim) + x.shape for x in (a, b))
    flat = elementwise("multiply", (fresh((), a.dtype), fresh((), b.dtype)))
    return fresh(tuple(n * m for n, m in zip(left, right)), flat.dtype)  # type: ignore[union-attr]


def vdot(a: Any, b: Any) -> Meta | None:
    if type(a) is not Meta or type(b) is not Meta or a.size != b.size:
        return None
    return fresh((), np.result_type(a.dtype, b.dtype))


def inner(a: Any, b: Any) -> Meta | None:
    if type(a) is not Meta or type(b) is not Meta:
        return None
    if not a.ndim or not b.ndim:
        return elementwise("multiply", (a, b))  # type: ignore[return-value]
    if a.shape[-1] != b.shape[-1]:
        return None
    return fresh(a.shape[:-1] + b.shape[:-1], np.result_type(a.dtype, b.dtype))


def tensordot(a: Any, b: Any, axes: Any = 2) -> Meta | None:
    if isinstance(axes, tuple | list):
        left, right = (normalize(x, m.ndim) for x, m in zip(axes, (a, b), strict=True))
    else:
        left, right = tuple(range(a.ndim - axes, a.ndim)), tuple(range(axes))
    if not a.ndim or not b.ndim or len(left) != len(right) or min(left, default=0) < 0:
        return None
    if any(a.shape[i] != b.shape[j] for i, j in zip(left, right)):
        return None
    rest = [n for i, n in enumerate(a.shape) if i not in left] + [
        n for i, n in enumerate(b.shape) if i not in right
    ]
    return fresh(tuple(rest), np.result_type(a.dtype, b.dtype))


def scan(name: str) -> Callable[..., Meta | None]:
    """The rule of a cumulative function: axis None flattens."""

    def rule(a: Any, axis: Any = None, dtype: Any = None, out: Any = None) -> Meta | None:
        options = {} if dtype is None else {"dtype": dtype}
        result = dry.dtype_of(name, fresh((1,), a.dtype), **options)
        if result is None:
            return None
        if axis is None:
            return fresh((a.size,), result)
        one(axis, a.ndim)
        return fresh(a.shape, result)

    return rule


def cumulative(
    x: Any, /, *, axis: Any = None, dtype: Any = None, out: Any = None, include_initial: bool = False
) -> Meta | None:
    shape = x.shape or (1,)
    if axis is None and len(shape) > 1:
        return None
    index = one(0 if axis is None else axis, len(shape))
    options = {} if dtype is None else {"dtype": dtype}
    result = dry.dtype_of("cumsum", fresh((1,), x.dtype), **options)
    return result and fresh(replaced(shape, index, shape[index] + bool(include_initial)), result)


def packbits(a: Any, axis: Any = None, bitorder: str = "big") -> Meta | None:
    if (
        type(a) is not Meta
        or a.dtype.kind not in "biu"
        or axis is not None
        or bitorder not in ("big", "little")
    ):
        return None
    return fresh(((a.size + 7) // 8,), np.dtype(np.uint8))


def unpackbits(a: Any, axis: Any = None, bitorder: str = "big") -> Meta | None:
    if type(a) is not Meta or a.dtype != np.uint8 or axis is not None or bitorder not in ("big", "little"):
        return None
    return fresh((a.size * 8,), np.dtype(np.uint8))


def tensorinv(a: Any, ind: int = 2) -> Meta | None:
    if type(a) is not Meta or ind <= 0 or math.prod(a.shape[:ind]) != math.prod(a.shape[ind:]):
        return None
    found = dry.dtype_of("linalg.inv", fresh((1, 1), a.dtype))
    return found and fresh(a.shape[ind:] + a.shape[:ind], found)


def tensorsolve(a: Any, b: Any, axes: Any = None) -> Meta | None:
    shape = a.shape
    if axes is not None:
        order = list(range(a.ndim))
        for k in axes:
            order.remove(k)
            order.append(k)
        shape = tuple(shape[i] for i in order)
    rest = shape[-(a.ndim - b.ndim) :]
    if math.prod(rest) ** 2 != a.size or math.prod(rest) != b.size:
        return None
    found = dry.dtype_of("linalg.solve", fresh((1, 1), a.dtype), fresh((1,), b.dtype))
    return found and fresh(rest, found)


def _complex_inexact(dtype: np.dtype) -> np.dtype:
    return np.result_type(dtype if dtype.kind in "fc" else np.float64, np.complex64)


def _square(a: Any) -> bool:
    return (
        type(a) is Meta and a.ndim > 1 and a.shape[-1] == a.shape[-2] and a.size > 0 and a.dtype.char != "e"
    )


def eig(a: Any) -> Any:
    kind = _complex_inexact(a.dtype)
    return (fresh(a.shape[:-1], kind), fresh(a.shape, kind)) if _square(a) else None


def eigvals(a: Any) -> Meta | None:
    return fresh(a.shape[:-1], _complex_inexact(a.dtype)) if _square(a) else None


def flat_membership(ar1: Any, ar2: Any, assume_unique: bool = False, invert: bool = False) -> Meta | None:
    return fresh((ar1.size,), np.dtype(bool)) if type(ar1) is Meta and type(ar2) is Meta else None


def membership(
    element: Any, test_elements: Any, assume_unique: bool = False, invert: bool = False
) -> Meta | None:
    ok = type(element) is Meta and type(test_elements) is Meta
    return fresh(shape_of(element), np.dtype(bool)) if ok else None


RULES: dict[str, Callable[..., Any]] = {
    "concatenate": concatenate, "concat": concatenate, "stack": stack, "vstack": vstack,
    "hstack": hstack, "dstack": dstack, "column_stack": column_stack, "append": append, "tile": tile,
    "repeat": repeat, "pad": pad, "diff": diff, "ediff1d": ediff1d, "convolve": convolve,
    "correlate": correlate, "outer": outer, "kron": kron, "vdot": vdot, "inner": inner,
    "tensordot": tensordot,
    **{name: scan(name) for name in "cumsum cumprod nancumsum nancumprod".split()},
    "cumulative_sum": cumulative, "cumulative_prod": cumulative,
    "packbits": packbits, "unpackbits": unpackbits, "linalg.tensorinv": tensorinv,
    "linalg.tensorsolve": tensorsolve, "linalg.eig": eig, "linalg.eigvals": eigvals,
    "in1d": flat_membership, "isin": membership,
}  # fmt: skip
