"""Arithmetic of indices that are tuples of slices with positive steps: what two have in common, and where.

Pure numbers; an index here is normalized: one slice an axis, with start, stop and step, none of them None.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def _extgcd(a: int, b: int) -> tuple[int, int]:
    """(g, x) with g = gcd(a, b) and a x = g modulo b."""
    g, x, rest, y = a, 1, b, 0
    while rest:
        quotient = g // rest
        g, rest = rest, g - quotient * rest
        x, y = y, x - quotient * y
    return g, x


def _slice_intersection(a: slice, b: slice, length: int) -> slice | None:
    """The elements that both slices of an axis take, as a slice; None if there are none."""
    a_start, a_stop, a_step = a.indices(length)
    b_start, b_stop, b_step = b.indices(length)
    g, x = _extgcd(a_step, b_step)
    if (b_start - a_start) % g:
        return None
    step = a_step // g * b_step
    first = a_start + a_step * ((b_start - a_start) // g * x % (b_step // g))
    low, stop = max(a_start, b_start), min(a_stop, b_stop)
    first += -(-(low - first) // step) * step if first < low else -((first - low) // step) * step
    return slice(first, stop, step) if first < stop else None


def _index_for_subslice(a: slice, sub: slice, length: int) -> slice:
    """Where the elements of ``sub``, all of them in ``a``, are within ``a``."""
    a_start, _, a_step = a.indices(length)
    start, stop, step = sub.indices(length)
    return slice((start - a_start) // a_step, (stop - a_start - 1) // a_step + 1, step // a_step)


def _index_intersection(a: tuple, b: tuple, shape: tuple) -> tuple | None:
    """What two indices have in common, or None."""
    found = [_slice_intersection(x, y, n) for x, y, n in zip(a, b, shape)]
    return None if None in found else tuple(found)


def _index_for_subindex(a: tuple, sub: tuple, shape: tuple) -> tuple:
    """Where the elements of an index, all of them in ``a``, are within ``a``."""
    return tuple(_index_for_subslice(x, y, n) for x, y, n in zip(a, sub, shape))


def _shape_after_indexing(shape: tuple, index: tuple) -> tuple:
    return tuple(len(range(*part.indices(n))) for part, n in zip(index, shape))


def _normalize_index(shape: tuple, index: Any) -> tuple:
    """One slice an axis with all its numbers; integers become slices of one element."""
    given = index if isinstance(index, tuple) else (index,)
    if len(given) > len(shape):
        raise IndexError(f"too many indices: the array has {len(shape)} dimensions, but {len(given)} were indexed")
    found = []
    for axis, n in enumerate(shape):
        part = given[axis] if axis < len(given) else slice(None)
        if isinstance(part, int | np.integer):
            if not -n <= part < n:
                raise IndexError(f"index {part} is out of bounds for axis {axis} with size {n}")
            part = slice(int(part) % n, int(part) % n + 1, 1)
        if not isinstance(part, slice):
            raise ValueError(f"an index of a distributed array has integers and slices, not {part!r}")
        if part.step == 0:
            raise ValueError("slice step must be nonzero")
        if part.step is not None and part.step < 0:
            raise ValueError("the steps of a distributed array's indices are positive")
        start, stop, step = part.indices(n)
        found.append(slice(start, max(start, stop), step))
    return tuple(found)
