"""``cupy.fft.config.set_cufft_callbacks``: CUDA C++ that is applied to each element a transform loads or stores.

cuFFT links such functions into its own kernels. Here they are kernels before and after the transform, which any
device with custom kernels can run; an element is seen at the same offset and with the same type as by cuFFT.
"""

from __future__ import annotations

import math
import re
import threading
import warnings
from typing import Any

import numpy as np

from rgpu.fft import plans
from rgpu.functions import creation
from rgpu.functions.kernels.raw import RawKernel

_TYPES = {"F": "cufftComplex", "D": "cufftDoubleComplex", "f": "cufftReal", "d": "cufftDoubleReal"}
_LETTERS = {"F": "C", "D": "Z", "f": "R", "d": "D"}
_local = threading.local()


def _prelude() -> str:
    """cuFFT's names of types, which its header would declare."""
    lines = ["typedef float2 cufftComplex; typedef double2 cufftDoubleComplex;"]
    lines.append("typedef float cufftReal; typedef double cufftDoubleReal;")
    for prefix, offset in (("cufftCallback", "size_t"), ("cufftJITCallback", "unsigned long long")):
        for char, letter in _LETTERS.items():
            kind = _TYPES[char]
            lines.append(f"typedef {kind} (*{prefix}Load{letter})(void*, {offset}, void*, void*);")
            lines.append(f"typedef void (*{prefix}Store{letter})(void*, {offset}, {kind}, void*, void*);")
    return "\n".join(lines) + "\n"


_INDEX = "unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;"
_LOAD = """extern "C" __global__ void rgpu_load(KIND* in, KIND* out, unsigned long long n, void* info) {
    INDEX if (i < n) out[i] = FUNCTION(in, i, info, 0);
}"""
_STORE = """extern "C" __global__ void rgpu_store(KIND* in, KIND* out, unsigned long long n, void* info) {
    INDEX if (i < n) FUNCTION(out, i, in[i], info, 0);
}"""


