"""Polynomials with CuPy's dtypes and limits; arguments are coefficient arrays, highest power first."""

from __future__ import annotations

from typing import Any

import numpy as np

from rgpu.server.cpu.arrays import override


@override("polyadd")
def _polyadd(a1: np.ndarray, a2: np.ndarray) -> Any:
    return _aligned(a1, a2)[0] + _aligned(a1, a2)[1]


@override("polysub")
def _polysub(a1: np.ndarray, a2: np.ndarray) -> Any:
    left, right = _aligned(a1, a2)
    return left - right


def _aligned(a1: np.ndarray, a2: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    size = max(a1.size, a2.size)
    return np.pad(a1, (size - a1.size, 0)), np.pad(a2, (size - a2.size, 0))


@override("polymul")
def _polymul(a1: np.ndarray, a2: np.ndarray) -> Any:
    a1, a2 = (x[first:] if (first := _leading_zeros(x)) < x.size else np.zeros(1, x.dtype) for x in (a1, a2))
    return np.convolve(a1, a2)


def _leading_zeros(x: np.ndarray) -> int:
    found = np.flatnonzero(x)
    return int(found[0]) if found.size else x.size


@override("polyval")
def _polyval(p: np.ndarray, x: np.ndarray) -> Any:
    kind = np.result_type(p.dtype, x.dtype)
    if kind.kind == "b":
        return p.any() * x + p[-1] if p.size else np.zeros(x.shape, kind)
    return np.polyval(p.astype(kind), x.astype(kind)).astype(kind) if p.size else np.zeros(x.shape, kind)


@override("poly")
def _poly(seq_of_zeros: np.ndarray) -> Any:
    x = seq_of_zeros
    if x.ndim == 2:
        if not np.array_equal(x, x.conj().T):
            raise NotImplementedError(
                "Only complex Hermitian and real symmetric 2d arrays are supported currently"
            )
        x = np.linalg.eigvalsh(x)
    x = x.astype(np.mintypecode(x.dtype.char))
    result = np.ones(1, x.dtype)
    for zero in x:
        result = np.convolve(result, np.array([1, -zero], x.dtype))
    return result


@override("roots")
def _roots(p: np.ndarray) -> Any:
    kind = p.dtype if p.dtype.kind in "fc" else np.dtype(float)
    p = p[_leading_zeros(p) :].astype(kind)[::-1]
    if p.size < 2:
        return np.array([])
    if p.size == 2:
        result = (-p[0] / p[1])[None]
        return result.real.astype(float) if p[0] == 0 else result
    companion = np.eye(p.size - 1, k=-1, dtype=kind)
    companion[:, -1] -= p[:-1] / p[-1]
    if not np.array_equal(companion, companion.conj().T):
        raise NotImplementedError(
            "Only complex Hermitian and real symmetric 2d arrays are supported currently"
        )
    return np.linalg.eigvalsh(companion).astype(kind)


@override("polyfit")
def _polyfit(
    x: np.ndarray,
    y: np.ndarray,
    deg: int,
    rcond: Any = None,
    full: bool = False,
    w: Any = None,
    cov: Any = False,
) -> Any:
    x, y = (a.astype(complex if a.dtype.kind == "c" else float) for a in (x, y))
    if full:
        c, residuals, rank, s, rcond = np.polyfit(x, y, deg, rcond, True, w)
        return c, np.abs(residuals) if residuals.dtype.kind == "c" else residuals, np.asarray(rank), s, rcond
    return np.polyfit(x, y, deg, rcond, False, w, cov)
