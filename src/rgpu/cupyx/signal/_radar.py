"""Radar functions of ``cupyx.signal``: pulses, detectors of constant false alarm rate, beamforming.

Array operations only. Formulas: Richards, Fundamentals of Radar Signal Processing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import rgpu as cp
from rgpu.cupyx.scipy.signal import windows


def _windowed(x: Any, normalize: bool, window: Any) -> Any:
    """x times a window along its last axis: an array, a name, or a function of frequencies; then of norm 1."""
    if window is not None:
        n = x.shape[-1]
        if callable(window):
            weights = window(cp.fft.fftfreq(n).astype(x.dtype))
        elif isinstance(window, cp.ndarray):
            if window.shape != (n,):
                raise ValueError("window must have the same length as data")
            weights = window
        else:
            weights = windows.get_window(window, n, False).astype(x.dtype)
        x = x * weights
    return x / cp.linalg.norm(x) if normalize else x


def pulse_compression(
    x: Any, template: Any, normalize: bool = False, window: Any = None, nfft: int | None = None
) -> Any:
    """Pulses (pulses, samples) correlated with the one that was sent, by transforms of length ``nfft``."""
    nfft = x.shape[1] if nfft is None else nfft
    sent = cp.fft.fft(_windowed(template, normalize, window), nfft)
    found = cp.fft.ifft(cp.fft.fft(x, nfft) * sent.conj(), nfft)
    return found if np.result_type(x.dtype, template.dtype).kind == "c" else found.real


def pulse_doppler(x: Any, window: Any = None, nfft: int | None = None) -> Any:
    """The transform of pulses (pulses, samples) from pulse to pulse: (nfft, samples), one row a Doppler shift."""
    return cp.fft.fft(_windowed(x.T, False, window), x.shape[0] if nfft is None else nfft).T


def cfar_alpha(pfa: Any, N: Any) -> Any:  # noqa: N803 - CuPy's name
    """The factor over the mean of N reference cells that noise exceeds with probability ``pfa``."""
    return N * (pfa ** (-1.0 / N) - 1)


def _sums(array: Any, reach: Sequence[int], within: Sequence[int]) -> Any:
    """Sums over boxes of half-widths ``reach`` around each cell that has one of half-widths ``within``."""
    total = array
    for axis, (wide, narrow) in enumerate(zip(within, reach)):
        sums = cp.cumsum(total, axis=axis, dtype=np.float64)
        sums = cp.concatenate([cp.zeros_like(sums.take([0], axis=axis)), sums], axis=axis)
        count = total.shape[axis] - 2 * wide
        first = wide - narrow
        lower = (slice(None),) * axis + (slice(first, first + count),)
        upper = (slice(None),) * axis + (slice(first + 2 * narrow + 1, first + 2 * narrow + 1 + count),)
        total = sums[upper] - sums[lower]
    return total


def ca_cfar(array: Any, guard_cells: Any, reference_cells: Any, pfa: float = 1e-3) -> tuple[Any, Any]:
    """Cell-averaging detection: (float32 threshold of each cell, which cells exceed it). One or two dimensions.

    Around a cell, ``guard_cells`` to each side are left out and the next ``reference_cells`` averaged; cells too
    near to an edge have the threshold 0. TypeError for other dimensions, ValueError for an array that is too small.
    """
    if array.ndim not in (1, 2):
        raise TypeError("Only 1D and 2D arrays are currently supported.")
    guards, references = (
        (cells,) if array.ndim == 1 else tuple(cells) for cells in (guard_cells, reference_cells)
    )
    if len(guards) != array.ndim or len(references) != array.ndim:
        raise TypeError("Guard and reference cells must be two dimensional.")
    wide = [guard + reference for guard, reference in zip(guards, references)]
    if any(extent <= 2 * reach for extent, reach in zip(array.shape, wide)):
        raise ValueError("Array too small for given parameters")
    cells = int(np.prod([2 * w + 1 for w in wide]) - np.prod([2 * guard + 1 for guard in guards]))
    around = _sums(array, wide, wide) - _sums(array, guards, wide)
    threshold = cp.zeros(array.shape, np.float32)
    threshold[tuple(slice(w, extent - w) for w, extent in zip(wide, array.shape))] = (
        around * (cfar_alpha(pfa, cells) / cells)
    )
    return threshold, array - threshold > 0


def mvdr(x: Any, sv: Any, calc_cov: bool = True) -> Any:
    """Weights of a beamformer without distortion in the direction of ``sv`` (sensors,) and least variance.

    ``x``: signals (sensors, samples), or with ``calc_cov=False`` their covariance.
    """
    if x.shape[0] > x.shape[1]:
        raise ValueError("more sensors than samples: one row a sensor, transpose x")
    if x.shape[0] != sv.shape[0]:
        raise ValueError("Steering Vector and input data do not align")
    weights = cp.linalg.inv(cp.cov(x, dtype=x.dtype) if calc_cov else x).dot(sv)
    return weights / sv.conj().dot(weights)
