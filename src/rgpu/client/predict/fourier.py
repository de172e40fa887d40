"""Rules for the transforms: extents from ``n``, ``s`` and ``axes``, single precision kept (CuPy's rule)."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from rgpu.client.meta import Meta, fresh
from rgpu.client.predict.axes import one, replaced

_NORMS = (None, "backward", "ortho", "forward")


def _complex_of(dtype: np.dtype) -> np.dtype:
    return np.dtype(np.complex64 if dtype.char in "efF" else np.complex128)


def _real_of(dtype: np.dtype, several: bool) -> np.dtype:
    """What a transform to real values gives; half precision comes back only from one axis."""
    if dtype.char == "e" and not several:
        return dtype
    return np.dtype(np.float32 if dtype.char in "efF" else np.float64)


def _transform(kind: str, a: Meta, s: Any, axes: Any, norm: Any) -> Meta | None:
    """``kind``: 'c' complex to complex, 'r' real to complex, 'i' complex to real."""
    if type(a) is not Meta or norm not in _NORMS:
        return None
    if axes is None:
        axes = tuple(range(a.ndim)) if s is None else tuple(range(-len(s), 0))
    s = (None,) * len(axes) if s is None else tuple(s)
    if len(s) != len(axes) or not axes:
        return None
    shape = a.shape
    last = len(axes) - 1
    for position, (n, axis) in enumerate(zip(s, axes)):
        index = one(axis, a.ndim)
        inverse_end = kind == "i" and position == last
        if n is None:
            n = 2 * (shape[index] - 1) if inverse_end else shape[index]
        n = operator.index(n)
        if n < 1:
            return None
        if kind == "r" and position == last:
            n = n // 2 + 1
        shape = replaced(shape, index, n)
    return fresh(shape, _real_of(a.dtype, last > 0) if kind == "i" else _complex_of(a.dtype))


def _one(kind: str) -> Callable[..., Meta | None]:
    def rule(a: Any, n: Any = None, axis: Any = -1, norm: Any = None) -> Meta | None:
        return _transform(kind, a, (n,), (axis,), norm)

    return rule


def _several(kind: str, default: Any) -> Callable[..., Meta | None]:
    def rule(a: Any, s: Any = None, axes: Any = default, norm: Any = None) -> Meta | None:
        return _transform(kind, a, s, axes, norm)

    return rule


def _freq(n: Any, d: Any = 1.0) -> Meta | None:
    return fresh((operator.index(n),), np.dtype(float)) if n > 0 else None


def _rfreq(n: Any, d: Any = 1.0) -> Meta | None:
    return fresh((operator.index(n) // 2 + 1,), np.dtype(float)) if n > 0 else None


def _shift(x: Any, axes: Any = None) -> Meta | None:
    if type(x) is not Meta:
        return None
    for axis in axes if isinstance(axes, tuple | list) else () if axes is None else (axes,):
        one(axis, x.ndim)
    return fresh(x.shape, x.dtype)


RULES: dict[str, Callable[..., Any]] = {
    "fft.fft": _one("c"), "fft.ifft": _one("c"), "fft.rfft": _one("r"), "fft.irfft": _one("i"),
    "fft.fft2": _several("c", (-2, -1)), "fft.ifft2": _several("c", (-2, -1)),
    "fft.rfft2": _several("r", (-2, -1)), "fft.irfft2": _several("i", (-2, -1)),
    "fft.fftn": _several("c", None), "fft.ifftn": _several("c", None),
    "fft.rfftn": _several("r", None), "fft.irfftn": _several("i", None),
    "fft.fftfreq": _freq, "fft.rfftfreq": _rfreq, "fft.fftshift": _shift, "fft.ifftshift": _shift,
}  # fmt: skip
