"""Spectra whose segments a Python function takes the trend out of: ``detrend=function`` of welch, csd and their like.

The function runs here, on arrays of segments, as in CuPy; what it gives is laid end to end, so that the worker finds
the same segments side by side and has no trend to remove. Knows nothing of spectra.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from rgpu import surface
from rgpu.functions import creation, dispatch, views
from rgpu.lib import stride_tricks

NAMES = ("coherence", "csd", "periodogram", "spectrogram", "welch")


def _along(x: Any, axis: int, to: int) -> Any:
    return views.apply(np.moveaxis, x, axis, to)


def _detrended(x: Any, nperseg: int, step: int, detrend: Callable[[Any], Any], axis: int) -> Any:
    """Segments of ``nperseg`` that begin ``step`` apart, without their trends, one after the other along ``axis``.
    The function sees (..., segments, samples), with the samples moved to the same axis."""
    windows = stride_tricks.sliding_window_view(_along(x, axis, -1), nperseg, -1)[..., ::step, :]
    if axis == -1:
        found = detrend(windows)
    else:
        found = _along(detrend(_along(windows, -1, axis)), axis, -1)
    return _along(found.reshape(*found.shape[:-2], -1), -1, axis)


def _longer(x: Any, count: int, axis: int) -> Any:
    """With zeros at its end."""
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, count - x.shape[axis])
    return dispatch.call("pad", x, widths, mode="constant") if count > x.shape[axis] else x


def _sizes(name: str, length: int, said: dict[str, Any]) -> tuple[int, int]:
    """(samples of a segment, samples from one to the next), by CuPy's rules. ValueError where they make no sense."""
    window, nperseg, noverlap = said.get("window"), said.get("nperseg"), said.get("noverlap")
    if name == "periodogram":
        nperseg = min(length, said["nfft"] or length)
        return nperseg, nperseg
    if not isinstance(window, str | tuple):
        nperseg = len(window) if nperseg is None else int(nperseg)
    elif (nperseg := 256 if nperseg is None else int(nperseg)) > length:
        message = f"nperseg = {nperseg} is greater than input length  = {length}, using nperseg = {length}"
        warnings.warn(message, stacklevel=4)
        nperseg = length
    if noverlap is None:
        noverlap = nperseg // (8 if name == "spectrogram" else 2)
    if not 0 <= noverlap < nperseg <= length:
        raise ValueError(f"nperseg={nperseg}, noverlap={noverlap} and {length} samples do not fit together")
    return nperseg, nperseg - noverlap


def with_functions(name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    """``plain``, which takes ``detrend`` as a string or False only, taking functions, too."""
    signature = surface.signature("cupyx.scipy.signal", name)
    assert signature is not None
    inputs = [key for key in ("x", "y") if key in signature.parameters]

    @functools.wraps(plain)
    def call(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        detrend = bound.arguments.get("detrend")
        if not callable(detrend):
            return plain(*args, **kwargs)
        bound.apply_defaults()
        said = bound.arguments
        arrays = [creation.asarray(said[key]) for key in inputs]
        length = max(x.shape[said["axis"]] for x in arrays)
        nperseg, step = _sizes(name, length, said)
        axis = said["axis"]
        arrays = [_longer(x, length, axis) for x in arrays]
        if name == "periodogram":  # of one segment
            arrays = [_along(_along(x, axis, -1)[..., :nperseg], -1, axis) for x in arrays]
        same = len(arrays) == 2 and said["x"] is said["y"]
        arrays = [_detrended(x, nperseg, step, detrend, axis) for x in arrays[: 1 if same else 2]] * (1 + same)
        said |= dict(zip(inputs, arrays)) | {"detrend": False}
        if name == "periodogram":
            return plain(**said)
        said |= {"nperseg": nperseg, "noverlap": 0}
        result = plain(**said)
        if name == "spectrogram":  # times are those of the signal as it was given
            frequencies, times, spectrum = result
            times = (dispatch.call("arange", times.shape[0]) * step + nperseg / 2) / said["fs"]
            return frequencies, times, spectrum
        return result

    return call