class _Callback:
    """One function, to be applied to every element of an array. ``data``: what its callerInfo points at."""

    def __init__(self, source: str, function: str, template: str, name: str, data: Any) -> None:
        self.source = re.sub(r"(?m)^\s*#\s*include\s*<cufft\w*\.h>.*$", "", source)
        self.function, self.template, self.name, self.data = function, template, name, data
        self._kernels: dict[str, RawKernel] = {}

    def __call__(self, array: Any) -> Any:
        array = creation.ascontiguousarray(array)
        char = array.dtype.char
        if char not in self._kernels:
            body = self.template.replace("KIND", _TYPES[char]).replace("FUNCTION", self.function)
            code = f"{_prelude()}{self.source}\n{body.replace('INDEX', _INDEX)}\n"
            self._kernels[char] = RawKernel(code, self.name)
        result, info = creation.empty_like(array), self.data if self.data is not None else array
        if array.size:
            grid = (-(-array.size // 128),)
            self._kernels[char](grid, (128,), (array, result, np.uint64(array.size), info))
        return result


def _bytes_at(pointer: Any) -> Any:
    """An array over the memory from a pointer to its end, as an argument of a kernel."""
    if pointer is None:
        return None
    root = getattr(pointer.mem, "_root", None)  # what was asked for; ``size`` is what the pool gave
    nbytes = (pointer.mem.size if root is None else root.nbytes) - (pointer.ptr - pointer.mem.ptr)
    return type(creation.empty(0))((nbytes,), np.uint8, pointer)


def _inferred(source: str, what: str) -> str:
    found = re.search(r"__device__[^;{(]*?(\w+)\s*\(", source)
    if found is None:
        raise ValueError(f"{what}_name cannot be inferred, please specify it explicitly")
    return found[1]


class set_cufft_callbacks:  # noqa: N801 - CuPy's name
    """A context manager under which transforms apply ``cb_load`` to their input, ``cb_store`` to their output.

    Both are CUDA C++ source; with ``cb_ver="legacy"`` they define d_loadCallbackPtr and d_storeCallbackPtr, with "jit"
    the function is found by its name. ``cb_load_data``, ``cb_store_data``: pointers to what the functions read.
    """

    def __init__(
        self, cb_load: Any = None, cb_store: Any = None, *, cb_ver: str = "legacy", cb_load_name: Any = None,
        cb_store_name: Any = None, cb_load_data: Any = None, cb_store_data: Any = None,
        cb_load_aux_arr: Any = None, cb_store_aux_arr: Any = None,
    ) -> None:  # fmt: skip
        if cb_ver not in ("legacy", "jit"):
            raise ValueError('cb_ver must be "legacy" or "jit"')
        if not cb_load and not cb_store:
            raise ValueError("need to specify either cb_load or cb_store, or both")
        if any(x is not None and not isinstance(x, str) for x in (cb_load, cb_store)):
            raise NotImplementedError("callbacks are given as source: compiled ones have no meaning on every device")
        for array, data, what in ((cb_load_aux_arr, cb_load_data, "load"), (cb_store_aux_arr, cb_store_data, "store")):
            if array is not None and data is not None:
                raise ValueError(f"only use cb_{what}_data and not cb_{what}_aux_arr")
        if cb_load_aux_arr is not None or cb_store_aux_arr is not None:
            message = "passing an ndarray to cb_load_aux_arr or cb_store_aux_arr is deprecated: pass arr.data"
            warnings.warn(f"{message} to cb_load_data or cb_store_data", DeprecationWarning, stacklevel=2)
        if cb_ver == "legacy":
            message = 'Using the legacy callback is considered deprecated, use cb_ver="jit" instead'
            warnings.warn(message, DeprecationWarning, stacklevel=2)
        load_data = cb_load_data if cb_load_aux_arr is None else cb_load_aux_arr.data
        store_data = cb_store_data if cb_store_aux_arr is None else cb_store_aux_arr.data
        pointers = (0 if data is None else data.ptr for data in (load_data, store_data))
        self.key, self.static = (cb_load or "", cb_store or "", *pointers), cb_ver == "legacy"  # of its cached plans
        self.load = self._made("load", cb_load, cb_ver, cb_load_name, load_data)
        self.store = self._made("store", cb_store, cb_ver, cb_store_name, store_data)

    @staticmethod
    def _made(what: str, source: Any, version: str, name: Any, data: Any) -> _Callback | None:
        if not source:
            if data is not None:
                raise ValueError(f"{what} callback is not given")
            return None
        pointer = f"d_{what}CallbackPtr"
        if version == "legacy" and pointer not in source:
            raise ValueError(f"need to specify {pointer} in cb_{what}")
        function = pointer if version == "legacy" else name or _inferred(source, f"cb_{what}")
        return _Callback(source, function, _LOAD if what == "load" else _STORE, f"rgpu_{what}", _bytes_at(data))

    def __enter__(self) -> set_cufft_callbacks:
        self._before = current()
        _local.manager = self
        return self

    def __exit__(self, *failure: Any) -> None:
        _local.manager = self._before

    def run(self, run: Any, kind: Any, name: str, a: Any, s: Any, axes: Any, norm: Any, together: bool) -> Any:
        """A transform between the two kernels. What is stored is scaled afterwards, as CuPy scales it;
        without that kernel the transform scales, so that its last bits are those of one without callbacks."""
        places = tuple(range(-(a.ndim if s is None else len(s)), 0)) if axes is None else tuple(axes)
        a = _resized(a.astype(plans.computed_in(a.dtype, kind.values), copy=False),
                     plans.resized(a.shape, s, places, kind.values))  # fmt: skip
        size = plans.real_size(a.shape, s, places[-1], kind.values)
        norm = norm or "backward"
        inner_norm = norm if self.store is None else "forward" if kind.inverse else "backward"  # unscaled
        groups: list[tuple[str, tuple[int, ...]]] = [(name, places)]
        if not together and len(places) > 1:  # one axis at a time, as CuPy: the real one first in, and last out
            groups = [("ifft" if kind.inverse else "fft", (axis,)) for axis in places]
            if kind.values != "C2C":
                end = ("irfft" if kind.inverse else "rfft", (places[-1],))
                groups = [end, *groups[:-1]] if kind.values == "R2C" else [*groups[:-1], end]
        for step, over in groups:
            source = a
            if len(over) == 1:
                a = a.swapaxes(over[0], -1)
            a = self.load(a) if self.load is not None else a
            inner = over if len(over) > 1 else (-1,)
            ends = step.startswith("irfft")
            extents = tuple(size if ends and axis == over[-1] else source.shape[axis] for axis in over)
            a = run(step, a, extents, inner, inner_norm)
            a = self.store(a) if self.store is not None else a
            if len(over) == 1:
                a = a.swapaxes(over[0], -1)
            if norm != inner_norm:
                a /= math.sqrt(math.prod(extents)) if norm == "ortho" else math.prod(extents)
        return a


def _resized(a: Any, shape: tuple) -> Any:
    """The array cut, or padded with zeros, to a shape."""
    if a.shape == shape:
        return a
    kept = tuple(slice(0, min(old, new)) for old, new in zip(a.shape, shape))
    result = creation.zeros(shape, a.dtype)
    result[kept] = a[kept]
    return result


def current() -> set_cufft_callbacks | None:
    """The callbacks of the innermost ``with set_cufft_callbacks(...)`` of this thread."""
    return getattr(_local, "manager", None)
