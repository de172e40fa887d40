"""New arrays: from host data, from other arrays, from shapes.

Host data travels at once and in the source's memory order; after return the source may be
overwritten. A list that holds device arrays is stacked on the device.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np

from rgpu.client import meta as layouts
from rgpu.client import pool
from rgpu.client.quick import note, quick
from rgpu.client.remote import Remote
from rgpu.client.stream import next_handle
from rgpu.functions import dispatch, views
from rgpu.wire import limits, ops, values
from rgpu.wire.functions import BY_NAME

_NUMPY2 = int(np.__version__.split(".")[0]) > 1
_INLINE = 4096  # bytes; larger arrays travel in frames of their own


def upload(host: np.ndarray, stream: Any, cls: Any = None, fortran: bool = False) -> Any:
    """A device array with a host array's content, in C order or Fortran's."""
    if not host.dtype.isnative:
        host = host.astype(host.dtype.newbyteorder("="))
    dtype = checked_dtype(host.dtype)
    meta = layouts.ordered(layouts.fresh(host.shape, dtype), "F" if fortran else "C")
    host = np.asarray(host, order="F" if fortran else "C")
    if meta.c and meta.nbytes <= _INLINE:
        handle = next_handle()
        stream.put(handle, meta.wire, meta.shape, host.tobytes())
        return dispatch.new(meta, stream, handle, cls)
    result = views.empty(meta, stream, cls)
    stream.write(result._handle, bytes_of(host))
    return result


dispatch.upload = upload


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
    if subok:
        raise NotImplementedError("subok=True is not supported")
    order = checked_order(order, "K")
    obj = cupy_like(obj)
    if isinstance(obj, Remote):
        result = _from_array(obj, dtype, copy, order)
    else:
        leaves: list = []
        shape = _nested_shape(obj, leaves)
        if shape is not None:
            result = _from_nested(leaves, shape, dtype, order)
        else:
            result = _from_host(obj, dtype, order)
    if ndmin > result._metadata.ndim:
        if result is obj:
            result = result.view()
        result.shape = (1,) * (ndmin - result._metadata.ndim) + result._metadata.shape
    return result


def cupy_like(x: Any) -> Any:
    """A device array for an object that stands for one, anything else as it is."""
    if isinstance(x, Remote | bool | int | float | complex | np.generic | np.ndarray | list | tuple | str):
        return x
    exported = getattr(x, "__cupy_get_ndarray__", None)
    if exported is not None:
        return exported()
    described = getattr(x, "__cuda_array_interface__", None)
    return x if described is None else _from_description(described, x)


def _from_description(described: dict, owner: Any) -> Any:
    """The array behind CUDA's array interface: a view where the address is the pool's, which keeps its owner."""
    from rgpu.cuda import addresses, allocations

    if described.get("mask") is not None:
        raise ValueError("CuPy does not support masked arrays (the interface has a mask)")
    shape, dtype = tuple(described["shape"]), np.dtype(described["typestr"])
    if described.get("descr") and dtype.kind == "V":
        dtype = np.dtype(described["descr"])
    if dtype.kind not in "mM":  # a container of times is passed through; nothing computes with it
        dtype = checked_dtype(dtype)
    strides = described.get("strides")
    strides = layouts.c_strides(shape, dtype.itemsize) if strides is None else tuple(strides)
    meta = layouts.intern(shape, dtype, strides)
    address = described["data"][0]
    if not meta.size:
        return views.empty(meta, pool.current_stream())
    if not addresses.is_device(address):
        raise TypeError("a local CUDA array must be copied to the host first: pass numpy.asarray(obj)")
    root, offset = addresses.find(address)
    low, high = layouts.reach(meta)
    root = allocations.lent(root, owner=owner, span=(offset + low, high - low))
    return views.make(root, meta, offset, dispatch.ndarray)


def checked_order(order: Any, default: str, allowed: str = "CFAK") -> str:
    """A memory order as one capital letter; none and "" are the default."""
    if order is None or order == "":
        return default
    letter = order[:1].upper() if isinstance(order, str) else ""
    if not letter or letter not in allowed:
        raise ValueError(f"order not understood. order={order}")
    return letter


def _from_host(obj: Any, dtype: Any, order: str) -> Any:
    """Upload what NumPy makes of the object: C order unless it is (or shall be) Fortran's."""
    if order in "AK":
        fortran = isinstance(obj, np.ndarray) and obj.flags.f_contiguous and not obj.flags.c_contiguous
        order = "F" if fortran else "C"
    host = np.array(obj, dtype=dtype, copy=None if _NUMPY2 else False, order=order)
    return upload(host, pool.current_stream(), fortran=order == "F")


def _from_array(obj: Any, dtype: Any, copy: Any, order: str) -> Any:
    if obj._stream is not pool.current_stream():
        obj = dispatch.to_device(obj)
        copy = None
    result = obj.astype(obj._metadata.dtype if dtype is None else dtype, order=order, copy=bool(copy))
    if copy is False and result is not obj:
        raise ValueError("Unable to avoid copy while creating an array as requested.")
    return result


