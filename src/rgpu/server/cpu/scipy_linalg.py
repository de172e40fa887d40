"""``cupyx.scipy.linalg`` where it is not SciPy's: stacks of triangular systems, and its own refusals."""

from __future__ import annotations

from typing import Any

import numpy as np

from rgpu.server.cpu.arrays import override

_PREFIX = "cupyx.scipy.linalg."


@override(_PREFIX + "solve_triangular")
def _solve_triangular(
    a: np.ndarray, b: np.ndarray, trans: Any = 0, lower: bool = False, unit_diagonal: bool = False,
    overwrite_b: bool = False, check_finite: bool = False,
) -> Any:  # fmt: skip
    """For ``a`` with more than two axes ``b`` is a stack of vectors, or of matrices, over the same leading axes."""
    from scipy import linalg

    def solve(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return linalg.solve_triangular(a, b, trans, lower, unit_diagonal, check_finite=check_finite)

    if a.ndim < 2 or a.shape[-1] != a.shape[-2]:
        raise ValueError("expected one square matrix or a batch of square matrices")
    if a.ndim == 2:
        if b.ndim > 2:
            raise ValueError("incompatible dimensions")
        return solve(a, b)
    if a.shape[:-2] != b.shape[: a.ndim - 2]:
        raise ValueError("incompatible batch count")
    if b.ndim < a.ndim - 1 or a.shape[-2] != b.shape[a.ndim - 2]:
        raise ValueError("incompatible dimensions")
    results = [solve(a[index], b[index]) for index in np.ndindex(a.shape[:-2])]
    return np.reshape(results, b.shape) if results else np.empty(b.shape, np.result_type(a, b, np.float32))


@override(_PREFIX + "bandwidth")
def _bandwidth(a: np.ndarray) -> tuple[int, int]:
    if a.size == 0:
        return 0, 0
    if a.ndim != 2:
        raise np.linalg.LinAlgError(f"{a.ndim}-dimensional array given. Array must be two-dimensional")
    rows, columns = np.nonzero(a)
    return int(max((rows - columns).max(initial=0), 0)), int(max((columns - rows).max(initial=0), 0))


@override(_PREFIX + "khatri_rao")
def _khatri_rao(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    from scipy import linalg

    for x in (a, b):
        if x.ndim != 2:
            raise np.linalg.LinAlgError(f"{x.ndim}-dimensional array given. Array must be two-dimensional")
    return linalg.khatri_rao(a, b)


@override(_PREFIX + "lu_solve")
def _lu_solve(
    lu_and_piv: Any, b: np.ndarray, trans: int = 0, overwrite_b: bool = False, check_finite: bool = True
) -> np.ndarray:
    """ValueError for pivots that are no rows: LAPACK would exchange with what lies beyond the matrix."""
    from scipy import linalg

    lu, pivots = lu_and_piv
    if pivots.size and not 0 <= pivots.min() <= pivots.max() < lu.shape[-1]:
        raise ValueError("pivots must be numbers of rows")
    return linalg.lu_solve((lu, pivots), b, trans, overwrite_b, check_finite)
