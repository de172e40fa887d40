"""What a result will look like, before it exists.

Rules for element-wise functions, reductions and the common constructions; a dry run of NumPy on
small stand-ins for the rest; and what was learned from earlier answers. A rule returns a tree of
``Meta`` (None: unknown, the caller waits for the worker's answer). Never for data-dependent
results. NumPy's own errors surface from here, on the line that made them.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from rgpu.client.meta import Meta, fresh

AxisError = np.exceptions.AxisError
_elementwise: dict[Any, Any] = {}
learned: dict[Any, Any] = {}

#: NumPy 2 spellings for a client that still has NumPy 1.26
_OLD_NAMES = {
    "asin": "arcsin", "acos": "arccos", "atan": "arctan", "asinh": "arcsinh", "acosh": "arccosh",
    "atanh": "arctanh", "atan2": "arctan2", "pow": "power", "bitwise_invert": "invert",
    "bitwise_left_shift": "left_shift", "bitwise_right_shift": "right_shift", "concat": "concatenate",
}  # fmt: skip


def numpy_function(name: str) -> Any:
    """NumPy's function of CuPy's dotted path, or None."""
    found: Any = np
    for part in name.split("."):
        found = getattr(found, part, None) or getattr(found, _OLD_NAMES.get(part, ""), None)
    return found


def scalar_key(x: Any) -> Any:
    """What of a scalar decides the result's dtype: its type, and for integers which dtypes hold it."""
    kind = type(x)
    if kind is int:
        return kind, x < 0, 0 if -128 <= x <= 127 else (x if x >= 0 else ~x).bit_length()
    if isinstance(x, np.generic):
        return x.dtype
    return kind


def elementwise(name: str, operands: tuple, **options: Any) -> Meta | tuple[Meta, ...]:
    """Layouts of ``name(*operands)``; operands are Meta or scalars. Raises as NumPy does."""
    key = (name, *[x if type(x) is Meta else scalar_key(x) for x in operands], *options.items())
    found = _elementwise.get(key)
    if found is None:
        found = _elementwise[key] = _elementwise_rule(name, operands, options)
    return found


def _elementwise_rule(name: str, operands: tuple, options: dict) -> Any:
    ufunc = numpy_function(name)
    dummies = [np.empty((0,), x.dtype) if type(x) is Meta else x for x in operands]
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = ufunc(*dummies, **options)
    shape = np.broadcast_shapes(*[x.shape for x in operands if type(x) is Meta])
    if isinstance(result, tuple):
        return tuple(fresh(shape, item.dtype) for item in result)
    return fresh(shape, result.dtype)


def inplace(name: str, target: Meta, operand: Any) -> None:
    """Check ``name(target, operand, out=target)``; raises NumPy's error where it does not fit."""
    key = ("out", name, target, operand if type(operand) is Meta else scalar_key(operand))
    if key in _elementwise:
        return
    result = elementwise(name, (target, operand))
    if result.shape != target.shape:
        raise ValueError(
            f"non-broadcastable output operand with shape {target.shape} "
            f"doesn't match the broadcast shape {result.shape}"
        )
    dummy = np.empty((0,), target.dtype)
    other = np.empty((0,), operand.dtype) if type(operand) is Meta else operand
    numpy_function(name)(dummy, other, out=dummy, casting="same_kind")
    _elementwise[key] = True


def normalize_axis(axis: Any, ndim: int) -> tuple[int, ...]:
    """Axes as sorted non-negative integers; None means all. Raises AxisError, ValueError."""
    if axis is None:
        return tuple(range(ndim))
    axes = axis if isinstance(axis, tuple | list) else (axis,)
    result = []
    for item in axes:
        item = operator.index(item)
        if not -ndim <= item < ndim:
            raise AxisError(item, ndim)
        result.append(item % ndim)
    if len(set(result)) != len(result):
        raise ValueError("duplicate value in 'axis'")
    return tuple(sorted(result))


_NO_EMPTY = set("max min amax amin argmax argmin ptp nanmax nanmin nanargmax nanargmin".split())


