"""``cupy.polynomial.polynomial``: power series, lowest power first."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from rgpu.functions import creation, namespace, shapes
from rgpu.polynomial import polyutils

namespace.fill(globals(), "cupy.polynomial.polynomial")


def polyvander(x: Any, deg: Any) -> Any:
    """The powers 0..deg of the points, along a new last axis."""
    try:
        deg = operator.index(deg)
    except TypeError:
        raise TypeError(f"deg must be an integer, received {deg}") from None
    if deg < 0:
        raise ValueError("degree must be non-negative")
    x = x.ravel() if x.ndim == 0 else x
    kind = np.dtype(float) if x.dtype.kind in "biu" else x.dtype
    powers = creation.arange(deg + 1, dtype=kind).reshape((-1, *(1,) * x.ndim))
    return shapes.NAMES["moveaxis"](x**powers, 0, -1)


def polycompanion(c: Any) -> Any:
    """The companion matrix of a series without trailing zeros (counting them waits)."""
    [c] = polyutils.as_series([c])
    deg = c.size - 1
    if deg == 0:
        raise ValueError("Series must have maximum degree of at least 1.")
    matrix = creation.eye(deg, k=-1, dtype=c.dtype)
    matrix[:, -1] -= c[:-1] / c[-1]
    return matrix
