"""``cupyx.linalg``: inverse and solution by Cholesky's factors."""

from __future__ import annotations

from typing import Any

from rgpu import surface
from rgpu.cupyx.scipy import linalg as _scipy_linalg
from rgpu.functions import creation, dispatch


def invh(a: Any) -> Any:
    """Inverse of a Hermitian positive definite matrix."""
    if a.ndim != 2 or a.shape[0] != a.shape[1]:
        raise ValueError("Last 2 dimensions of the array must be square")
    return cho_solve((dispatch.call("linalg.cholesky", a), True), creation.eye(len(a), dtype=a.dtype))


def cho_solve(c_and_lower: tuple, b: Any, overwrite_b: bool = False, check_finite: bool = True) -> Any:
    """Solution of ``a @ x = b`` given the Cholesky factor of ``a``."""
    c, lower = c_and_lower
    if c.ndim != 2 or c.shape[0] != c.shape[1]:
        raise ValueError("The factored matrix c is not square.")
    if c.shape[1] != b.shape[0]:
        raise ValueError(f"incompatible dimensions ({c.shape} and {b.shape})")
    solve = _scipy_linalg.solve_triangular
    half = solve(c, b, trans=0 if lower else 2, lower=lower)
    return solve(c, half, trans=2 if lower else 0, lower=lower)


__getattr__, __dir__ = surface.face(__name__)
