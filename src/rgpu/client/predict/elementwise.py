"""Layouts of element-wise results: shape by broadcasting, dtype by NumPy's own ufunc on empty arrays.

The hot path of operators: one dictionary look-up for a signature that was seen before. NumPy's
errors surface from here, on the line that made them. Never touches data.
"""

from __future__ import annotations

import operator
import warnings
from typing import Any

import numpy as np

from rgpu.client.meta import Meta, broadcast, fresh
from rgpu.wire.values import OLD_NUMPY

_elementwise: dict[Any, Any] = {}

_OF_RECORDS = {"equal": operator.eq, "not_equal": operator.ne}


_POWERS = ("power", "pow")


def _exponent(x: Any) -> Any:
    """A stand-in for an exponent: NumPy refuses negative integers, CuPy takes them."""
    return 1 if isinstance(x, int) and not isinstance(x, bool) and -(2**7) <= x < 0 else x


def numpy_function(name: str) -> Any:
    """NumPy's function of CuPy's dotted path, or None."""
    found: Any = np
    for part in name.split("."):
        found = getattr(found, part, None)
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


_INTEGERS_STAY = ("floor", "ceil", "trunc")


def _resolved(ufunc: np.ufunc, operands: tuple) -> Any:
    """The dtypes of a ufunc's results by NumPy 2's rules, in a NumPy 1: by types alone, and Python's numbers weak."""
    kinds = [x.dtype if isinstance(x, Meta | np.generic) else type(x) for x in operands]
    kinds = [np.dtype(bool) if kind is bool else kind for kind in kinds]
    if ufunc.__name__ in _INTEGERS_STAY and kinds[0].kind in "biu":
        return [kinds[0]]
    *inputs, _ = found = ufunc.resolve_dtypes((*kinds, *[None] * ufunc.nout))
    if found[-1].kind != "b":
        for x, dtype in zip(operands, inputs):
            if type(x) is int and dtype.kind in "iu" and not np.iinfo(dtype).min <= x <= np.iinfo(dtype).max:
                raise OverflowError(f"Python integer {x} out of bounds for {dtype}")
    return found[ufunc.nin :]


def _elementwise_rule(name: str, operands: tuple, options: dict) -> Any:
    ufunc = numpy_function(name)
    if OLD_NUMPY and isinstance(ufunc, np.ufunc) and not options:
        shape = broadcast(*[x.shape if type(x) is Meta else () for x in operands])
        metas = tuple(fresh(shape, dtype) for dtype in _resolved(ufunc, operands))
        return metas if len(metas) > 1 else metas[0]
    dummies = [np.empty((0,), x.dtype) if type(x) is Meta else x for x in operands]
    if name in _POWERS and np.result_type(dummies[0]).kind != "u":
        dummies[1] = _exponent(dummies[1])
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if name in _OF_RECORDS and any(x.dtype.kind == "V" for x in operands if hasattr(x, "dtype")):
            result = _OF_RECORDS[name](*dummies)  # no ufunc compares structured values
        else:
            result = ufunc(*dummies, **options)
    shape = broadcast(*[x.shape if type(x) is Meta else () for x in operands])
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
    if name in _POWERS and dummy.dtype.kind != "u":
        other = _exponent(other)
    numpy_function(name)(dummy, other, out=dummy, casting="same_kind")
    _elementwise[key] = True
