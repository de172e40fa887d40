"""``cupy.cublas``: vectors and matrices by the names of BLAS's routines.

Each is made of rgpu's own array functions; results are written into the arguments where BLAS writes them, and
numbers (alpha, beta) may be Python's or arrays without axes of either side. Must not compute anything here.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import rgpu as cp
from rgpu import surface

_limit = 2048


def get_batched_gesv_limit() -> int:
    """The size of a matrix above which `batched_gesv` warns."""
    return _limit


def set_batched_gesv_limit(limit: int) -> None:
    global _limit
    _limit = limit


def batched_gesv(a: Any, b: Any) -> Any:
    """Solve ``a x = b`` for a stack of matrices: a (..., M, M), b (..., M) or (..., M, K)."""
    for x in (a, b):
        if not isinstance(x, cp.ndarray):
            raise np.linalg.LinAlgError(f"cupy.linalg only supports cupy.ndarray, but {type(x)} given")
    if a.ndim < 2 or a.shape[-1] != a.shape[-2]:
        raise np.linalg.LinAlgError("Last 2 dimensions of the array must be square")
    if b.ndim not in (a.ndim, a.ndim - 1) or a.shape[:-1] != b.shape[: a.ndim - 1]:
        raise ValueError("a must have (..., M, M) shape and b must have (..., M) or (..., M, K)")
    if a.shape[-1] > _limit:
        warnings.warn(f"The matrix size ({a.shape[-1]}) exceeds the set limit ({_limit})", stacklevel=2)
    if b.ndim == a.ndim:
        return cp.linalg.solve(a, b)
    return cp.linalg.solve(a, b[..., None])[..., 0]


# ---- what arguments have to be --------------------------------------------------------------------


def _blas(x: Any) -> None:
    if x.dtype.char not in "fdFD":
        raise TypeError("invalid dtype")


def _fit(so: bool) -> None:
    """As CuPy says it."""
    if not so:
        raise AssertionError("shapes or dtypes of the arguments do not fit each other")


def _vector(x: Any, name: str = "x") -> None:
    if x.ndim != 1:
        raise ValueError(f"{name} must be a 1D array (actual: {x.ndim})")


def _vectors(x: Any, y: Any) -> None:
    _vector(x)
    _vector(y, "y")
    if x.size != y.size:
        raise ValueError(f"x and y must be the same size (actual: {x.size} and {y.size})")
    if x.dtype != y.dtype:
        raise TypeError(f"x and y must be the same dtype (actual: {x.dtype} and {y.dtype})")


def _number(value: Any, dtype: np.dtype) -> Any:
    """A factor in the dtype of what it multiplies."""
    return value.astype(dtype) if isinstance(value, cp.ndarray) else np.asarray(value).astype(dtype)[()]


def _given(result: Any, out: Any) -> Any:
    """The result, or ``out`` (of the device or of NumPy) with it."""
    if out is None:
        return result
    if not isinstance(out, cp.ndarray | np.ndarray):
        raise TypeError("out must be either cupy or numpy ndarray")
    out[...] = result if isinstance(out, cp.ndarray) else result.get()
    return out


def _turned(trans: Any, a: Any) -> Any:
    """op(a): N (0) is itself, T (1) transposed, H (2) conjugated too."""
    if trans in ("N", 0):
        return a
    if trans in ("T", 1):
        return a.T
    if trans in ("H", 2):
        return a.T.conj()
    raise TypeError(f"invalid trans (actual: {trans})")


def _mix(beta: Any, out: Any, result: Any) -> None:
    """``out = result + beta * out``; what ``out`` holds does not count where beta is a plain 0."""
    kept = isinstance(beta, cp.ndarray) or beta != 0
    out[...] = result + beta * out if kept else result


# ---- vectors --------------------------------------------------------------------------------------


def _magnitude(x: Any) -> Any:
    """BLAS's: of a complex number, the parts' magnitudes added."""
    return abs(x.real) + abs(x.imag) if x.dtype.kind == "c" else abs(x)


def _place(x: Any, out: Any, choose: Callable) -> Any:
    _vector(x)
    _blas(x)
    return _given((choose(_magnitude(x)) + 1).astype("i"), out)


def iamax(x: Any, out: Any = None) -> Any:
    """Where the element of the largest magnitude is, counted from 1; the first of several."""
    return _place(x, out, cp.argmax)


def iamin(x: Any, out: Any = None) -> Any:
    """Where the element of the smallest magnitude is, counted from 1; the first of several."""
    return _place(x, out, cp.argmin)


def asum(x: Any, out: Any = None) -> Any:
    """The sum of the magnitudes (of a complex number: of both its parts)."""
    _vector(x)
    _blas(x)
    return _given(_magnitude(x).sum(), out)


def nrm2(x: Any, out: Any = None) -> Any:
    """The Euclidean norm."""
    _vector(x)
    _blas(x)
    return _given(cp.linalg.norm(x), out)


def axpy(a: Any, x: Any, y: Any) -> None:
    """``y += a * x``"""
    _vectors(x, y)
    _blas(x)
    y += _number(a, x.dtype) * x


def scal(a: Any, x: Any) -> None:
    """``x *= a``"""
    _vector(x)
    _blas(x)
    x *= _number(a, x.dtype)


def dot(x: Any, y: Any, out: Any = None) -> Any:
    """The product of two real vectors."""
    _blas(x)
    if x.dtype.kind == "c":
        raise TypeError("Use dotu() or dotc() for complex dtype")
    return dotu(x, y, out)


def dotu(x: Any, y: Any, out: Any = None) -> Any:
    """The product of two vectors."""
    _blas(x)
    _vectors(x, y)
    return _given(cp.dot(x, y), out)


def dotc(x: Any, y: Any, out: Any = None) -> Any:
    """The product of two vectors, the first one conjugated."""
    _blas(x)
    _vectors(x, y)
    return _given(cp.vdot(x, y), out)


# ---- matrices and vectors -------------------------------------------------------------------------


def gemv(transa: Any, alpha: Any, a: Any, x: Any, beta: Any, y: Any) -> None:
    """``y = alpha * op(a) @ x + beta * y``; op by ``transa``: N, T or H."""
    _blas(a)
    _fit(a.ndim == 2 and x.ndim == y.ndim == 1 and a.dtype == x.dtype == y.dtype)
    product = _turned(transa, a) @ x
    _fit(product.shape == y.shape)
    _mix(_number(beta, a.dtype), y, _number(alpha, a.dtype) * product)


def ger(alpha: Any, x: Any, y: Any, a: Any) -> None:
    """``a += alpha * x @ y.T`` of real numbers."""
    _blas(a)
    if a.dtype.kind == "c":
        raise TypeError("Use geru or gerc for complex dtypes")
    geru(alpha, x, y, a)


def geru(alpha: Any, x: Any, y: Any, a: Any) -> None:
    """``a += alpha * x @ y.T``"""
    _blas(a)
    _fit(a.ndim == 2 and x.ndim == y.ndim == 1 and a.dtype == x.dtype == y.dtype)
    _fit(a.shape == (x.size, y.size))
    a += _number(alpha, a.dtype) * cp.outer(x, y)


def gerc(alpha: Any, x: Any, y: Any, a: Any) -> None:
    """``a += alpha * x @ y.T.conj()``"""
    geru(alpha, x, y.conj() if y.dtype.kind == "c" else y, a)


def sbmv(k: int, alpha: Any, a: Any, x: Any, beta: Any, y: Any, lower: bool = False) -> Any:
    """``y = alpha * A @ x + beta * y`` for a symmetric A with ``k`` diagonals beside the main one. ``a`` has the
    upper (lower) ones: row k - d (d) is the d-th, its elements in the columns of A."""
    if a.dtype.char not in "fd":
        raise TypeError("Complex dtypes not supported")
    _fit(a.ndim == 2 and x.ndim == y.ndim == 1 and a.dtype == x.dtype == y.dtype)
    n = a.shape[1]
    _fit(x.shape == y.shape == (n,))
    product = a[0 if lower else k] * x
    for d in range(1, min(k, n - 1) + 1):
        diagonal = a[d, : n - d] if lower else a[k - d, d:]
        product[d:] += diagonal * x[: n - d]
        product[: n - d] += diagonal * x[d:]
    _mix(_number(beta, a.dtype), y, _number(alpha, a.dtype) * product)
    return y


# ---- matrices -------------------------------------------------------------------------------------


def _target(out: Any, shape: tuple, dtype: np.dtype) -> None:
    _fit(out.shape == shape and out.dtype == dtype)


def gemm(transa: Any, transb: Any, a: Any, b: Any, out: Any = None, alpha: Any = 1.0, beta: Any = 0.0) -> Any:
    """``out = alpha * op(a) @ op(b) + beta * out``; a new one is in Fortran order."""
    _fit(a.ndim == b.ndim == 2 and a.dtype == b.dtype)
    _blas(a)
    left, right = _turned(transa, a), _turned(transb, b)
    _fit(left.shape[1] == right.shape[0])
    shape = (left.shape[0], right.shape[1])
    if out is not None:
        _target(out, shape, a.dtype)
    product = _number(alpha, a.dtype) * (left @ right)
    if out is None:
        return cp.asfortranarray(product)
    _mix(_number(beta, a.dtype), out, product)
    return out


def geam(transa: Any, transb: Any, alpha: Any, a: Any, beta: Any, b: Any, out: Any = None) -> Any:
    """``alpha * op(a) + beta * op(b)``; a new one is in Fortran order."""
    _fit(a.ndim == b.ndim == 2 and a.dtype == b.dtype)
    _blas(a)
    left, right = _turned(transa, a), _turned(transb, b)
    _fit(left.shape == right.shape)
    if out is not None:
        _target(out, left.shape, a.dtype)
    total = _number(alpha, a.dtype) * left + _number(beta, a.dtype) * right
    return cp.asfortranarray(total) if out is None else _given(total, out)


def dgmm(side: Any, a: Any, x: Any, out: Any = None, incx: int = 1) -> Any:
    """``diag(x) @ a`` (side L) or ``a @ diag(x)`` (R); of x's memory every ``incx``-th element counts, from its
    end where that is negative."""
    _fit(a.ndim == 2 and 0 <= x.ndim <= 2 and a.dtype == x.dtype)
    _blas(a)
    if side not in ("L", "R", 0, 1):
        raise ValueError(f"invalid side (actual: {side})")
    left = side in ("L", 0)
    count = a.shape[0 if left else 1]
    _fit(x.size >= (count - 1) * abs(incx) + 1)
    if out is not None:
        _target(out, a.shape, a.dtype)
    first = max(0, -incx) * (count - 1)
    factors = x.ravel("K")[np.arange(count) * incx + first]
    result = factors[:, None] * a if left else a * factors
    if out is None:
        return result if a.flags.c_contiguous else cp.asfortranarray(result)
    return _given(result, out)


def syrk(trans: Any, a: Any, out: Any = None, alpha: Any = 1.0, beta: Any = 0.0, lower: bool = False) -> Any:
    """``out = alpha * op(a) @ op(a).T + beta * out`` in its upper (lower) triangle; the other one is left as it is."""
    _fit(a.ndim == 2)
    _blas(a)
    turned = _turned(trans, a)
    n = turned.shape[0]
    if out is None:
        out, beta = cp.zeros((n, n), a.dtype, order="F"), 0.0
    _target(out, (n, n), a.dtype)
    result = cp.empty_like(out)
    result[...] = out
    _mix(_number(beta, a.dtype), result, _number(alpha, a.dtype) * (turned @ turned.T))
    here = cp.tri(n, dtype=bool) if lower else cp.tri(n, dtype=bool).T
    out[...] = cp.where(here, result, out)
    return out


__getattr__, __dir__ = surface.face(__name__)
