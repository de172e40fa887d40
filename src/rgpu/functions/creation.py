"""New arrays: from host data, from other arrays, from shapes.

Host data travels at once and in the source's memory order; after return the source may be
overwritten. A list that holds device arrays is stacked on the device.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rgpu.client import meta as layouts
from rgpu.client import pool
from rgpu.client.remote import Remote
from rgpu.client.stream import next_handle
from rgpu.functions import dispatch, views
from rgpu.wire import limits

_INLINE = 4096  # bytes; larger arrays travel in frames of their own


def upload(host: np.ndarray, stream: Any, cls: Any = None) -> Any:
    """A device array with a host array's content and memory order (C or Fortran)."""
    if host.dtype.hasobject or host.dtype.kind in "OMmUS":
        raise ValueError(f"Unsupported dtype {host.dtype}")
    if host.dtype.byteorder == ">" or (host.dtype.byteorder == "=" and not np.little_endian):
        host = host.astype(host.dtype.newbyteorder("<"))
    fortran = host.flags.f_contiguous and not host.flags.c_contiguous
    meta = layouts.ordered(layouts.fresh(host.shape, host.dtype), "F" if fortran else "C")
    if not fortran:
        host = np.ascontiguousarray(host).reshape(host.shape)
    if meta.c and meta.nbytes <= _INLINE:
        handle = next_handle()
        stream.put(handle, meta.wire, meta.shape, host.tobytes())
        return dispatch.new(meta, stream, handle, cls)
    result = views.empty(meta, stream, cls)
    stream.write(result._handle, bytes_of(host))
    return result


def bytes_of(host: np.ndarray) -> memoryview:
    """The memory of a contiguous host array as bytes."""
    flat = host.T if not host.flags.c_contiguous else host
    return memoryview(flat.reshape(-1).view(np.uint8)) if flat.nbytes else memoryview(b"")


def array(
    obj: Any,
    dtype: Any = None,
    copy: bool | None = True,
    order: str = "K",
    subok: bool = False,
    ndmin: int = 0,
    *,
    blocking: bool = False,
) -> Any:
    """Create an array on the current device (shape, dtype and order as ``numpy.array`` gives them).

    ``obj``: a device array, a host array or scalar, or nested sequences of them.
    """
    if order not in ("C", "F", "A", "K", None):
        raise ValueError("order must be one of 'C', 'F', 'A', or 'K'")
    order = order or "K"
    stream = pool.current_stream()
    cls = type(obj) if subok and isinstance(obj, Remote) else None
    if not isinstance(obj, Remote):
        exported = getattr(obj, "__cupy_get_ndarray__", None)
        if exported is not None:
            obj = exported()
    if isinstance(obj, Remote):
        result = _from_array(obj, dtype, copy, order, cls)
    elif _holds_arrays(obj):
        result = _from_nested(obj, dtype, order)
    else:
        if getattr(obj, "__cuda_array_interface__", None) is not None:
            raise TypeError("a local CUDA array must be copied to the host first: pass numpy.asarray(obj)")
        host = np.array(obj, dtype=dtype, copy=None if int(np.__version__.split(".")[0]) > 1 else False, order=order, ndmin=ndmin)
        if order == "A" or order == "K":
            pass
        result = upload(host, stream)
    if ndmin > result._meta.ndim:
        result = views.reshape(result, (1,) * (ndmin - result._meta.ndim) + result._meta.shape)
    return result


def _from_array(obj: Remote, dtype: Any, copy: Any, order: str, cls: Any) -> Any:
    if obj._stream is not pool.current_stream():
        obj = dispatch.to_device(obj)
        copy = False
    wanted = obj._meta.dtype if dtype is None else np.dtype(dtype)
    layout = layouts.ordered(obj._meta, order)
    suits = wanted == obj._meta.dtype and (
        order == "K" or (order == "C" and obj._meta.c) or (order == "F" and obj._meta.f) or (order == "A" and (obj._meta.c or obj._meta.f))
    )
    del layout
    if not copy and suits:
        return obj if cls or type(obj) is dispatch.ndarray else views.make(obj, obj._meta, 0, dispatch.ndarray)
    return views.copy(obj, order, wanted, cls or dispatch.ndarray)


