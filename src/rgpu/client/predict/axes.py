"""Small questions about axes, shapes and dtypes that the rules share; NumPy's errors."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from rgpu.client.meta import Meta

AxisError = np.exceptions.AxisError


def normalize(axis: Any, ndim: int) -> tuple[int, ...]:
    """Axes as non-negative integers in the order given; None means all. Raises AxisError, ValueError."""
    if axis is None:
        return tuple(range(ndim))
    result = []
    for item in axis if isinstance(axis, tuple | list) else (axis,):
        item = operator.index(item)
        if not -ndim <= item < ndim:
            raise AxisError(item, ndim)
        result.append(item % ndim)
    if len(set(result)) != len(result):
        raise ValueError("duplicate value in 'axis'")
    return tuple(result)


def one(axis: Any, ndim: int) -> int:
    """A single axis, non-negative."""
    return normalize(operator.index(axis), ndim)[0]


def replaced(shape: tuple, axis: int, *extents: int) -> tuple[int, ...]:
    """The shape with one axis replaced by ``extents`` (none: removed)."""
    return (*shape[:axis], *extents, *shape[axis + 1 :])


def metas(x: Any) -> tuple | None:
    """The layouts in a sequence, or None if anything else is in it (or it is empty)."""
    if isinstance(x, tuple | list) and x and all(type(item) is Meta for item in x):
        return tuple(x)
    return None


def common(arrays: Any, dtype: Any = None) -> np.dtype:
    """The dtype of arrays joined."""
    return np.result_type(*[x.dtype for x in arrays]) if dtype is None else np.dtype(dtype)


def shape_of(x: Any) -> tuple:
    """Shape of an operand: layout, scalar, host sequence."""
    return x.shape if type(x) is Meta else np.shape(x)
