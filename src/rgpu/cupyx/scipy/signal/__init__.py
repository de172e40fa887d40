"""``cupyx.scipy.signal``: filtering, spectra and filter design.

From the table of declared functions; names that are not there yet say so when used.
"""

import warnings
from typing import Any, NamedTuple

import numpy as np

from rgpu import surface
from rgpu.client.remote import Remote
from rgpu.cupyx.scipy import _objects, _table
from rgpu.cupyx.scipy.signal import _segments, windows
from rgpu.functions import creation, dispatch


class BadCoefficients(UserWarning):
    """Warning about badly conditioned filter coefficients."""


_table.warning_classes["BadCoefficients"] = BadCoefficients
_objects.fill(globals(), "signal")
_table.fill(globals(), "signal")
globals().update({name: _segments.with_functions(name, globals()[name]) for name in _segments.NAMES})
get_window = windows.get_window
_filtfilt, _place_poles = globals()["filtfilt"], globals()["place_poles"]
_choose_conv_method, _hilbert2 = globals()["choose_conv_method"], globals()["hilbert2"]
_freqs, _freqz, _resample = globals()["freqs"], globals()["freqz"], globals()["resample"]


class PlacedPoles(NamedTuple):
    """What ``place_poles`` found."""

    gain_matrix: Any
    computed_poles: Any
    requested_poles: Any
    X: Any
    rtol: float
    nb_iter: int


def place_poles(A: Any, B: Any, poles: Any, method: str = "YT", rtol: float = 1e-3, maxiter: int = 30) -> Any:  # noqa: N803
    """The gain matrix with which ``A - B @ K`` has these poles."""
    return PlacedPoles(*_place_poles(A, B, poles, method, rtol, maxiter))


def cwt(data: Any, wavelet: Any, widths: Any) -> Any:
    """The continuous wavelet transform: ``wavelet(length, width)`` of each width, convolved with the data."""
    rows = []
    for width in widths.get().tolist() if isinstance(widths, Remote) else widths:
        wave = wavelet(int(min(10 * width, data.size)), width)
        rows.append(dispatch.call("convolve", data, wave.conj()[::-1], "same"))
    return dispatch.call("stack", rows)


def argrelextrema(data: Any, comparator: Any, axis: int = 0, order: int = 1, mode: str = "clip") -> Any:
    """Indices, an array for each axis, of the elements of which ``comparator(element, neighbour)`` holds for ``order``
    neighbours on either side; beyond an edge is its last element ("clip"), or the other edge ("wrap")."""
    if int(order) != order or order < 1:
        raise ValueError("Order must be an int >= 1")
    length = data.shape[axis]
    places, found = creation.arange(length), creation.ones(data.shape, dtype=bool)
    for shift in range(1, int(order) + 1):
        for moved in (places + shift, places - shift):
            moved = moved % length if mode == "wrap" else moved.clip(0, length - 1)
            found &= comparator(data, data.take(moved, axis=axis))
    return found.nonzero()


def filtfilt(
    b: Any, a: Any, x: Any, axis: int = -1, padtype: Any = "odd", padlen: Any = None, method: str = "pad",
    irlen: Any = None,
) -> Any:  # fmt: skip
    """A filter forward and backward; warns where Gustafsson's method drops the imaginary part of complex filters."""
    if method == "gust" and any(getattr(c, "dtype", np.dtype(float)).kind == "c" for c in (a, b)):
        message = "Casting complex values to real discards the imaginary part"
        warnings.warn(message, np.exceptions.ComplexWarning, stacklevel=2)
    return _filtfilt(b, a, x, axis, padtype, padlen, method, irlen)


def freqs(b: Any, a: Any, worN: Any = 200, plot: Any = None) -> Any:  # noqa: N803
    """The frequencies and the response of an analog filter at them; ``plot`` is called with both."""
    w, h = _freqs(b, a, worN)
    if plot is not None:
        plot(w, h)
    return w, h


def freqz(
    b: Any, a: Any = 1, worN: Any = 512, whole: bool = False, plot: Any = None, fs: Any = 2 * np.pi,  # noqa: N803
    include_nyquist: bool = False,
) -> Any:  # fmt: skip
    """The frequencies and the response of a digital filter at them; ``plot`` is called with both."""
    w, h = _freqz(b, a, worN, whole, fs=fs, include_nyquist=include_nyquist)
    if plot is not None:
        plot(w, h)
    return w, h


def resample(x: Any, num: int, t: Any = None, axis: int = 0, window: Any = None, domain: str = "time") -> Any:
    """``num`` samples of what x has by its Fourier transform; a ``window`` that is a function gets the frequencies."""
    if callable(window):
        window = window(dispatch.call("fft.fftfreq", x.shape[axis]))
    return _resample(x, num, t, axis, window, domain)


def choose_conv_method(in1: Any, in2: Any, mode: str = "full") -> str:
    """The faster of "direct" and "fft"; of one-dimensional arrays only, as in CuPy."""
    if in1.ndim != 1 or in2.ndim != 1:
        raise NotImplementedError("the choice of a method is for one-dimensional arrays only")
    return _choose_conv_method(in1, in2, mode)


def hilbert2(x: Any, N: Any = None) -> Any:  # noqa: N803
    """The analytic signal of a real matrix, by transforms of N (or N[0] by N[1]) points; ValueError for others."""
    if x.ndim > 2:
        raise ValueError(f"x has {x.ndim} dimensions: it must be 2-D")
    if isinstance(N, tuple | list) and (len(N) != 2 or min(N) <= 0):
        raise ValueError(f"N={N!r}: two positive integers are expected")
    return _hilbert2(x, N)


__getattr__, __dir__ = surface.face(__name__)
