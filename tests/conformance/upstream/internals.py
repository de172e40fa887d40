"""Internals of CuPy that its tests call, made of what rgpu offers: each really does its work on the servers.

Where CuPy's tests reach for a private function to get at a public ability (a reduction, a compiled module, a
scan), this is the way there. They belong to the harness; rgpu has no such names. Must not fake a result.
"""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import rgpu
from rgpu.errors import PerformanceWarning


def elementwise_copy(source: Any, target: Any) -> None:
    """``cupy._core.elementwise_copy``: from another device with CuPy's warning."""
    if source.device != target.device:
        warnings.warn("the arrays are on different devices", PerformanceWarning, stacklevel=2)
    target[...] = source


def scan(a: Any, out: Any = None) -> Any:
    """``cupy._core._routines_math._scan_for_test``: sums up to each element of a vector."""
    if a.ndim != 1:
        raise TypeError("Input array should be 1D array.")
    return rgpu.cumsum(a, dtype=a.dtype, out=out)


def compiled(code: str, **kwargs: Any) -> Any:
    """``cupy.cuda.compiler._compile_module_with_cache``: a module whose functions have ``linear_launch``."""
    kwargs.pop("extra_source", None)
    return _Module(rgpu.RawModule(code=code, **kwargs))


class _Module:
    def __init__(self, module: Any) -> None:
        self.module = module

    def get_function(self, name: str) -> Any:
        return self.module.get_function(name).kernel


class KernelCache:
    """``DiskKernelCacheBackend``: CuPy's tests set its cache of binaries aside. The servers' cache goes by content."""

    def __init__(self, path: Any = None) -> None:
        self._cache_dir = path


#: for two functions of CuPy's, which its tests only compare
ONE_AXIS, SEVERAL_AXES = "one axis at a time", "several axes at once"


def transform_of(a: Any, s: Any = None, axes: Any = None, plan: Any = None, value_type: str = "C2C") -> str:
    """Which of CuPy's two ways a transform goes; what tests look at is the order of its result."""
    from rgpu.fft import plans

    return SEVERAL_AXES if plans.at_once(a, s, axes, value_type, plan) else ONE_AXIS


def recursion(x: Any, a: Any, axis: int = -1, zi: Any = None, dtype: Any = None, block_sz: int = 0) -> Any:
    """The recursive half of ``lfilter``, whose coefficients are on the other side of the equation."""
    import cupy
    import cupyx.scipy.signal as signal

    dtype = cupy.result_type(x, a) if dtype is None else dtype
    b, a = cupy.ones(1, dtype), cupy.concatenate([cupy.ones(1, dtype), -a.astype(dtype)])
    x = x.astype(dtype)
    return (signal.lfilter(b, a, x, axis) if zi is None else signal.lfilter(b, a, x, axis, zi)[0]).astype(dtype)


def sections(x: Any, sos: Any, axis: int = -1, zi: Any = None, dtype: Any = None, block_sz: int = 0) -> Any:
    """``sosfilt``, which always gives its state back."""
    import cupyx.scipy.signal as signal

    return signal.sosfilt(sos, x, axis) if zi is None else signal.sosfilt(sos, x, axis, zi)


def exponents(ndim: int, degree: int) -> Any:
    """Of all monomials up to a degree, one a row."""
    import cupy

    names = [m for d in range(degree + 1) for m in itertools.combinations_with_replacement(range(ndim), d)]
    return cupy.array([[m.count(axis) for axis in range(ndim)] for m in names], dtype=int).reshape(len(names), ndim)


def monomials(x: Any, powers: Any, out: Any) -> None:
    out[...] = (x[:, None, :] ** powers[None]).prod(axis=-1)


def gives_integers(output: Any, input: Any) -> bool:
    """Whether a filter's result, an array or a dtype or that of the input, has integers."""
    dtype = input.dtype if output is None else output.dtype if isinstance(output, rgpu.ndarray) else output
    return rgpu.dtype(dtype).kind in "iu"
