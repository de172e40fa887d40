"""Cepstra of ``cupyx.signal``: transforms of the logarithm of a spectrum, as array operations.

Formulas: Oppenheim and Schafer, Discrete-Time Signal Processing, chapter on homomorphic processing.
"""

from __future__ import annotations

from typing import Any

import rgpu as cp


def real_cepstrum(x: Any, n: int | None = None, axis: int = -1) -> Any:
    """The inverse transform of ``log |X|``, where X is the transform of x, of length n, along an axis. Real."""
    spectrum = cp.fft.fft(cp.asarray(x), n=n, axis=axis)
    return cp.fft.ifft(cp.log(cp.abs(spectrum)), n=n, axis=axis).real


def _ramp(samples: int) -> Any:
    """A phase that grows by pi until the middle of the spectrum."""
    return cp.arange(samples) * (cp.pi / max((samples + 1) // 2, 1))


def complex_cepstrum(x: Any, n: int | None = None, axis: int = -1) -> tuple[Any, Any]:
    """The inverse transform of ``log X`` with its phase unwrapped and made zero at pi: (cepstrum, delay).

    The delay is the number of samples by which x was turned for that, repeated to the shape of the spectrum. An odd
    length has no line at pi: its cepstrum is that of a sequence near x.
    """
    spectrum = cp.fft.fft(cp.asarray(x), n=n, axis=axis)
    lines = cp.moveaxis(spectrum, axis, -1)
    phase, samples = cp.unwrap(cp.angle(lines)), lines.shape[-1]
    delay = cp.round(phase[..., (samples + 1) // 2 % samples, None] / cp.pi)
    logarithm = cp.log(cp.abs(lines)) + 1j * (phase - delay * _ramp(samples))
    cepstrum = cp.fft.ifft(logarithm.astype(spectrum.dtype, copy=False), n=n).real
    delays = cp.broadcast_to(delay, phase.shape).copy()
    return cp.moveaxis(cepstrum, -1, axis), cp.moveaxis(delays, -1, axis)


def inverse_complex_cepstrum(ceps: Any, ndelay: Any) -> Any:
    """The real sequence along the last axis whose complex cepstrum, turned by so many samples, this is."""
    logarithm = cp.fft.fft(cp.asarray(ceps))
    return cp.fft.ifft(cp.exp(logarithm + 1j * ndelay * _ramp(logarithm.shape[-1]))).real


def minimum_phase(x: Any, n: int | None = None) -> Any:
    """The real sequence of length n with the magnitudes of x's spectrum and the smallest phase: causal in cepstrum."""
    n = len(x) if n is None else n
    half = (n + 1) // 2
    weights = cp.zeros(n)
    weights[:half] = 2
    weights[0] = 1
    if n % 2 == 0:
        weights[half] = 1
    return cp.fft.ifft(cp.exp(cp.fft.fft(real_cepstrum(x, n=n) * weights))).real
