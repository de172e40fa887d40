"""``cupyx.scipy.signal`` where it is not SciPy's: a filter's state is its last inputs and outputs.

SciPy keeps the delays of a transposed direct form; CuPy documents that its own state has ``len(b) + len(a) - 2``
numbers along the axis, the last inputs and then the last outputs, oldest first. Nothing here knows the client.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rgpu.server.cpu.arrays import override

_PREFIX = "cupyx.scipy.signal."


def _scipy() -> Any:
    import scipy.signal  # not at the top: workers that never filter must not pay for it

    return scipy.signal


def _delays(b: np.ndarray, a: np.ndarray, inputs: np.ndarray, outputs: np.ndarray) -> np.ndarray:
    """SciPy's state for what went in and came out before, along the last axis, oldest first."""
    order = max(b.size, a.size) - 1
    dtype = np.result_type(b, a, inputs, outputs, np.float32)
    state = np.zeros((*inputs.shape[:-1], order), dtype)
    for delay in range(order):
        for taps, past, sign in ((b, inputs, 1), (a, outputs, -1)):
            for tap in range(delay + 1, taps.size):
                state[..., delay] += sign * taps[tap] * past[..., past.shape[-1] - (tap - delay)]
    return state


def _last(before: np.ndarray, after: np.ndarray, count: int) -> np.ndarray:
    both = np.concatenate([before, after], axis=-1)
    return both[..., both.shape[-1] - count :]


@override(_PREFIX + "place_poles")
def _place_poles(A: np.ndarray, B: np.ndarray, poles: Any, *args: Any, **kwargs: Any) -> Any:
    found = _scipy().place_poles(A, B, poles, *args, **kwargs)
    names = ("gain_matrix", "computed_poles", "requested_poles", "X", "rtol", "nb_iter")
    return tuple(getattr(found, name) for name in names)


@override(_PREFIX + "symiirorder2")
def _symiirorder2(input: np.ndarray, r: Any, omega: Any, precision: float = -1.0) -> np.ndarray:
    """In double precision, to single precision's tolerance where the input has that: CuPy's coefficients are double."""
    if input.dtype == np.float32:
        precision = precision if 0 < precision <= 1 else 1e-6
        input = input.astype(np.float64)
    return _scipy().symiirorder2(input, r, omega, precision)


# --- wavelets that SciPy no longer has -----------------------------------------------------------


@override(_PREFIX + "qmf")
def _qmf(hk: np.ndarray) -> np.ndarray:
    """The high-pass filter of a quadrature pair: reversed, with alternating signs."""
    return hk[::-1] * np.where(np.arange(hk.size) % 2, -1, 1)


@override(_PREFIX + "ricker")
def _ricker(points: int, a: float) -> np.ndarray:
    squares = ((np.arange(points) - (points - 1) / 2) / a) ** 2
    return 2 / (np.sqrt(3 * a) * np.pi**0.25) * (1 - squares) * np.exp(-squares / 2)


@override(_PREFIX + "morlet")
def _morlet(M: int, w: float = 5.0, s: float = 1.0, complete: bool = True) -> np.ndarray:
    x = np.linspace(-s * 2 * np.pi, s * 2 * np.pi, M)
    wave = np.exp(1j * w * x) - (np.exp(-(w**2) / 2) if complete else 0)
    return wave * np.exp(-(x**2) / 2) * np.pi**-0.25


@override(_PREFIX + "morlet2")
def _morlet2(M: int, s: float, w: float = 5) -> np.ndarray:
    x = (np.arange(M) - (M - 1) / 2) / s
    return np.sqrt(1 / s) * np.exp(1j * w * x - x**2 / 2) * np.pi**-0.25


@override(_PREFIX + "lfilter")
def _lfilter(b: np.ndarray, a: np.ndarray, x: np.ndarray, axis: int = -1, zi: Any = None) -> Any:
    if zi is None:
        return _scipy().lfilter(b, a, x, axis)
    dtype = np.result_type(b, a, x)  # a state of more precision does not change that of the result
    b, a, past = np.atleast_1d(b) / a[0], np.atleast_1d(a) / a[0], np.moveaxis(np.atleast_1d(zi), axis, -1)
    x, taps = np.moveaxis(x, axis, -1), b.size - 1
    if past.shape[-1] != taps + a.size - 1:
        raise ValueError(f"zi must have {taps + a.size - 1} elements along the axis, not {past.shape[-1]}")
    inputs, outputs = past[..., :taps], past[..., taps:]
    y, _ = _scipy().lfilter(b, a, x, axis=-1, zi=_delays(b, a, inputs, outputs))
    y = y.astype(dtype, copy=False) if dtype.kind in "fc" else y
    final = np.concatenate([_last(inputs, x, taps), _last(outputs, y, a.size - 1)], axis=-1).astype(y.dtype)
    return np.moveaxis(y, -1, axis), np.moveaxis(final, -1, axis)


@override(_PREFIX + "lfiltic")
def _lfiltic(b: np.ndarray, a: np.ndarray, y: Any, x: Any = None) -> Any:
    """The state after inputs ``x`` and outputs ``y``, which are given newest first."""
    if y is None and x is None:
        return None
    like = y if y is not None else x
    parts = [np.zeros((*like.shape[:-1], 0))]
    for past, count in ((x, b.size - 1), (y, a.size - 1)):
        if past is not None:
            known = past[..., :count]
            missing = np.zeros((*known.shape[:-1], count - known.shape[-1]))
            parts.append(np.concatenate([known, missing], axis=-1)[..., ::-1])
    return np.concatenate(parts, axis=-1)


def _gain(b: np.ndarray, a: np.ndarray) -> Any:
    """What a constant input of 1 comes to."""
    with np.errstate(all="ignore"):
        return np.nan_to_num(b.sum() / a.sum(), nan=0, posinf=np.inf, neginf=-np.inf)


@override(_PREFIX + "lfilter_zi")
def _lfilter_zi(b: np.ndarray, a: np.ndarray) -> np.ndarray:
    return np.concatenate([np.ones(b.size - 1), np.full(a.size - 1, _gain(b, a))])


@override(_PREFIX + "sosfilt")
def _sosfilt(sos: np.ndarray, x: np.ndarray, axis: int = -1, zi: Any = None) -> Any:
    if zi is None:
        return _scipy().sosfilt(sos, x, axis)
    axis, final = axis % x.ndim, np.empty(zi.shape, np.result_type(sos, x, zi))
    for number, section in enumerate(sos):
        x, final[number] = _lfilter(section[:3], section[3:], x, axis, zi[number])
    return x, final


@override(_PREFIX + "sosfilt_zi")
def _sosfilt_zi(sos: np.ndarray) -> np.ndarray:
    levels = np.cumprod([1, *(_gain(section[:3], section[3:]) for section in sos)])
    return np.repeat(np.stack([levels[:-1], levels[1:]], axis=1), 2, axis=1).astype(sos.dtype)
