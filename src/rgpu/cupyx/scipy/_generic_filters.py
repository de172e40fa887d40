"""``generic_filter`` and ``generic_filter1d``: a kernel of the user's, applied to every window or line of an image.

The windows are gathered by views and an index, and a kernel that calls the user's code for each runs on the device,
whichever that is. Nothing here waits but for a footprint that is on the device.
"""

from __future__ import annotations

import math
import operator
import re
from typing import Any

import numpy as np

from rgpu.functions import creation, dispatch
from rgpu.functions.kernels.loops import ReductionKernel
from rgpu.functions.kernels.raw import RawKernel
from rgpu.lib.stride_tricks import sliding_window_view
from rgpu.wire.kernels import c_type

#: modes of ndimage as modes of ``pad``
_MODES = {"reflect": "symmetric", "grid-mirror": "symmetric", "constant": "constant", "grid-constant": "constant",
          "nearest": "edge", "mirror": "reflect", "wrap": "wrap", "grid-wrap": "wrap"}  # fmt: skip
# The names here begin with rgpu_: a kernel of the user's has any others, and CuPy's (REDUCE, _in_ind) beside its own.
_EACH = "unsigned long long rgpu_i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;"
_WINDOW = """
extern "C" __global__ void rgpu_each(double* rgpu_in, double* rgpu_out, unsigned long long rgpu_n, int rgpu_size) {
    %s if (rgpu_i < rgpu_n) %s(rgpu_in + rgpu_i * rgpu_size, rgpu_size, rgpu_out + rgpu_i);
}"""
_LINE = """
extern "C" __global__ void rgpu_each(
    double* rgpu_in, double* rgpu_out, unsigned long long rgpu_n, long long rgpu_a, long long rgpu_b
) {
    %s if (rgpu_i < rgpu_n) %s(rgpu_in + rgpu_i * rgpu_a, rgpu_a, rgpu_out + rgpu_i * rgpu_b, rgpu_b);
}"""
_REDUCTION = """
%(types)s
%(preamble)s
typedef %(reduce_type)s rgpu_type;
#define REDUCE(a, b) (%(reduce)s)
#define POST_MAP(a) (%(post_map)s)
struct rgpu_index { long long n; __device__ long long size() const { return n; } };
extern "C" __global__ void rgpu_each(
    %(in_type)s* rgpu_in, %(out_type)s* rgpu_out, unsigned long long rgpu_n, int rgpu_size
) {
    %(each)s if (rgpu_i >= rgpu_n) return;
    %(in_type)s* _raw_%(in_name)s = rgpu_in + rgpu_i * rgpu_size;
    rgpu_index _in_ind; _in_ind.n = rgpu_size;
    rgpu_type rgpu_sum = rgpu_type(%(identity)s);
    for (int rgpu_j = 0; rgpu_j < rgpu_size; ++rgpu_j) {
        %(in_type)s %(in_name)s = _raw_%(in_name)s[rgpu_j];
        rgpu_type rgpu_mapped = rgpu_type(%(map)s);
        rgpu_sum = rgpu_type(REDUCE(rgpu_sum, rgpu_mapped));
    }
    %(out_type)s& %(out_name)s = rgpu_out[rgpu_i];
    POST_MAP(rgpu_sum);
}"""


def _device_function(kernel: RawKernel) -> str:
    """The source of a kernel as functions that another kernel calls."""
    return re.sub(r"\b__global__\b", "__device__", re.sub(r'extern\s+"C"\s*', "", kernel.code))


def _reduction(kernel: ReductionKernel, in_dtype: np.dtype, out_dtype: np.dtype) -> str:
    source, target = kernel.in_params[0], kernel.out_params[0]
    types = {}
    for parameter, dtype in ((source, in_dtype), (target, out_dtype)):
        if parameter.dtype is None:
            types.setdefault(parameter.type, c_type(dtype))
    return _REDUCTION % {
        "preamble": kernel.preamble, "each": _EACH,
        "in_type": c_type(in_dtype), "out_type": c_type(out_dtype), "in_name": source.name, "out_name": target.name,
        "types": "".join(f"typedef {text} {name};" for name, text in types.items()), "identity": kernel.identity,
        "reduce_type": kernel.reduce_type, "map": kernel.map_expr, "reduce": kernel.reduce_expr,
        "post_map": kernel.post_map_expr,
    }  # fmt: skip


