"""``cupyx.lapack``: linear systems by the names of LAPACK's routines.

Each is made of the solvers that rgpu has; results are written into the arguments where CuPy documents it.
Singular or indefinite matrices are a LinAlgError at the next use that waits. Must not compute anything here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import rgpu as cp
from rgpu import surface
from rgpu.cupyx.scipy import linalg


def _system(a: Any, b: Any, wrong: type[Exception]) -> None:
    """Check that two arrays are one linear system of one of LAPACK's dtypes; ``wrong`` for its dtypes."""
    if a.ndim != 2 or b.ndim not in (1, 2):
        raise ValueError(f"a must have 2 dimensions and b 1 or 2 (actual: {a.ndim}, {b.ndim})")
    if a.shape[0] != b.shape[0]:
        raise ValueError(f"shape mismatch (a: {a.shape}, b: {b.shape}).")
    if a.dtype != b.dtype or a.dtype.char not in "fdFD":
        raise wrong(f"a and b must both be float32, float64, complex64 or complex128 (actual: {a.dtype}, {b.dtype})")


def gesv(a: Any, b: Any) -> None:
    """Solve ``a x = b`` and write x into b. ``a`` (M, M) and b (M,) or (M, K) of one dtype, b in Fortran order.

    The factors that CuPy leaves in ``a`` are not: it keeps its values.
    """
    if a.ndim == 2 and a.shape[0] != a.shape[1]:
        raise ValueError("a must be a square matrix.")
    _system(a, b, TypeError)
    if not (a.flags.f_contiguous or a.flags.c_contiguous):
        raise ValueError("a must be F-contiguous or C-contiguous.")
    if not b.flags.f_contiguous:
        raise ValueError("b must be F-contiguous.")
    b[...] = cp.linalg.solve(a, b)


def gels(a: Any, b: Any) -> Any:
    """The least-squares solution of ``a x = b``, of least norm where there are several, by QR factors.

    ``a`` (M, N) of full rank and b (M,) or (M, K) of one dtype; the result is (N,) or (N, K).
    """
    _system(a, b, ValueError)
    if a.shape[0] >= a.shape[1]:
        q, r = cp.linalg.qr(a)
        return linalg.solve_triangular(r, q.conj().T @ b)
    q, r = cp.linalg.qr(a.conj().T)
    return q @ linalg.solve_triangular(r, b, trans=2)


def _factor_shape(a: Any, b: Any) -> bool:
    """Whether b is a stack of vectors rather than of matrices. LinAlgError, ValueError for what is no system."""
    if a.ndim < 2 or a.shape[-1] != a.shape[-2]:
        raise np.linalg.LinAlgError("Last 2 dimensions of the array must be square")
    if b.shape[: a.ndim - 1] != a.shape[:-1] or b.ndim > a.ndim:
        raise ValueError(f"b does not fit a: {b.shape}, {a.shape}")
    return b.ndim == a.ndim - 1


def potrs(L: Any, b: Any, lower: bool) -> Any:  # noqa: N803 - CuPy's name
    """The solution of ``A x = b`` for the Cholesky factor L (..., N, N) of A, of which one triangle is read.

    ``lower``: A is ``L L^H``, otherwise ``L^H L``. ``b``: (..., N) or (..., N, K).
    """
    vectors = _factor_shape(L, b)
    dtype = np.result_type(L.dtype, b.dtype, np.float32)
    L, b = L.astype(dtype, copy=False), b.astype(dtype, copy=False)  # noqa: N806
    b = b[..., None] if vectors else b
    half = linalg.solve_triangular(L, b, trans=0 if lower else 2, lower=lower)
    x = linalg.solve_triangular(L, half, trans=2 if lower else 0, lower=lower)
    return cp.ascontiguousarray(x[..., 0] if vectors else x)


def posv(a: Any, b: Any) -> Any:
    """The solution of ``a x = b`` for Hermitian positive definite matrices a (..., N, N) by Cholesky's factors.

    ``b``: (..., N) or (..., N, K). LinAlgError for a matrix that is not positive definite, when the result is used.
    """
    _factor_shape(a, b)
    return potrs(cp.linalg.cholesky(a.astype(np.result_type(a.dtype, b.dtype, np.float32), copy=False)), b, True)


__getattr__, __dir__ = surface.face(__name__)