def _nested_shape(obj: Any, leaves: list) -> tuple | None:
    """The shape of nested sequences whose leaves are device arrays of one shape, else None."""
    if isinstance(obj, Remote):
        leaves.append(obj)
        return obj._metadata.shape
    if not isinstance(obj, list | tuple) or not obj:
        found = cupy_like(obj)
        return _nested_shape(found, leaves) if isinstance(found, Remote) else None
    first = _nested_shape(obj[0], leaves)
    if first is None:
        return None
    if any(_nested_shape(item, leaves) != first for item in obj[1:]):
        return None
    return (len(obj), *first)


def _from_nested(leaves: list, shape: tuple, dtype: Any, order: str) -> Any:
    """Put arrays one after another; C order unless Fortran's is asked for."""
    flat = [x if x._metadata.ndim else views.reshape(x, (1,)) for x in leaves]
    result = views.reshape(dispatch.call("concatenate", flat, 0), shape)
    return result.astype(
        result._metadata.dtype if dtype is None else dtype, order="F" if order == "F" else "C", copy=False
    )


def asarray(a: Any, dtype: Any = None, order: Any = None, *, blocking: bool = False, copy: Any = None) -> Any:
    """The object as an array on the current device; a device array that fits is returned itself."""
    return array(a, dtype, copy=copy, order=order)


def asanyarray(a: Any, dtype: Any = None, order: Any = None, *, blocking: bool = False) -> Any:
    return array(a, dtype, copy=None, order=order)


def ascontiguousarray(a: Any, dtype: Any = None) -> Any:
    """C order, at least one dimension."""
    return array(a, dtype, copy=None, order="C", ndmin=1)


def asfortranarray(a: Any, dtype: Any = None) -> Any:
    return array(a, dtype, copy=None, order="F", ndmin=1)


def checked_shape(shape: Any) -> tuple[int, ...]:
    """A shape argument as a tuple; ValueError for negative extents."""
    if shape is None:
        raise TypeError("Use () instead of None for the shape of a 0-dimensional array")
    if isinstance(shape, Remote):
        shape = dispatch.ndarray.get(shape).tolist()
    shape = (
        tuple(_extent(n) for n in shape)
        if isinstance(shape, tuple | list | range | np.ndarray)
        else (_extent(shape),)
    )
    if any(n < 0 for n in shape):
        raise ValueError("negative dimensions are not allowed")
    if len(shape) > limits.NDIM:
        raise ValueError(f"maximum supported dimension for an ndarray is {limits.NDIM}, found {len(shape)}")
    return shape


def _extent(n: Any) -> int:
    import operator

    return operator.index(n if not isinstance(n, Remote) else int(n))


def checked_dtype(dtype: Any) -> np.dtype:
    """A dtype that devices have; ValueError for any other."""
    dtype = np.dtype(dtype)
    if dtype.hasobject or dtype.kind in "OMmUS" or dtype.char in "gG" or dtype.subdtype is not None:
        raise ValueError(f"Unsupported dtype {dtype}")
    if not dtype.isnative:
        raise ValueError(f"Unsupported dtype {dtype} with non-native byte-order")
    if not dtype.itemsize and dtype.names is None:
        raise ValueError(f"Unsupported dtype {dtype} without size")
    return dtype


@quick(here=True)
def empty(shape: Any, dtype: Any = float, order: str = "C") -> Any:
    """An array with undefined content."""
    return views.empty(_layout(shape, dtype, order), pool.current_stream())


def _layout(shape: Any, dtype: Any, order: Any) -> Any:
    shape, dtype = checked_shape(shape), checked_dtype(dtype)
    return layouts.ordered(layouts.fresh(shape, dtype), checked_order(order, "C", "CF"))


def _filled(name: str, meta: Any, value: Any = None) -> Any:
    """zeros/ones are one command in C order; other orders and values fill an empty array."""
    if meta.c and value is None:
        return _noted(name, meta)
    result = views.empty(meta, pool.current_stream())
    result.fill({"zeros": 0, "ones": 1}[name] if value is None else value)
    return result


def _noted(name: str, meta: Any) -> Any:
    """A call that the layout decides, so that the next one like it is issued in C."""
    stream, handle = pool.current_stream(), next_handle()
    if meta.nbytes > stream.device.memory_total:
        pool.refuse(meta.nbytes, stream.device)
    arguments = [values.encode(x, lambda _: None) for x in (meta.shape, meta.dtype)]
    command = ops.Call.encode(BY_NAME[name].id, [handle], arguments, {})
    stream.submit_predicted(command, (handle,), (meta,))
    note(stream, command, handle)
    return dispatch.new(meta, stream, handle)


@quick(here=True)
def zeros(shape: Any, dtype: Any = float, order: str = "C") -> Any:
    return _filled("zeros", _layout(shape, dtype, order))


