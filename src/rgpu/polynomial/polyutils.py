"""``cupy.polynomial.polyutils``: coefficients brought into shape. Counting zeros waits, as in CuPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from rgpu.functions import creation, dispatch
from rgpu.functions.polynomials import trim_zeros


def trimseq(seq: Any) -> Any:
    """The series without its trailing zeros, but at least one coefficient."""
    if seq.ndim == 0:
        raise TypeError("Input must be 1-d array")
    if seq.ndim > 1:
        raise ValueError("Input must be 1-d array")
    if not seq.size:
        return seq
    result = trim_zeros(seq, "b")
    return result if result.size else seq[:1]


def as_series(alist: Any, trim: bool = True) -> list:
    """The arguments as 1-d arrays of one inexact dtype."""
    arrays = []
    for a in alist:
        if not a.size:
            raise ValueError("Coefficient array is empty")
        if a.ndim > 1:
            raise ValueError("Coefficient array is not 1-d")
        if a.dtype.kind == "b":
            raise ValueError("Coefficient arrays have no common type")
        arrays.append(trimseq(a.ravel()) if trim else a.ravel())
    dtype = np.result_type(*[_inexact(a.dtype) for a in arrays])
    return [a.astype(dtype, copy=False) for a in arrays]


def _inexact(dtype: np.dtype) -> np.dtype:
    return dtype if dtype.kind in "fc" else np.dtype(float)


def trimcoef(c: Any, tol: Any = 0) -> Any:
    """The coefficients without small (absolute value up to ``tol``) trailing ones."""
    if tol < 0:
        raise ValueError("tol must be non-negative")
    if not c.size:
        raise ValueError("Coefficient array is empty")
    if c.ndim > 1:
        raise ValueError("Coefficient array is not 1-d")
    if c.dtype.kind == "b":
        raise ValueError("bool inputs are not allowed")
    c = c.ravel().astype(_inexact(c.dtype), copy=False)
    large = dispatch.call("flatnonzero", abs(c) > tol)
    return c[: int(large[-1]) + 1] if large.size else creation.zeros(1, c.dtype)