def reduction(name: str, a: Meta, axis: Any = None, dtype: Any = None, keepdims: bool = False, **rest: Any) -> Meta | None:
    """Layout of a reduction over ``axis``."""
    if rest.get("weights") is not None or rest.get("returned"):
        return None
    axes = normalize_axis(axis, a.ndim)
    if name in _NO_EMPTY and any(a.shape[i] == 0 for i in axes):
        return None
    options = {} if dtype is None else {"dtype": dtype}
    key = (name, a.dtype, np.dtype(dtype) if dtype is not None else None)
    result = _elementwise.get(key)
    if result is None:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sample = np.asarray(numpy_function(name)(np.ones((1,), a.dtype), **options))
        result = _elementwise[key] = sample.dtype
    if keepdims:
        shape = tuple(1 if i in axes else n for i, n in enumerate(a.shape))
    else:
        shape = tuple(n for i, n in enumerate(a.shape) if i not in axes)
    return fresh(shape, result)


def scan(name: str, a: Meta, axis: Any = None, dtype: Any = None) -> Meta:
    """Layout of a cumulative operation; axis None flattens."""
    options = {} if dtype is None else {"dtype": dtype}
    result = numpy_function(name)(np.ones((1,), a.dtype), **options).dtype
    if axis is None:
        return fresh((a.size,), result)
    normalize_axis(axis, a.ndim)
    return fresh(a.shape, result)


def matmul(a: Meta, b: Meta) -> Meta:
    """Layout of ``a @ b``."""
    if not a.ndim or not b.ndim:
        raise ValueError("matmul: Input operand does not have enough dimensions")
    left, right = a.shape if a.ndim > 1 else (1, *a.shape), b.shape if b.ndim > 1 else (*b.shape, 1)
    if left[-1] != right[-2]:
        raise ValueError(
            f"matmul: Input operand 1 has a mismatch in its core dimension 0 "
            f"(size {right[-2]} is different from {left[-1]})"
        )
    batch = np.broadcast_shapes(left[:-2], right[:-2])
    core = (left[-2],) * (a.ndim > 1) + (right[-1],) * (b.ndim > 1)
    return fresh(batch + core, _product_dtype(a, b))


def dot(a: Meta, b: Meta) -> Meta:
    """Layout of ``dot(a, b)``."""
    if not a.ndim or not b.ndim:
        return fresh(a.shape + b.shape, _product_dtype(a, b))
    inner = b.shape[-2] if b.ndim > 1 else b.shape[0]
    if a.shape[-1] != inner:
        raise ValueError("Axis dimension mismatch")
    rest = b.shape[:-2] + b.shape[-1:] if b.ndim > 1 else ()
    return fresh(a.shape[:-1] + rest, _product_dtype(a, b))


def _product_dtype(a: Meta, b: Meta) -> np.dtype:
    return np.result_type(a.dtype, b.dtype)


def concatenate(arrays: Any, axis: Any = 0, dtype: Any = None, **_: Any) -> Meta | None:
    """Layout of ``concatenate(arrays, axis)``."""
    if dtype is not None or not isinstance(arrays, list | tuple) or not arrays:
        return None
    if not all(type(x) is Meta for x in arrays):
        return None
    result = np.result_type(*[x.dtype for x in arrays])
    if axis is None:
        return fresh((sum(x.size for x in arrays),), result)
    first = arrays[0]
    (index,) = normalize_axis(axis, first.ndim)
    total = 0
    for x in arrays:
        if x.ndim != first.ndim or x.shape[:index] + x.shape[index + 1 :] != first.shape[:index] + first.shape[index + 1 :]:
            return None  # the worker says what is wrong
        total += x.shape[index]
    return fresh((*first.shape[:index], total, *first.shape[index + 1 :]), result)


def stack(arrays: Any, axis: Any = 0, **rest: Any) -> Meta | None:
    """Layout of ``stack(arrays, axis)``."""
    if rest or not isinstance(arrays, list | tuple) or not arrays or not all(type(x) is Meta for x in arrays):
        return None
    if len({x.shape for x in arrays}) > 1:
        return None
    first = arrays[0]
    (index,) = normalize_axis(axis, first.ndim + 1)
    shape = (*first.shape[:index], len(arrays), *first.shape[index:])
    return fresh(shape, np.result_type(*[x.dtype for x in arrays]))


def where(condition: Any, x: Any = None, y: Any = None) -> Meta | None:
    """Layout of the three-argument ``where``."""
    if x is None or y is None:
        return None
    operands = (condition, x, y)
    dummies = [np.empty((0,), o.dtype) if type(o) is Meta else o for o in operands]
    shape = np.broadcast_shapes(*[o.shape for o in operands if type(o) is Meta])
    return fresh(shape, np.where(*dummies).dtype)