@quick(here=True)
def ones(shape: Any, dtype: Any = float, order: str = "C") -> Any:
    return _filled("ones", _layout(shape, dtype, order))


def full(shape: Any, fill_value: Any, dtype: Any = None, order: str = "C") -> Any:
    if dtype is None:
        dtype = fill_value._metadata.dtype if isinstance(fill_value, Remote) else np.array(fill_value).dtype
    return _filled("full", _layout(shape, dtype, order), fill_value)


def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> Any:
    """An array of a DLPack exporter on this host, uploaded; a device array is viewed or copied."""
    if isinstance(x, Remote):
        return x.copy() if copy else x.view()
    if copy is False:
        raise BufferError("the data must be copied to the remote device")
    return array(
        np.from_dlpack(x, device="cpu") if _NUMPY2 and hasattr(x, "__dlpack_device__") else np.from_dlpack(x)
    )


def fromDlpack(dltensor: Any) -> Any:  # noqa: N802 - CuPy's name
    warnings.warn("This function is deprecated, use cupy.from_dlpack instead", np.exceptions.VisibleDeprecationWarning,
                  stacklevel=2)  # fmt: skip
    raise BufferError("DLPack capsules hold local memory: use cupy.from_dlpack with the array itself")


def _like(a: Any, dtype: Any, order: str, shape: Any, subok: Any) -> Any:
    if subok is not None:
        raise TypeError("subok is not supported yet")
    if isinstance(a, np.ndarray):  # a local array will do: only its layout is asked for
        meta = layouts.intern(a.shape, checked_dtype(a.dtype), a.strides)
    elif isinstance(a, Remote):
        meta = a._metadata
    else:
        raise TypeError(f"Unsupported type {type(a)}")
    order = checked_order(order, "K")
    shape = None if shape is None else checked_shape(shape)
    return layouts.ordered(meta, order, None if dtype is None else checked_dtype(dtype), shape)


def empty_like(
    prototype: Any, dtype: Any = None, order: str = "K", subok: Any = None, shape: Any = None
) -> Any:
    return views.empty(_like(prototype, dtype, order, shape, subok), pool.current_stream())


def zeros_like(a: Any, dtype: Any = None, order: str = "K", subok: Any = None, shape: Any = None) -> Any:
    return _filled("zeros", _like(a, dtype, order, shape, subok))


def ones_like(a: Any, dtype: Any = None, order: str = "K", subok: Any = None, shape: Any = None) -> Any:
    return _filled("ones", _like(a, dtype, order, shape, subok))


def full_like(
    a: Any, fill_value: Any, dtype: Any = None, order: str = "K", subok: Any = None, shape: Any = None
) -> Any:
    return _filled("full", _like(a, dtype, order, shape, subok), fill_value)


def arange(start: Any, stop: Any = None, step: Any = 1, dtype: Any = None) -> Any:
    """Evenly spaced values; the length is ``ceil((stop - start) / step)`` as NumPy computes it."""
    start, stop, step = (_host(x) for x in (start, stop, 1 if step is None else step))
    if stop is None:
        start, stop = 0, start
    if dtype is None:
        dtype = np.result_type(*[np.array(x).dtype for x in (start, stop, step)])
    dtype = checked_dtype(dtype)
    if dtype.kind == "b" and (stop - start) / step > 2:
        raise TypeError("no fill-function for data-type bool and a length of more than 2")
    length = max(0, math.ceil((stop - start) / step)) if step else 0
    if not step:
        raise ZeroDivisionError("arange's step must not be zero")
    return dispatch.call_predicted("arange", layouts.fresh((length,), dtype), start, stop, step, dtype=dtype)


def _host(x: Any) -> Any:
    return x.item() if isinstance(x, Remote) else x


def linspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: Any = None,
    axis: int = 0,
) -> Any:
    """``num`` evenly spaced values from start to stop."""
    if any(isinstance(x, Remote | list | tuple | np.ndarray) for x in (start, stop)) or retstep:
        return dispatch.call("linspace", start, stop, num, endpoint, retstep, dtype=dtype, axis=axis)
    if num < 0:
        raise ValueError(f"linspace with num<0 is not supported: {num}")
    result = np.linspace(start, stop, 1).dtype if dtype is None else checked_dtype(dtype)
    return dispatch.call_predicted(
        "linspace", layouts.fresh((int(num),), result), start, stop, int(num), endpoint, dtype=dtype
    )


def eye(N: int, M: int | None = None, k: int = 0, dtype: Any = float, order: str = "C") -> Any:
    M = N if M is None else M
    meta = layouts.fresh((int(N), int(M)), checked_dtype(dtype))
    result = dispatch.call_predicted("eye", meta, int(N), int(M), int(k), meta.dtype)
    return views.copy(result, "F") if order == "F" else result


def identity(n: int, dtype: Any = float) -> Any:
    return eye(n, dtype=dtype)
