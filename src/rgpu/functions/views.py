"""Views: arrays over another array's memory, computed on the client by NumPy itself.

A function of NumPy runs on the array's shadow; what comes back is turned into a ``View``
command. Nothing here touches data, so nothing waits. Where NumPy would have to copy, so do we.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rgpu.client import meta as layouts
from rgpu.client.meta import Meta
from rgpu.client.quick import note
from rgpu.client.remote import Remote
from rgpu.client.remote import root_of as root_of
from rgpu.client.stream import next_handle
from rgpu.functions import dispatch
from rgpu.wire import ops, values
from rgpu.wire.functions import BY_NAME

_T_VIEW, _T_CALL = ops.View.tag, ops.Call.tag
_COPY = BY_NAME["ndarray.copy"].id
_ONE_STEP = 16 << 20  # bytes of a copy that one command makes; whether a device holds a larger one is asked first
_EXACT = frozenset((int, str, type(None)))
_INT = frozenset((int,))
_KEPT = 10_000
_views: dict[Any, tuple[Meta, int]] = {}  # what was asked of which layout -> layout and offset of the view


def remember(key: Any, found: Any) -> Any:
    """A view that ``recall`` will find; bounded, for programs that make endless layouts."""
    if len(_views) >= _KEPT:
        _views.clear()
    _views[key] = found
    return found


recall = _views.get


_MAX_DIMENSIONS = 64  # NumPy's


def make(array: Remote, meta: Meta, offset: int, cls: Any = None) -> Any:
    """The view of ``array``'s memory with this layout, ``offset`` bytes from the array's first element."""
    root = root_of(array)
    stream, handle = array._stream, next_handle()
    offset = array._offset + offset if meta.size else 0
    command = (_T_VIEW, handle, root._handle, meta.wire, meta.shape, meta.strides, offset)
    stream.submit_predicted(command, (handle,), (meta,))
    note(stream, command, handle)
    view = object.__new__(cls or type(array))
    view._handle, view._metadata, view._stream, view._root, view._offset = handle, meta, stream, root, offset
    if type(view) is not dispatch.ndarray:
        view.__array_finalize__(array)  # a subclass may keep something of the array's
    return view


def same_memory(a: Any, b: Any) -> bool:
    """Whether two arrays have one root."""
    return root_of(a)._handle == root_of(b)._handle


def apply(function: Callable[..., Any], array: Remote, *args: Any, **kwargs: Any) -> Any:
    """Run a NumPy function that makes views on the array's shadow; arrays in its result become views."""
    if kwargs or not _EXACT.issuperset(map(type, args)):
        return _wrap(array, function(array._metadata.shadow, *args, **kwargs))
    key = (function, array._metadata, *args)
    found = recall(key)
    if found is not None:
        return make(array, *found)
    result = function(array._metadata.shadow, *args)
    if type(result) is np.ndarray and result is not array._metadata.shadow:
        found = layouts.view_of_shadow(result)
        if found is not None:
            remember(key, found)
    return _wrap(array, result)


def _wrap(array: Remote, result: Any) -> Any:
    if isinstance(result, np.ndarray):
        if result is array._metadata.shadow:
            return array
        found = layouts.view_of_shadow(result)
        if found is None:
            raise ValueError("this function would have to copy the array")
        return make(array, *found)
    if isinstance(result, tuple | list):
        return type(result)(_wrap(array, item) for item in result)
    return result


def reshape(array: Any, shape: Any, order: str = "C") -> Any:
    """A view where the layout allows it, otherwise a reshaped copy."""
    order = order.upper() if isinstance(order, str) else order
    if order == "K":
        raise ValueError("order 'K' is not permitted for reshaping")
    if order not in ("C", "F", "A"):
        raise ValueError(f"order must be one of 'C', 'F', or 'A' (got {order!r})")
    if order == "A":
        order = "F" if array._metadata.f and not array._metadata.c else "C"
    asked = (array._metadata, shape, order) if type(shape) is tuple and _INT.issuperset(map(type, shape)) else None
    if asked is not None and (found := recall(asked)) is not None:
        return make(array, *found)
    shape = _complete(shape, array._metadata.size)
    for copied in (False, True):
        result = _reshaped(array._metadata.shadow, shape, order)
        if result is not None:
            found = layouts.view_of_shadow(result)
            if asked is not None and not copied:
                remember(asked, found)
            return make(array, *found)  # type: ignore[misc]
        array = copy(array, order)
    raise ValueError(f"cannot reshape array of size {array._metadata.size} into shape {shape}")


def flat_view(array: Any) -> Any:
    """The array as a one-dimensional view, or None where its layout does not allow one."""
    result = _reshaped(array._metadata.shadow, (array._metadata.size,), "C")
    return None if result is None else make(array, *layouts.view_of_shadow(result))  # type: ignore[misc]


def _is_sequence(shape: Any) -> bool:
    return isinstance(shape, tuple | list) or isinstance(shape, np.ndarray) and shape.ndim == 1