def clip(a: Any, a_min: Any = None, a_max: Any = None, **rest: Any) -> Meta | None:
    """Layout of ``clip``."""
    bounds = [x for x in (a_min, a_max) if x is not None]
    if rest or type(a) is not Meta or not bounds:
        return None
    return elementwise("minimum", (a, *bounds)) if len(bounds) == 1 else _clip_two(a, *bounds)


def _clip_two(a: Meta, low: Any, high: Any) -> Meta:
    first = elementwise("maximum", (a, low))
    return elementwise("minimum", (first, high))


def same(a: Any, *_: Any, **rest: Any) -> Meta | None:
    """Layout equal to the first argument's, in C order (sort, roll, flip, ...)."""
    return fresh(a.shape, a.dtype) if type(a) is Meta else None


def sort(a: Any, axis: Any = -1, **_: Any) -> Meta | None:
    if type(a) is not Meta or not a.ndim:
        return None
    if axis is None:
        return fresh((a.size,), a.dtype)
    normalize_axis(axis, a.ndim)
    return fresh(a.shape, a.dtype)


def argsort(a: Any, axis: Any = -1, **_: Any) -> Meta | None:
    found = sort(a, axis)
    return found and fresh(found.shape, np.dtype(np.int64))


def take(a: Any, indices: Any, axis: Any = None, **rest: Any) -> Meta | None:
    if type(a) is not Meta or rest:
        return None
    shape = indices.shape if type(indices) is Meta else np.shape(indices)
    if axis is None:
        return fresh(shape, a.dtype)
    (index,) = normalize_axis(axis, a.ndim)
    return fresh((*a.shape[:index], *shape, *a.shape[index + 1 :]), a.dtype)


def creation(shape: Any, *_: Any, dtype: Any = None, **__: Any) -> Meta:
    return fresh(shape, np.dtype(dtype))


RULES: dict[str, Callable[..., Any]] = {
    "matmul": matmul, "linalg.matmul": matmul, "dot": dot, "concatenate": concatenate, "concat": concatenate,
    "stack": stack, "where": where, "clip": clip, "roll": same, "sort": sort, "argsort": argsort, "take": take,
    "tril": same, "triu": same,
}  # fmt: skip

_DRY_SIZE = 1024


def predict(name: str, kind: str, args: tuple, kwargs: dict) -> Any:
    """Tree of Meta for a call whose arrays are given as Meta, or None when only the worker knows.

    A TypeError of a rule's own signature means that the call is unusual: the worker decides.
    """
    try:
        if kind == "reduce":
            return reduction(name, *args, **kwargs)
        if kind == "scan":
            return scan(name, *args, **kwargs)
        rule = RULES.get(name)
        if rule is not None:
            found = rule(*args, **kwargs)
            if found is not None:
                return found
        if kind == "pure":
            return _dry_run(name, args, kwargs)
    except (TypeError, AttributeError):
        return None
    return None


def _dry_run(name: str, args: tuple, kwargs: dict) -> Any:
    """Run NumPy on ones of the same layout when that costs next to nothing."""
    function = numpy_function(name)
    if function is None:
        return None
    total = 0

    def stand_in(x: Any) -> Any:
        nonlocal total
        if type(x) is Meta:
            total += x.size
            if total > _DRY_SIZE:
                raise _TooLarge
            return np.ones(x.shape, x.dtype)
        if isinstance(x, tuple | list):
            return type(x)(stand_in(item) for item in x)
        if isinstance(x, int) and abs(x) > _DRY_SIZE:
            raise _TooLarge
        if isinstance(x, np.ndarray) and x.size > _DRY_SIZE:
            raise _TooLarge
        return x

    try:
        args = tuple(stand_in(x) for x in args)
        kwargs = {key: stand_in(x) for key, x in kwargs.items()}
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _metas(function(*args, **kwargs))
    except _TooLarge:
        return None
    except Exception:  # singular stand-ins, unusual arguments: the worker knows
        return None


class _TooLarge(Exception):
    pass


def _metas(result: Any) -> Any:
    if isinstance(result, np.ndarray | np.generic):
        return None if result.dtype.hasobject else fresh(result.shape, result.dtype)
    if isinstance(result, tuple | list):
        items = [_metas(item) for item in result]
        return None if any(item is None for item in items) else type(result)(items) if type(result) in (tuple, list) else tuple(items)
    return None
