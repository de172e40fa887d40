"""Linear algebra with CuPy's manners: tuples, no LinAlgError for singular matrices, complex ``eig``.

A GPU solver reports failure in devInfo, which CuPy ignores unless told otherwise; here the parts
of the result that cannot be computed become nan or inf.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rgpu.server.cpu.arrays import OVERRIDES, override

LinAlgError = np.linalg.LinAlgError
_MAY_FAIL = frozenset(("linalg.inv", "linalg.cholesky", "linalg.solve"))
_strictly = False  # whether a failure is an error now; a worker runs one command at a time


def _stacked_square(a: np.ndarray) -> None:
    if a.ndim < 2:
        raise LinAlgError(f"{a.ndim}-dimensional array given. Array must be at least two-dimensional")
    if a.shape[-1] != a.shape[-2]:
        raise LinAlgError("Last 2 dimensions of the array must be square")


def common_type(*arrays: np.ndarray) -> np.dtype:
    """The dtype linear algebra computes in: floats as they are, integers as double, never half."""
    if any(x.dtype == np.float16 for x in arrays):
        raise TypeError("float16 is unsupported in linalg")
    return np.result_type(*[x.dtype if x.dtype.kind in "fc" else np.float64 for x in arrays])


def _each(function: Callable[..., Any], a: np.ndarray, *rest: np.ndarray) -> Any:
    """``function`` for a stack of matrices; nan for those it fails for."""
    try:
        return function(a, *rest)
    except LinAlgError:
        if _strictly:
            raise
    shape = rest[0].shape if rest else a.shape
    result = np.full(shape, np.nan, common_type(a, *rest))
    for index in np.ndindex(*a.shape[:-2]):
        try:
            result[index] = function(a[index], *[x[index] for x in rest])
        except LinAlgError:
            result[index] = np.nan if a.shape[-1] else 0
    return result


@override("einsum")
def _einsum(*operands: Any, optimize: Any = False, dtype: Any = None, **kwargs: Any) -> Any:
    """NumPy's optimized paths compute in the dtype of each pair and trip over broadcast extents of 1."""
    if optimize is False or len(operands) < 4 or not isinstance(operands[0], str):
        return np.einsum(*operands, optimize=optimize, dtype=dtype, **kwargs)
    subscripts, arrays = operands[0], operands[1:]
    common = np.result_type(*arrays) if dtype is None else dtype
    extents: dict[str, set] = {}
    for term, array in zip(subscripts.split("->")[0].split(","), arrays):
        for label, extent in zip(term.strip(), np.shape(array)):
            extents.setdefault(label, set()).add(extent)
    broadcast = "." in subscripts or any(len(found) > 1 for found in extents.values())
    optimize = False if broadcast else optimize
    return np.einsum(
        subscripts, *[np.asarray(x, common) for x in arrays], optimize=optimize, dtype=dtype, **kwargs
    )


@override("linalg.strict")
def _strict(name: str, *args: Any, **kwargs: Any) -> Any:
    """A function under ``cupyx.errstate(linalg="raise")``."""
    global _strictly
    if name not in _MAY_FAIL:
        raise ValueError(f"{name} never fails")
    _strictly = True
    try:
        return OVERRIDES[name](*args, **kwargs)
    finally:
        _strictly = False


@override("linalg.inv")
def _inv(a: np.ndarray) -> Any:
    _stacked_square(a)
    common_type(a)
    return _each(np.linalg.inv, a)


@override("linalg.cholesky")
def _cholesky(a: np.ndarray) -> Any:
    _stacked_square(a)
    common_type(a)
    return _each(np.linalg.cholesky, a)


@override("linalg.solve")
def _solve(a: np.ndarray, b: np.ndarray) -> Any:
    _stacked_square(a)
    if b.ndim == 0:
        raise ValueError("b must have at least one dimension")
    if b.ndim == 1:
        if a.shape[-1] != b.size:
            raise ValueError("a must have (..., M, M) shape and b must have (M,) for one-dimensional b")
        b = np.broadcast_to(b, a.shape[:-1])
    elif a.shape[:-1] != b.shape[:-1]:
        raise ValueError("a must have (..., M, M) shape and b must have (..., M, K) for multidimensional b")
    common_type(a, b)
    if _strictly and not b.size:
        np.linalg.inv(a)  # a singular matrix is an error even where nothing is to be solved
    if b.ndim == a.ndim - 1:
        return _each(np.linalg.solve, a, b[..., None])[..., 0]
    return _each(np.linalg.solve, a, b)


@override("linalg.tensorsolve")
def _tensorsolve(a: np.ndarray, b: np.ndarray, axes: Any = None) -> Any:
    return np.linalg.tensorsolve(a, b, axes)