def _complete(shape: Any, size: int) -> tuple[int, ...]:
    shape = tuple(int(n) for n in shape) if _is_sequence(shape) else (int(shape),)
    if len(shape) > _MAX_DIMENSIONS:
        raise ValueError(f"maximum supported dimension for an ndarray is {_MAX_DIMENSIONS}, found {len(shape)}")
    known = 1
    for extent in shape:
        known *= extent if extent != -1 else 1
    unknown = shape.count(-1)
    if unknown > 1:
        raise ValueError("can only specify one unknown dimension")
    if (
        (unknown and (known == 0 or size % known))
        or (not unknown and known != size)
        or min(shape, default=0) < -1
    ):
        raise ValueError(f"cannot reshape array of size {size} into shape {shape}")
    return tuple(size // known if extent == -1 else extent for extent in shape)


def _reshaped(shadow: np.ndarray, shape: tuple, order: str) -> np.ndarray | None:
    """NumPy's no-copy reshape of a shadow, or None; a copying one would read memory that is not there."""
    target, extents = (shadow, shape) if order == "C" else (shadow.T, shape[::-1])
    if not shadow.size:
        strides = layouts.c_strides(tuple([n or 1 for n in extents]), shadow.itemsize)  # as NumPy's reshape
        result = np.lib.stride_tricks.as_strided(target.reshape(-1)[:0], extents, strides)
    else:
        strides = _no_copy_strides(target.shape, target.strides, extents, shadow.itemsize)
        if strides is None:
            return None
        result = np.lib.stride_tricks.as_strided(target, extents, strides)
    return result if order == "C" else result.T


def _no_copy_strides(old: tuple, strides: tuple, new: tuple, itemsize: int) -> tuple | None:
    """Strides of a C-order reshape without copying, or None: groups of axes that are contiguous
    among themselves may be split and joined, nothing else."""
    axes = [(n, s) for n, s in zip(old, strides) if n != 1]
    result: list[int] = [0] * len(new)
    i, j = 0, 0
    while i < len(axes) and j < len(new):
        size_old, size_new, i_end, j_end = axes[i][0], new[j], i + 1, j + 1
        while size_old != size_new:
            if size_new < size_old:
                size_new *= new[j_end]
                j_end += 1
            else:
                size_old *= axes[i_end][0]
                i_end += 1
        for k in range(i, i_end - 1):
            if axes[k][1] != axes[k + 1][0] * axes[k + 1][1]:
                return None
        stride = axes[i_end - 1][1]
        for k in range(j_end - 1, j - 1, -1):
            result[k] = stride
            stride *= new[k]
        i, j = i_end, j_end
    last = result[j - 1] if j else itemsize
    for k in range(j, len(new)):
        result[k] = last
    return tuple(result)


def copy(array: Remote, order: str = "C", dtype: Any = None, cls: Any = None, noted: bool = True) -> Any:
    """A new array with the content, in order 'C', 'F', 'A' or 'K', cast to ``dtype`` if given. ``noted``: the
    signature decides all that happens."""
    meta = layouts.ordered(array._metadata, order, None if dtype is None else np.dtype(dtype))
    stream = array._stream
    if meta.c and meta.nbytes <= min(_ONE_STEP, stream.device.memory_total):
        handle = next_handle()
        arguments = [[values.HANDLE, array._handle], [values.DTYPE, meta.wire]]
        command = (_T_CALL, _COPY, [handle], arguments, {})
        stream.submit_predicted(command, (handle,), (meta,))
        if noted:
            note(stream, command, handle)
        return dispatch.new(meta, stream, handle, cls or type(array))
    result = empty(meta, array._stream, cls or type(array))
    dispatch.run_internal("ndarray.astype", result, array)
    return result


def empty(meta: Meta, stream: Any, cls: Any = None) -> Any:
    """A new array of this layout, content undefined."""
    if meta.nbytes > stream.device.memory_total:
        dispatch.pool.refuse(meta.nbytes, stream.device)
    handle = next_handle()
    strides = None if meta.c else meta.strides
    command = ops.Empty.encode(handle, meta.wire, meta.shape, strides)
    stream.submit_predicted(command, (handle,), (meta,))
    note(stream, command, handle)
    return dispatch.new(meta, stream, handle, cls)


def broadcast_to(array: Remote, shape: Any) -> Any:
    return apply(np.broadcast_to, array, tuple(shape) if _is_sequence(shape) else (shape,))


def ravel(array: Any, order: str = "C") -> Any:
    """One dimension; 'K' is the order in memory."""
    order = {"c": "C", "f": "F", "a": "A", "k": "K", None: "C"}.get(order, order)
    if order != "K":
        flat = reshape(array, -1, order)
    else:
        flat = reshape(apply(np.ndarray.transpose, array, _memory_order(array._metadata.strides)), -1)
    return flat if flat._metadata.c else copy(flat)


def _memory_order(strides: tuple) -> list[int]:
    """The axes from the outermost in memory to the innermost; where a stride of 0 leaves it open, in C order."""
    inner = list(range(len(strides)))[::-1]
    for i in range(1, len(inner)):
        place, stride = i, abs(strides[inner[i]])
        for j in range(i - 1, -1, -1):
            other = abs(strides[inner[j]])
            if stride and other:
                if other <= stride:
                    break
                place = j
        inner.insert(place, inner.pop(i))
    return inner[::-1]


def _reduced(a: np.ndarray) -> np.ndarray:
    """The same elements in the same order with as few dimensions as the strides allow."""
    kept: list[tuple[int, int]] = []
    for extent, stride in zip(a.shape, a.strides):
        if extent == 1 and a.size:
            continue
        if kept and kept[-1][1] == extent * stride:
            kept[-1] = (kept[-1][0] * extent, stride)
        else:
            kept.append((extent, stride))
    shape, strides = zip(*kept) if kept else ((1,), (a.itemsize,))
    return np.lib.stride_tricks.as_strided(a, shape, strides)


def reduced(array: Remote) -> Any:
    """``ndarray.reduced_view``: what kernels of one index are given."""
    if array.ndim <= 1:
        return array
    if array._metadata.shadow.flags.c_contiguous:
        return apply(np.ndarray.reshape, array, -1)
    return apply(_reduced, array)
