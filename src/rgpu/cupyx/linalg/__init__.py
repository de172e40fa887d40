"""``cupyx.linalg``: inverse and solution by Cholesky's factors."""

from __future__ import annotations

from typing import Any

import numpy as np

import rgpu as cp
from rgpu import surface
from rgpu.cupyx import lapack
from rgpu.cupyx.linalg import sparse as sparse


def invh(a: Any) -> Any:
    """Inverse of a Hermitian positive definite matrix (N, N). LinAlgError for another shape."""
    if a.ndim != 2:
        raise np.linalg.LinAlgError(f"{a.ndim}-dimensional array given. Array must be two-dimensional")
    return lapack.posv(a, cp.eye(len(a), dtype=a.dtype))


def cho_solve(c_and_lower: tuple, b: Any, overwrite_b: bool = False, check_finite: bool = True) -> Any:
    """Solution of ``A x = b`` for stacks of A (..., N, N) given by their Cholesky factors: see ``lapack.potrs``.

    ``b`` is never written. ``check_finite`` waits, as it does in CuPy: ValueError for a NaN or an infinity.
    """
    c, lower = c_and_lower
    if check_finite:
        triangle = cp.tril(c) if lower else cp.triu(c)
        if not bool(cp.isfinite(triangle).all() & cp.isfinite(b).all()):
            raise ValueError("Input array contains NaN or infinity.")
    return lapack.potrs(c, b, lower)


__getattr__, __dir__ = surface.face(__name__)
