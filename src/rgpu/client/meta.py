"""Layouts: what the client knows of an array without having its data.

A ``Meta`` is (shape, dtype, strides), interned, so that equal layouts are one object and a
prediction can be looked up by identity. Its shadow is a NumPy array of that layout over memory
that does not exist: NumPy itself computes views on it. Nothing here may read a shadow's data.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np

from rgpu.wire.values import encode_dtype

_WINDOW = 1 << 46, (1 << 46) + (1 << 44)  # addresses that no allocation of the process can have
_SHADOW_BASE = (1 << 46) + (1 << 43)  # in its middle: views with negative strides begin below


class Meta:
    """One interned layout. ``c``/``f``: C- and Fortran-contiguous, by NumPy's rules."""

    __slots__ = ("shape", "dtype", "strides", "ndim", "size", "itemsize", "nbytes", "c", "f", "wire", "_shadow")

    def __init__(self, shape: tuple, dtype: np.dtype, strides: tuple) -> None:
        self.shape, self.dtype, self.strides = shape, dtype, strides
        self.ndim, self.itemsize = len(shape), dtype.itemsize
        self.size = math.prod(shape)
        self.nbytes = self.size * self.itemsize
        self.c = _contiguous(shape[::-1], strides[::-1], self.itemsize, self.size)
        self.f = _contiguous(shape, strides, self.itemsize, self.size)
        self.wire = encode_dtype(dtype)
        self._shadow: np.ndarray | None = None

    @property
    def shadow(self) -> np.ndarray:
        found = self._shadow
        if found is None:
            found = self._shadow = np.asarray(_Shadow(self)).view(self.dtype)
        return found

    def __repr__(self) -> str:
        return f"<Meta {self.dtype} {self.shape} strides={self.strides}>"


def shadow_at(meta: Meta, offset: int) -> np.ndarray:
    """A shadow ``offset`` bytes further on, to compare the places of arrays in one memory."""
    return np.asarray(_Shadow(meta, offset)).view(meta.dtype)


class _Shadow:
    def __init__(self, meta: Meta, offset: int = 0) -> None:
        self.__array_interface__: dict[str, Any] = {
            "version": 3,
            "shape": meta.shape,
            "typestr": f"|V{meta.itemsize}",
            "strides": meta.strides,
            "data": (_SHADOW_BASE + offset, False),
        }


def _contiguous(extents: tuple, strides: tuple, itemsize: int, size: int) -> bool:
    if size == 0:
        return True
    expected = itemsize
    for extent, stride in zip(extents, strides):
        if extent != 1:
            if stride != expected:
                return False
            expected *= extent
    return True


_interned: dict[Any, Meta] = {}
_fresh: dict[Any, Meta] = {}


def intern(shape: tuple, dtype: np.dtype, strides: tuple) -> Meta:
    """The one Meta of this layout. TypeError for extents that are no integers."""
    key = (shape, dtype, strides)
    found = _interned.get(key)
    if found is None:
        shape = tuple([operator.index(n) for n in shape])  # 3.0 would be found for 3 from then on
        if len(_interned) > 200_000:  # a program that makes endless shapes must not leak them
            _interned.clear()
            _fresh.clear()
        found = _interned.setdefault(key, Meta(shape, dtype, strides))
    return found


def fresh(shape: tuple, dtype: np.dtype) -> Meta:
    """The layout of a newly computed result: C order."""
    key = (shape, dtype)
    found = _fresh.get(key)
    if found is None:
        found = _fresh.setdefault(key, intern(shape, dtype, c_strides(shape, dtype.itemsize)))
    return found


def broadcast(*shapes: tuple) -> tuple:
    """The shape of arrays of these shapes together; ValueError as CuPy says it."""
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        texts = " ".join(map(str, shapes))
        raise ValueError(f"operands could not be broadcast together with shapes {texts}") from None


def reach(meta: Meta) -> tuple[int, int]:
    """The bytes that an array touches, counted from its first element: (at or below 0, above 0)."""
    steps = [(extent - 1) * stride for extent, stride in zip(meta.shape, meta.strides)]
    return sum(s for s in steps if s < 0), sum(s for s in steps if s > 0) + meta.itemsize


def c_strides(shape: tuple, itemsize: int) -> tuple:
    """Strides of a C-ordered array; like NumPy, all 0 when there is nothing to stride over."""
    if 0 in shape:
        return (0,) * len(shape)
    strides, step = [], itemsize
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def f_strides(shape: tuple, itemsize: int) -> tuple:
    """Strides of a Fortran-ordered array."""
    return c_strides(shape[::-1], itemsize)[::-1]


def ordered(meta: Meta, order: str, dtype: np.dtype | None = None, shape: tuple | None = None) -> Meta:
    """The layout of a copy of ``meta`` in order 'C', 'F', 'A' or 'K' (NumPy's meaning)."""
    dtype = meta.dtype if dtype is None else dtype
    if shape is not None and len(shape) != meta.ndim and order == "K":
        order = "C"
    shape = meta.shape if shape is None else shape
    if order == "A":
        order = "F" if meta.f and not meta.c else "C"
    if order == "K":
        if meta.c:
            order = "C"
        elif meta.f:
            order = "F"
        else:
            axes = sorted(range(meta.ndim), key=lambda i: (-abs(meta.strides[i]), i))
            step = c_strides(tuple(shape[i] for i in axes), dtype.itemsize)
            strides = [0] * meta.ndim
            for axis, stride in zip(axes, step):
                strides[axis] = stride
            return intern(shape, dtype, tuple(strides))
    if order == "F":
        return intern(shape, dtype, f_strides(shape, dtype.itemsize))
    return fresh(shape, dtype)


def view_of_shadow(result: np.ndarray) -> tuple[Meta, int] | None:
    """Layout and byte offset of a NumPy view made on a shadow, or None if it is a new array."""
    address = result.__array_interface__["data"][0]
    if not _WINDOW[0] <= address < _WINDOW[1]:
        if result.size:
            return None
        address = _SHADOW_BASE
    return intern(result.shape, result.dtype, result.strides), address - _SHADOW_BASE