@override("linalg.qr")
def _qr(a: np.ndarray, mode: str = "reduced") -> Any:
    if mode not in ("reduced", "complete", "r", "raw"):
        known = mode in ("f", "full", "e", "economic")
        raise ValueError(
            f"The deprecated mode '{mode}' is not supported" if known else f"Unrecognized mode '{mode}'"
        )
    common_type(a)
    result = np.linalg.qr(a, mode)
    return result if mode == "r" else tuple(result)


@override("linalg.svd")
def _svd(a: np.ndarray, full_matrices: bool = True, compute_uv: bool = True) -> Any:
    common_type(a)
    result = np.linalg.svd(a, full_matrices, compute_uv)
    return tuple(result) if compute_uv else result


@override("linalg.eigh")
def _eigh(a: np.ndarray, UPLO: str = "L") -> Any:
    _stacked_square(a)
    if a.dtype == np.float16:  # computed in single precision
        return tuple(x.astype(np.float16) for x in np.linalg.eigh(a.astype(np.float32), UPLO))
    return tuple(np.linalg.eigh(a, UPLO))


@override("linalg.eigvalsh")
def _eigvalsh(a: np.ndarray, UPLO: str = "L") -> Any:
    _stacked_square(a)
    if a.dtype == np.float16:
        return np.linalg.eigvalsh(a.astype(np.float32), UPLO).astype(np.float16)
    return np.linalg.eigvalsh(a, UPLO)


def _complex(x: np.ndarray) -> np.ndarray:
    return x.astype(np.result_type(x.dtype, np.complex64), copy=False)


@override("linalg.eig")
def _eig(a: np.ndarray) -> Any:
    _stacked_square(a)
    if not a.size:
        kind = common_type(a)
        return np.empty(a.shape[:-1], kind), np.empty(a.shape, kind)
    common_type(a)
    return tuple(_complex(x) for x in np.linalg.eig(a))


@override("linalg.eigvals")
def _eigvals(a: np.ndarray) -> Any:
    _stacked_square(a)
    if not a.size:
        return np.empty(a.shape[:-1], common_type(a))
    common_type(a)
    return _complex(np.linalg.eigvals(a))


@override("linalg.slogdet")
def _slogdet(a: np.ndarray) -> Any:
    _stacked_square(a)
    common_type(a)
    return tuple(np.asarray(x) for x in np.linalg.slogdet(a))


@override("linalg.det")
def _det(a: np.ndarray) -> Any:
    _stacked_square(a)
    common_type(a)
    return np.asarray(np.linalg.det(a))


@override("linalg.pinv")
def _pinv(a: np.ndarray, rcond: Any = 1e-15) -> Any:
    kind = common_type(a)
    if not a.size:
        return np.empty((*a.shape[:-2], a.shape[-1], a.shape[-2]), a.dtype if 0 in a.shape[-2:] else kind)
    return np.linalg.pinv(a, rcond)


@override("linalg.matrix_rank")
def _matrix_rank(M: np.ndarray, tol: Any = None) -> Any:
    if M.ndim < 2:
        return np.asarray((M != 0).any().astype(int))
    return np.asarray(np.linalg.matrix_rank(M, tol))


@override("linalg.matrix_power")
def _matrix_power(M: np.ndarray, n: Any) -> Any:
    _stacked_square(M)
    if not isinstance(n, int):
        raise TypeError("exponent must be an integer")
    if n < 0:
        M, n = _inv(M), -n
    return np.linalg.matrix_power(M, n)


@override("linalg.cond")
def _cond(x: np.ndarray, p: Any = None) -> Any:
    return np.asarray(np.linalg.cond(x, p))


@override("linalg.lstsq")
def _lstsq(a: np.ndarray, b: np.ndarray, rcond: Any = None) -> Any:
    if a.ndim != 2:
        raise LinAlgError(f"{a.ndim}-dimensional array given. Array must be two-dimensional")
    if b.ndim > 2:
        raise LinAlgError(f"{b.ndim}-dimensional array given. Array must be at most two-dimensional")
    if a.shape[0] != b.shape[0]:
        raise LinAlgError("Incompatible dimensions")
    common_type(a, b)
    x, residuals, rank, s = np.linalg.lstsq(a, b, rcond)
    return x, residuals, np.asarray(rank), s


@override("linalg.norm")
def _norm(x: np.ndarray, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:  # noqa: A002
    return np.asarray(np.linalg.norm(x, ord, axis, keepdims))


@override("linalg.tensorinv")
def _tensorinv(a: np.ndarray, ind: int = 2) -> Any:
    if ind <= 0:
        raise ValueError("Invalid ind argument")
    return np.linalg.tensorinv(a, ind)
