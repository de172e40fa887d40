"""Filters of ``cupyx.signal``: of finite impulse response, of higher order, in channels, and shifts of frequency.

Array operations only; state and edges of filters are those of ``cupyx.scipy.signal``.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import rgpu as cp
from rgpu.cupyx.scipy import signal


def _windows(x: Any, width: int, count: int) -> Any:
    """``count`` windows of a sequence, each backwards: (count, width)."""
    return cp.lib.stride_tricks.sliding_window_view(x, width)[:count, ::-1]


def _count(in1: Any, in2: Any, ndim: int, mode: str, method: str) -> int:
    """How many results a convolution has; what CuPy refuses is refused."""
    if in1.ndim != 1 or in2.ndim != ndim:
        raise ValueError(f"in1 should have one dimension and in2 {ndim}, not {in1.ndim} and {in2.ndim}")
    if mode != "valid" or method != "direct":
        raise NotImplementedError(f"only mode='valid' with method='direct', not {mode!r} with {method!r}")
    return in1.shape[0] - max(in2.shape) + 1


def convolve1d2o(in1: Any, in2: Any, mode: str = "valid", method: str = "direct") -> Any:
    """Quadratic filter: ``out[i] = sum_xy u_x u_y in2[x, y]`` with u the window that begins at i, backwards."""
    count = _count(in1, in2, 2, mode, method)
    first, second = (_windows(in1, width, count) for width in in2.shape)
    return ((first @ in2) * second).sum(axis=-1)


def convolve1d3o(in1: Any, in2: Any, mode: str = "valid", method: str = "direct") -> Any:
    """Cubic filter: ``out[i] = sum_xyz u_x u_y u_z in2[x, y, z]`` with u the window that begins at i, backwards."""
    count = _count(in1, in2, 3, mode, method)
    first, second, third = (_windows(in1, width, count) for width in in2.shape)
    planes = (first @ in2.reshape(in2.shape[0], -1)).reshape(count, *in2.shape[1:])
    return (cp.matmul(planes, third[..., None])[..., 0] * second).sum(axis=-1)


def firfilter(b: Any, x: Any, axis: int = -1, zi: Any = None) -> Any:
    """Filter along an axis with coefficients b; with the state ``zi``, (result, last state)."""
    return signal.lfilter(b, cp.ones(1), x, axis, zi)


def firfilter_zi(b: Any) -> Any:
    """The delays, len(b) - 1, at which a filter answers a step with a constant: sums of the later coefficients."""
    return b[:0:-1].cumsum()[::-1]


def firfilter2(
    b: Any, x: Any, axis: int = -1, padtype: Any = "odd", padlen: Any = None, method: str = "pad", irlen: Any = None
) -> Any:
    """Filter forward and backward, which leaves phases alone. ValueError for an x that is shorter than its padding."""
    if method not in ("pad", "gust"):
        raise ValueError("method must be 'pad' or 'gust'.")
    if method == "gust":
        raise NotImplementedError("gust method not supported yet")
    return signal.filtfilt(cp.atleast_1d(b), cp.ones(1), cp.asarray(x), axis, padtype, padlen)


def freq_shift(x: Any, freq: float, fs: float) -> Any:
    """x sampled at ``fs`` with every frequency lower by ``freq`` (both in Hz): complex128."""
    x = cp.asarray(x)
    turns = cp.arange(x.size).reshape(x.shape) * (-2 * math.pi * freq / fs)
    return x * cp.exp(1j * turns)


def channelize_poly(x: Any, h: Any, n_chans: int) -> Any:
    """A signal in ``n_chans`` channels by a polyphase filter bank: complex (n_chans, len(x) // n_chans).

    ``h``: the low-pass filter, of which each channel gets every n_chans-th coefficient, at most 32.
    """
    dtype = np.promote_types(x.dtype, h.dtype)
    taps, points = len(h) // n_chans, len(x) // n_chans
    if taps > 32:
        raise NotImplementedError(f"{taps} taps in each filter, and not more than 32: a shorter h, or more channels")
    if dtype.char not in "fdFD":
        raise NotImplementedError(f"Data type ({dtype}) not allowed.")
    x, h = (cp.asarray(part, dtype=dtype).conj() for part in (x, h))
    blocks = cp.zeros((points + taps - 1, n_chans), dtype)
    blocks[taps - 1 :] = x[: points * n_chans].reshape(points, n_chans)[:, ::-1]
    past = cp.lib.stride_tricks.sliding_window_view(blocks, taps, 0)  # (points, n_chans, taps), oldest first
    weights = h[: taps * n_chans].reshape(taps, n_chans)[::-1].T
    return cp.fft.fft((past * weights).sum(axis=-1)).conj().T