def _holds_arrays(obj: Any) -> bool:
    if isinstance(obj, list | tuple):
        return any(isinstance(x, Remote) or _holds_arrays(x) for x in obj[:8])
    return False


def _from_nested(obj: Any, dtype: Any, order: str) -> Any:
    """Stack nested sequences that contain device arrays."""
    items = [x if isinstance(x, Remote) else array(x) for x in obj]
    result = dispatch.call("stack", items)
    if dtype is not None and np.dtype(dtype) != result._meta.dtype:
        result = views.copy(result, "K", dtype)
    if order == "F":
        result = views.copy(result, "F")
    return result


def asarray(a: Any, dtype: Any = None, order: Any = None, *, blocking: bool = False, copy: Any = None) -> Any:
    """The object as an array on the current device; a device array that fits is returned itself."""
    return array(a, dtype, copy=bool(copy), order=order or "K")


def asanyarray(a: Any, dtype: Any = None, order: Any = None, *, blocking: bool = False) -> Any:
    return array(a, dtype, copy=False, order=order or "K", subok=True)


def ascontiguousarray(a: Any, dtype: Any = None) -> Any:
    """C order, at least one dimension."""
    return array(a, dtype, copy=False, order="C", ndmin=1)


def asfortranarray(a: Any, dtype: Any = None) -> Any:
    return array(a, dtype, copy=False, order="F")


def checked_shape(shape: Any) -> tuple[int, ...]:
    """A shape argument as a tuple; ValueError for negative extents."""
    if isinstance(shape, Remote):
        shape = dispatch.ndarray.get(shape).tolist()
    shape = tuple(_extent(n) for n in shape) if isinstance(shape, tuple | list | np.ndarray) else (_extent(shape),)
    if any(n < 0 for n in shape):
        raise ValueError("negative dimensions are not allowed")
    if len(shape) > limits.NDIM:
        raise ValueError(f"maximum supported dimension for an ndarray is {limits.NDIM}, found {len(shape)}")
    return shape


def _extent(n: Any) -> int:
    import operator

    return operator.index(n if not isinstance(n, Remote) else int(n))


def checked_dtype(dtype: Any) -> np.dtype:
    dtype = np.dtype(dtype)
    if dtype.hasobject or dtype.kind in "OMmUS":
        raise ValueError(f"Unsupported dtype {dtype}")
    return dtype.newbyteorder("=") if dtype.byteorder == ">" else dtype


def empty(shape: Any, dtype: Any = float, order: str = "C") -> Any:
    """An array with undefined content."""
    return views.empty(_layout(shape, dtype, order), pool.current_stream())


def _layout(shape: Any, dtype: Any, order: Any) -> Any:
    shape, dtype = checked_shape(shape), checked_dtype(dtype)
    if order not in ("C", "F", None):
        raise ValueError(f"order must be 'C' or 'F' (got {order!r})")
    return layouts.ordered(layouts.fresh(shape, dtype), order or "C")


def _filled(name: str, meta: Any, value: Any = None) -> Any:
    """zeros/ones are one command in C order; other orders and values fill an empty array."""
    if meta.c and value is None:
        return dispatch.call_predicted(name, meta, meta.shape, meta.dtype)
    result = views.empty(meta, pool.current_stream())
    result.fill({"zeros": 0, "ones": 1}[name] if value is None else value)
    return result


def zeros(shape: Any, dtype: Any = float, order: str = "C") -> Any:
    return _filled("zeros", _layout(shape, dtype, order))


def ones(shape: Any, dtype: Any = float, order: str = "C") -> Any:
    return _filled("ones", _layout(shape, dtype, order))


