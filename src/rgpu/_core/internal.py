"""``cupy._core.internal``: arithmetic of shapes, slices and axes. Pure; knows no array."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from rgpu.client.predict import axes


def prod(args: Iterable[int]) -> int:
    return math.prod(args)


prod_sequence = prod


def get_size(size: Any) -> tuple[int, ...]:
    """A shape from a number or a sequence of numbers. TypeError for None and truth values."""
    if size is None:
        raise TypeError("Use () not None as shape arguments")
    try:
        shape = tuple(size)
    except TypeError:  # a number, or an array without axes
        shape = (size,)
    if any(isinstance(x, bool | np.bool_) or getattr(x, "dtype", None) == np.bool_ for x in shape):
        raise TypeError("a truth value is no length of an axis")
    return shape


def clp2(x: int) -> int:
    """The smallest power of two that is not less than ``x``."""
    return 1 << (int(x) - 1).bit_length() if x > 0 else 0


def vector_equal(x: Sequence[int], y: Sequence[int]) -> bool:
    return tuple(x) == tuple(y)


def is_in(args: Iterable[int], a: int) -> bool:
    return a in args


def complete_slice(slc: slice, dim: int) -> slice:
    """The slice with its start, stop and step written out for an axis of ``dim`` elements; an empty one stops where it
    starts."""
    start, stop, step = slc.indices(dim)
    return slice(start, max(start, stop) if step > 0 else min(start, stop), step)


def get_c_contiguity(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> bool:
    """Whether elements lie one after the other, the last axis fastest; strides of axes of length 1 say nothing."""
    if 0 in shape:
        return True
    expected = itemsize
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent != 1:
            if stride != expected:
                return False
            expected *= extent
    return True


def infer_unknown_dimension(shape: Sequence[int], size: int) -> list[int]:
    """A shape of ``size`` elements with its one negative extent filled in. ValueError where none or several fit."""
    unknown = [k for k, extent in enumerate(shape) if extent < 0]
    known = math.prod(extent for extent in shape if extent >= 0)
    if len(unknown) > 1:
        raise ValueError("can only specify one unknown dimension")
    if not unknown and known == size:
        return list(shape)
    if not unknown or not known or size % known:
        raise ValueError(f"cannot reshape array of size {size} into shape {tuple(shape)}")
    return [size // known if extent < 0 else extent for extent in shape]


def _normalize_axis_index(axis: int, ndim: int) -> int:
    return axes.one(axis, ndim)


def _normalize_axis_indices(axis: Any, ndim: int, sort_axes: bool = True) -> tuple[int, ...]:
    """None (all axes), a number or a tuple as a tuple of non-negative numbers. AxisError, or ValueError for doubles."""
    if axis is None:
        return tuple(range(ndim))
    given = axis if isinstance(axis, tuple) else (axis,)
    found = []
    for one in given:
        index = axes.one(one, ndim)
        if index in found:
            raise ValueError("Duplicate value in 'axis'")
        found.append(index)
    return tuple(sorted(found) if sort_axes else found)


def _broadcast_shapes(shapes: Iterable[Sequence[int]]) -> tuple[int, ...]:
    return np.broadcast_shapes(*[tuple(shape) for shape in shapes])
