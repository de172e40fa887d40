"""``cupyx.cusolver``: solvers by the names of cuSOLVER's routines, which run on every backend.

Each is the routine of ``linalg`` that computes the same; the choice of algorithm that the names stand for is the
server's. Must not compute anything here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import rgpu as cp
from rgpu import surface
from rgpu.cupyx import lapack
from rgpu.cupyx.scipy.sparse import linalg as sparse

_KNOWN = frozenset("csrlsvqr geev gels gesv gesvda gesvdj gesvdjBatched potrfBatched potrsBatched syevj".split())


def check_availability(name: str) -> bool:
    """Whether a routine is there: all of them are. ValueError for a name that CuPy does not ask for."""
    if name not in _KNOWN:
        raise ValueError(f"No available version information specified for {name}")
    return True


def gesvdj(a: Any, full_matrices: bool = True, compute_uv: bool = True, overwrite_a: bool = False) -> Any:
    """(u, s, v) with ``a == u @ diag(s) @ v^H`` for matrices (..., M, N), or s alone."""
    if not compute_uv:
        return cp.linalg.svd(a, compute_uv=False)
    u, s, vh = cp.linalg.svd(a, full_matrices=full_matrices)
    return u, s, vh.swapaxes(-2, -1).conj()


def gesvda(a: Any, compute_uv: bool = True) -> Any:
    """``gesvdj`` of tall matrices (M, N) or (batch, M, N), with u (M, N). ValueError for other shapes."""
    if a.ndim not in (2, 3) or a.shape[-2] < a.shape[-1]:
        raise ValueError(f"a must have 2 or 3 dimensions, and M >= N (shape: {a.shape})")
    return gesvdj(a, False, compute_uv)


def syevj(a: Any, UPLO: str = "L", with_eigen_vector: bool = True) -> Any:  # noqa: N803 - CuPy's name
    """(w, v), or w alone: eigenvalues and vectors of Hermitian matrices (..., N, N), of which one triangle is read."""
    return cp.linalg.eigh(a, UPLO) if with_eigen_vector else cp.linalg.eigvalsh(a, UPLO)


def gesv(a: Any, b: Any) -> Any:
    """The solution of ``a x = b`` for a (N, N) and b (N,) or (N, K), both of one of LAPACK's dtypes."""
    if a.ndim != 2 or a.shape[0] != a.shape[1]:
        raise ValueError("a must be a square matrix.")
    if a.dtype != b.dtype or a.dtype.char not in "fdFD":
        raise ValueError(f"a and b must both be of one of LAPACK's dtypes (actual: {a.dtype}, {b.dtype})")
    return cp.linalg.solve(a, b)


def gels(a: Any, b: Any) -> Any:
    """The least-squares solution of ``a x = b``: ``lapack.gels``."""
    return lapack.gels(a, b)


def csrlsvqr(A: Any, b: Any, tol: float = 0, reorder: int = 1) -> Any:  # noqa: N803
    """The solution of ``A x = b`` for a sparse A (N, N) and a vector b. ``tol`` and ``reorder`` change nothing."""
    if A.ndim != 2 or A.shape[0] != A.shape[1] or b.shape != A.shape[:1]:
        raise ValueError(f"A must be square and b a vector of as many (actual: {A.shape}, {b.shape})")
    if np.dtype(A.dtype).char not in "fdFD" or A.dtype != b.dtype:
        raise TypeError(f"A and b must both be of one of LAPACK's dtypes (actual: {A.dtype}, {b.dtype})")
    return sparse.spsolve(A, b)


__getattr__, __dir__ = surface.face(__name__)