def _launch(code: str, count: int, *args: Any) -> None:
    if count:
        RawKernel(code, "rgpu_each")((-(-count // 128),), (128,), args)


def _spread(x: Any, count: int, name: str) -> list[int]:
    values = [x] * count if np.ndim(x) == 0 else list(x)
    if len(values) != count:
        raise RuntimeError(f"{name} must have length equal to input rank")
    return [int(value) for value in values]


def _before(origin: int, width: int) -> int:
    """How far a window reaches in front of its element."""
    if not 0 <= width // 2 + origin < width:
        raise ValueError("invalid origin")
    return width // 2 + origin


def _padded(image: Any, reach: list[tuple[int, int]], mode: str, cval: Any) -> Any:
    if mode not in _MODES:
        raise RuntimeError(f"boundary mode not supported (actual: {mode})")
    options = {"constant_values": cval} if _MODES[mode] == "constant" else {}
    return dispatch.call("pad", image, reach, _MODES[mode], **options)


def _output(output: Any, image: Any) -> Any:
    if output is None or isinstance(output, str | type | np.dtype):
        return creation.empty(image.shape, image.dtype if output is None else np.dtype(output))
    if output.shape != image.shape:
        raise RuntimeError("output shape not correct")
    return output


def generic_filter(
    input: Any, function: Any, size: Any = None, footprint: Any = None, output: Any = None, mode: str = "reflect",
    cval: float = 0.0, origin: Any = 0, *, axes: Any = None,
) -> Any:  # fmt: skip
    """A ReductionKernel, or a RawKernel ``(double* window, int size, double* result)``, of each window."""
    if input.dtype.kind == "c":
        raise TypeError("Complex type not supported")
    if not isinstance(function, RawKernel | ReductionKernel):
        raise TypeError("bad function type")
    axes = range(input.ndim) if axes is None else (axes,) if isinstance(axes, int) else axes
    axes = tuple(operator.index(axis) % input.ndim for axis in axes)
    if footprint is None:
        if size is None:
            raise RuntimeError("no footprint or filter size provided")
        mask = np.ones(_spread(size, len(axes), "size"), bool)
    else:
        mask = np.asarray(footprint.get() if hasattr(footprint, "get") else footprint, bool)
    if mask.ndim != len(axes):
        raise RuntimeError("footprint array has incorrect shape.")
    if not mask.size or not input.size:
        return creation.zeros_like(input)
    if not mask.any():
        raise ValueError("all-zero footprint is not supported")
    reach = [(0, 0)] * input.ndim
    for axis, width, shift in zip(axes, mask.shape, _spread(origin, len(axes), "origin")):
        before = _before(shift, width)
        reach[axis] = (before, width - 1 - before)
    windows = sliding_window_view(_padded(input, reach, mode, cval), mask.shape, axes)
    windows = windows.reshape(-1, mask.size)
    if not mask.all():
        windows = windows.take(creation.array(np.flatnonzero(mask)), axis=1)
    result, width = _output(output, input), windows.shape[1]
    count = math.prod(input.shape)
    if isinstance(function, RawKernel):
        windows = windows.astype(np.float64)
        found = creation.empty(count, np.float64)
        code = _device_function(function) + _WINDOW % (_EACH, function.name)
    else:
        windows = creation.ascontiguousarray(windows)
        found = creation.empty(count, result.dtype)
        code = _reduction(function, windows.dtype, found.dtype)
    _launch(code, count, windows, found, np.uint64(count), np.int32(width))
    result[...] = found.reshape(input.shape)
    return result


def generic_filter1d(
    input: Any, function: Any, filter_size: int, axis: int = -1, output: Any = None, mode: str = "reflect",
    cval: float = 0.0, origin: int = 0,
) -> Any:  # fmt: skip
    """A RawKernel ``(double* line, ptrdiff_t length, double* result, ptrdiff_t length)`` of each line.

    The line that goes in is longer than the result by ``filter_size - 1``."""
    if input.dtype.kind == "c":
        raise TypeError("Complex type not supported")
    if not isinstance(function, RawKernel):
        raise TypeError("bad function type")
    if filter_size < 1:
        raise RuntimeError("invalid filter size")
    before = _before(int(origin), filter_size)
    reach = [(0, 0)] * input.ndim
    reach[axis] = (before, filter_size - 1 - before)
    lines = creation.ascontiguousarray(_padded(input, reach, mode, cval).swapaxes(axis, -1), np.float64)
    result, length = _output(output, input), input.shape[axis]
    turned = input.swapaxes(axis, -1).shape
    found = creation.empty(turned, np.float64)
    count = found.size // max(length, 1)
    code = _device_function(function) + _LINE % (_EACH, function.name)
    _launch(code, count, lines, found, np.uint64(count), np.int64(lines.shape[-1]), np.int64(length))
    result[...] = found.swapaxes(axis, -1)
    return result