def full(shape: Any, fill_value: Any, dtype: Any = None, order: str = "C") -> Any:
    if dtype is None:
        dtype = fill_value._meta.dtype if isinstance(fill_value, Remote) else np.array(fill_value).dtype
    return _filled("full", _layout(shape, dtype, order), fill_value)


def _like(a: Any, dtype: Any, order: str, shape: Any) -> Any:
    if not isinstance(a, Remote):
        raise TypeError(f"Unsupported type {type(a)}")
    if order not in ("C", "F", "A", "K", None):
        raise TypeError(f"order not understood: {order}")
    shape = None if shape is None else checked_shape(shape)
    return layouts.ordered(a._meta, order or "K", None if dtype is None else checked_dtype(dtype), shape)


def empty_like(prototype: Any, dtype: Any = None, order: str = "K", subok: Any = None, shape: Any = None) -> Any:
    return views.empty(_like(prototype, dtype, order, shape), pool.current_stream())


def zeros_like(a: Any, dtype: Any = None, order: str = "K", subok: Any = None, shape: Any = None) -> Any:
    return _filled("zeros", _like(a, dtype, order, shape))


def ones_like(a: Any, dtype: Any = None, order: str = "K", subok: Any = None, shape: Any = None) -> Any:
    return _filled("ones", _like(a, dtype, order, shape))


def full_like(a: Any, fill_value: Any, dtype: Any = None, order: str = "K", subok: Any = None, shape: Any = None) -> Any:
    return _filled("full", _like(a, dtype, order, shape), fill_value)


def arange(start: Any, stop: Any = None, step: Any = 1, dtype: Any = None) -> Any:
    """Evenly spaced values; the length is ``ceil((stop - start) / step)`` as NumPy computes it."""
    start, stop, step = (_host(x) for x in (start, stop, step))
    if stop is None:
        start, stop = 0, start
    if dtype is None:
        dtype = np.result_type(*[np.array(x).dtype for x in (start, stop, step)])
    dtype = checked_dtype(dtype)
    length = max(0, math.ceil((stop - start) / step)) if step else 0
    if not step:
        raise ZeroDivisionError("arange's step must not be zero")
    return dispatch.call_predicted("arange", layouts.fresh((length,), dtype), start, stop, step, dtype=dtype)


def _host(x: Any) -> Any:
    return x.item() if isinstance(x, Remote) else x


def linspace(
    start: Any, stop: Any, num: int = 50, endpoint: bool = True, retstep: bool = False, dtype: Any = None, axis: int = 0
) -> Any:
    """``num`` evenly spaced values from start to stop."""
    if any(isinstance(x, Remote | list | tuple | np.ndarray) for x in (start, stop)) or retstep:
        return dispatch.call("linspace", start, stop, num, endpoint, retstep, dtype=dtype, axis=axis)
    if num < 0:
        raise ValueError(f"linspace with num<0 is not supported: {num}")
    result = np.linspace(start, stop, 1).dtype if dtype is None else checked_dtype(dtype)
    return dispatch.call_predicted("linspace", layouts.fresh((int(num),), result), start, stop, int(num), endpoint, dtype=dtype)


def eye(N: int, M: int | None = None, k: int = 0, dtype: Any = float, order: str = "C") -> Any:
    M = N if M is None else M
    meta = layouts.fresh((int(N), int(M)), checked_dtype(dtype))
    result = dispatch.call_predicted("eye", meta, int(N), int(M), int(k), meta.dtype)
    return views.copy(result, "F") if order == "F" else result


def identity(n: int, dtype: Any = float) -> Any:
    return eye(n, dtype=dtype)


def asnumpy(a: Any, stream: Any = None, order: str = "C", out: Any = None, *, blocking: bool = True) -> np.ndarray:
    """The array's content in host memory (waits)."""
    if isinstance(a, Remote):
        return a.get(stream=stream, order=order, out=out, blocking=blocking)  # type: ignore[attr-defined]
    result = np.asarray(a, order=order)
    if out is not None:
        out[...] = result
        return out
    return result
