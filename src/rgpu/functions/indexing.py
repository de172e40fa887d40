"""``a[index]`` and ``a[index] = value``, with CuPy's rules.

Basic indices are views, computed on the shadow. Integer arrays and lists make a new array whose
shape is known beforehand; boolean masks on the device have to wait, as CuPy does.
"""

from __future__ import annotations

import operator
import warnings
from typing import Any

import numpy as np

from rgpu.client import failures
from rgpu.client import meta as layouts
from rgpu.client.quick import note, quick
from rgpu.client.remote import Remote
from rgpu.functions import creation, dispatch, recording, views
from rgpu.wire import limits, ops, values
from rgpu.wire.functions import BY_NAME

_GETITEM = BY_NAME["ndarray.getitem"]
_SETITEM, _FILL = BY_NAME["ndarray.setitem"].id, BY_NAME["ndarray.fill"].id
_BASIC = (int, slice, type(Ellipsis), type(None), str)


def _key(meta: Any, index: Any) -> tuple | None:
    """A basic index as something to look up, None for what is better computed. Numbers are told apart from
    others of the same value by their types: only integers are indices."""
    kind = type(index)
    if kind is slice:
        start, stop, step = index.start, index.stop, index.step
        return meta, slice, start, stop, step, type(start), type(stop), type(step)
    if kind is int or index is None or index is Ellipsis:
        return meta, kind, index
    if kind is not tuple:
        return None
    key: list = [meta]
    for i in index:
        kind = type(i)
        if kind is slice:
            start, stop, step = i.start, i.stop, i.step
            key += (slice, start, stop, step, type(start), type(stop), type(step))
        elif kind is int or i is None or i is Ellipsis:
            key += (kind, i)
        else:
            return None
    return tuple(key)


def getitem(array: Remote, index: Any) -> Any:
    """``array[index]``; IndexError as NumPy's."""
    key = _key(array._metadata, index)
    if key is not None:
        try:
            found = views.recall(key)
            if found is not None:
                return views.make(array, *found)
            found = layouts.view_of_shadow(array._metadata.shadow[_ending(index)])
            return views.make(array, *views.remember(key, found))
        except TypeError:  # a slice of what is no integer, an array of the device for one
            return _basic(array, tuple(_parse(array, index)[0]))
    if _names_fields(array, index):
        return _basic(array, index)
    parts, basic = _parse(array, index)
    if basic:
        return _basic(array, tuple(parts))
    shape = _result_shape(array._metadata.shape, parts)
    encoded = dispatch._Arguments(array._stream, (array, tuple(parts)), {}, True)
    if shape is None:
        return dispatch.ask(_GETITEM, encoded)
    return dispatch.submit(_GETITEM, encoded, layouts.fresh(shape, array._metadata.dtype))


def _basic(array: Remote, index: Any) -> Any:
    """A view, computed by NumPy on the shadow. An ellipsis keeps the result an array."""
    if type(index) is str or type(index) is list:
        _check_fields(array._metadata, [index] if type(index) is str else index)
    else:
        index = _ending(index)
    return views.make(array, *layouts.view_of_shadow(array._metadata.shadow[index]))  # type: ignore[misc]


def _ending(index: Any) -> Any:
    """The index with an ellipsis in it."""
    if type(index) is tuple:
        return index if any(i is Ellipsis for i in index) else (*index, Ellipsis)
    return index if index is Ellipsis else (index, Ellipsis)


def _names_fields(array: Remote, index: Any) -> bool:
    """Whether the index is a field's name or a list of such names."""
    if type(index) is str:
        return True
    return (
        type(index) is list and array._metadata.dtype.names is not None and all(isinstance(i, str) for i in index)
    )


def _check_fields(meta: Any, names: list) -> None:
    """CuPy's limits on fields, which are a GPU's: no subarrays, and every element aligned."""
    for name in names:
        field = (meta.dtype.fields or {}).get(name)
        if field is None:
            continue  # NumPy says what is wrong
        if field[0].subdtype is not None:
            raise ValueError("CuPy does not yet support accessing nested subarrays")
        if meta.size and any(n % field[0].alignment for n in (field[1], *meta.strides)):
            raise ValueError(
                f"field {name!r} makes a result array with elements not sufficiently aligned for GPU"
            )


def setitem(array: Remote, index: Any, value: Any) -> None:
    """``array[index] = value``: through a view for basic indices, scattered otherwise."""
    if type(index) in _BASIC or (type(index) is tuple and all(type(i) in _BASIC for i in index)):
        return assign(_place(array, index), creation.cupy_like(value))
    fields = _names_fields(array, index)
    parts, basic = ([index], True) if fields else _parse(array, index)
    value = creation.cupy_like(value)
    if basic:
        return assign(_basic(array, index if fields else tuple(parts)), value)
    if not isinstance(value, Remote):
        with array._stream.device:
            value = creation.array(np.asarray(value).astype(array._metadata.dtype, copy=False))
    shape = _result_shape(array._metadata.shape, parts)
    if shape is not None:
        _fits(value._metadata.shape, shape)
    dispatch.run_internal("ndarray.setitem", array, tuple(parts), value)
    return None


def check_scattered(array: Remote, index: Any, value: Any) -> None:
    """Raise now what an update of chosen elements fails with: IndexError, ValueError where shapes do not fit."""
    parts, basic = _parse(array, index)
    shape = None if basic else _result_shape(array._metadata.shape, parts)
    if shape is not None and isinstance(value, Remote):
        _fits(value._metadata.shape, shape)


@quick(anywhere=True)
def _place(array: Remote, index: Any) -> Any:
    return getitem(array, index)


def assign(target: Any, value: Any) -> None:
    """Fill a view with an array or a scalar. NumPy arrays are refused, as CuPy refuses them."""
    kind = type(value)
    if kind is float or kind is int:
        return _fill(target, value)
    if isinstance(value, Remote):
        if value._handle == target._handle:
            return None
        if value._stream is target._stream:
            return _assign(target, value)
        _fits(value._metadata.shape, target._metadata.shape)
        dispatch.run_internal("ndarray.setitem", target, Ellipsis, value)
    else:
        dispatch.run_internal("ndarray.fill", target, scalar(value, target._metadata.dtype))
    return None


@quick(anywhere=True)
def _assign(target: Remote, value: Remote) -> None:
    """From an array of the same device."""
    _fits(value._metadata.shape, target._metadata.shape)
    _send(target, _SETITEM, [values.ELLIPSIS], [values.HANDLE, value._handle])


@quick(anywhere=True, numbers=True)
def _fill(target: Remote, value: float) -> None:
    """With a number: as it is where every dtype of its kind takes it so, else cast here, where it may be refused."""
    kind = target._metadata.dtype.kind
    if type(value) is float and kind in "biufc":
        _send(target, _FILL, value)
    elif type(value) is int and (0 <= value <= 127 if kind in "biu" else kind in "fc" and -(2**31) <= value < 2**31):
        _send(target, _FILL, [values.INT, value])
    else:
        dispatch.run_internal("ndarray.fill", target, scalar(value, target._metadata.dtype))


def _send(target: Remote, function: int, *arguments: Any) -> None:
    command = (ops.Call.tag, function, [], [[values.HANDLE, target._handle], *arguments], {})
    target._stream.submit(command)
    note(target._stream, command)


def scalar(value: Any, dtype: np.dtype) -> Any:
    """A fill value cast to the array's dtype, as a 0-dimensional host array."""
    if isinstance(value, np.ndarray) and value.ndim:
        raise ValueError("non-scalar numpy.ndarray cannot be used for fill")
    if not isinstance(value, bool | int | float | complex | np.generic | np.ndarray) and dtype.kind != "V":
        raise TypeError(f"Unsupported type {type(value)}")
    if getattr(value, "dtype", dtype).kind == "c" and dtype.kind not in "bcV":
        warnings.warn(
            "Casting complex values to real discards the imaginary part",
            np.exceptions.ComplexWarning,
            stacklevel=failures.users_level(),
        )
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if dtype.kind == "V" and dtype.names is not None and not isinstance(value, np.ndarray | np.generic):
            return np.array(value, dtype=dtype)
        found = np.asarray(value)
        if found.dtype.kind in "OUS":
            raise TypeError(f"Unsupported type {type(value)}")
        if isinstance(value, int) and dtype.kind in "iu":
            return np.array(value, dtype)  # OverflowError for what does not fit, as NumPy
        return found.astype(dtype)


def copyto(dst: Any, src: Any, casting: str = "same_kind", where: Any = None) -> None:
    """Copy values into ``dst``, broadcast, where the condition holds; any two devices."""
    recorder = recording.listener((dst,))
    if recorder is not None:
        return recorder.copyto(dst, src, where, casting)
    if not isinstance(dst, Remote):
        raise TypeError(f"Unsupported type {type(dst)}")
    if isinstance(src, bool | int | float | complex) and not isinstance(src, np.generic):
        value = np.empty((), dst._metadata.dtype)
        np.copyto(value, src, casting=casting)
        src = value[()]
    else:
        dtype = src._metadata.dtype if isinstance(src, Remote) else src.dtype
        if not np.can_cast(dtype, dst._metadata.dtype, casting):
            raise TypeError(f"Cannot cast {dtype} to {dst._metadata.dtype} in {casting} casting mode")
        if not isinstance(src, Remote):
            if src.size != 1:
                raise TypeError(f"Unsupported type {type(src)}")
            src = src.astype(dst._metadata.dtype).reshape(())[()]
    if where is None:
        return assign(dst, src)
    if isinstance(where, Remote) and where._metadata.dtype.kind != "b":
        raise TypeError(f"where must be boolean, not {where._metadata.dtype}")
    if isinstance(src, Remote):
        _fits(src._metadata.shape, dst._metadata.shape)
    if isinstance(where, Remote):
        _fits(where._metadata.shape, dst._metadata.shape)
    stream = dispatch.pool.current_stream()
    for x in (dst, src, where):
        if isinstance(x, Remote) and x._stream is not stream:
            dispatch.warn_peer(x, stream)
    dispatch.run_internal(
        "copyto", dst, src, casting="unsafe", where=where if isinstance(where, Remote) else bool(where)
    )
    return None


def _fits(source: tuple, target: tuple) -> None:
    extra = len(source) - len(target)
    trimmed = source[extra:] if extra > 0 and set(source[:extra]) == {1} else source
    if len(trimmed) > len(target) or any(n not in (1, m) for n, m in zip(trimmed[::-1], target[::-1])):
        raise ValueError(f"could not broadcast input array from shape {source} into shape {target}")


def _parse(array: Remote, index: Any) -> tuple[list, bool]:
    """The index as a list of parts; True when it is basic. Host masks become integers, large host
    indices are uploaded."""
    parts: list = []
    basic = True
    for item in index if isinstance(index, tuple) else (index,):
        item = creation.cupy_like(item)
        if item is None or item is Ellipsis or isinstance(item, str):
            parts.append(item)
        elif isinstance(item, slice):
            try:
                parts.append(slice(*[_index(x) for x in (item.start, item.stop, item.step)]))
            except TypeError:
                what = f"slice.start, stop and step must be int or None or have __index__ method: {item}"
                raise TypeError(what) from None
        elif isinstance(item, bool | np.bool_):
            parts.append(np.asarray(item))
            basic = False
        elif isinstance(item, Remote | list | tuple | np.ndarray):
            if isinstance(item, list | tuple):
                item = creation.array(item) if _has_arrays(item) else _host_index(item)
            parts.append(_checked_index(item))
            basic = False
        else:
            try:
                parts.append(operator.index(item))
            except TypeError:
                raise IndexError(
                    "only integers, slices (`:`), ellipsis (`...`), numpy.newaxis (`None`) "
                    "and integer or boolean arrays are valid indices"
                ) from None
    if sum(1 for p in parts if p is Ellipsis) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    return parts if basic else _with_masks(array, parts), basic


def _has_arrays(item: list) -> bool:
    return any(
        isinstance(creation.cupy_like(x), Remote) or isinstance(x, list) and _has_arrays(x) for x in item
    )


def _host_index(item: list) -> np.ndarray:
    found = np.asarray(item)
    return found if found.size else found.astype(np.intp)


def _checked_index(item: Any) -> Any:
    if item.dtype.kind not in "biu":
        raise IndexError("arrays used as indices must be of integer (or boolean) type")
    return item


def _with_masks(array: Remote, parts: list) -> list:
    """Check masks and integers against the axes they stand for; a host mask becomes integer arrays."""
    shape = array._metadata.shape
    consumed = sum(_axes(p) for p in parts)
    if consumed > len(shape):
        raise IndexError(
            f"too many indices for array: array is {len(shape)}-dimensional, but {consumed} were indexed"
        )
    result: list = []
    axis = 0
    for part in parts:
        if part is Ellipsis:
            axis += len(shape) - consumed
        elif isinstance(part, int) and not -shape[axis] <= part < shape[axis]:
            raise IndexError(f"index {part} is out of bounds for axis {axis} with size {shape[axis]}")
        width = 0 if part is Ellipsis else _axes(part)
        if is_mask(part):
            _check_mask(part.shape, shape, axis)
            if isinstance(part, np.ndarray) and part.ndim:
                result.extend(map(_placed, np.nonzero(part)))
                axis += width
                continue
        elif isinstance(part, np.ndarray | Remote) and not shape[axis] and part.size:
            raise IndexError(f"index is out of bounds for axis {axis} with size 0")
        result.append(_placed(part))
        axis += width
    return result


def _placed(part: Any) -> Any:
    """A large host index is uploaded, small ones travel inside the command."""
    if isinstance(part, np.ndarray) and part.nbytes > limits.INLINE_BYTES // 16:
        return creation.array(part)
    return part


def _check_mask(mask: tuple, shape: tuple, axis: int) -> None:
    for number, extent in enumerate(mask):
        if extent and shape[axis + number] != extent:  # NumPy lets an extent of 0 pass
            raise IndexError(
                f"boolean index did not match indexed array along axis {axis + number}; size of axis is "
                f"{shape[axis + number]} but size of corresponding boolean axis is {extent}"
            )


def _axes(part: Any) -> int:
    """How many axes of the array a part of the index stands for."""
    if part is None or part is Ellipsis:
        return 0
    return part.ndim if is_mask(part) else 1


def _index(x: Any) -> Any:
    """An end of a slice. CuPy takes what int() takes: fractions, and arrays of one element (it waits for those)."""
    if x is None or type(x) is int:
        return x
    try:
        return operator.index(x)
    except TypeError:
        return int(x)


def _result_shape(shape: tuple, parts: list) -> tuple | None:
    """Shape of advanced indexing with integer arrays; None when a mask makes it unknown."""
    if any(isinstance(p, str) or is_mask(p) for p in parts):
        return None
    consumed = sum(_axes(p) for p in parts)
    if not any(p is Ellipsis for p in parts):
        parts = [*parts, Ellipsis]
    result: list = []
    advanced: list[tuple] = []
    positions: list[int] = []  # where advanced parts stand among the parts, to see whether they are together
    axis, insert = 0, 0
    for position, part in enumerate(parts):
        if part is None:
            result.append(1)
        elif part is Ellipsis:
            extra = len(shape) - consumed
            result.extend(shape[axis : axis + extra])
            axis += extra
        elif isinstance(part, slice):
            result.append(len(range(*part.indices(shape[axis]))))
            axis += 1
        else:
            if not positions:
                insert = len(result)
            positions.append(position)
            advanced.append(part._metadata.shape if isinstance(part, Remote) else np.shape(part))
            axis += 1
    together = positions[-1] - positions[0] + 1 == len(positions)
    try:
        broadcast = np.broadcast_shapes(*advanced)
    except ValueError:
        raise IndexError(
            "shape mismatch: indexing arrays could not be broadcast together with shapes "
            + " ".join(str(s) for s in advanced)
        ) from None
    if not together:
        insert = 0
    return tuple(result[:insert]) + broadcast + tuple(result[insert:])


def is_mask(part: Any) -> bool:
    return isinstance(part, Remote | np.ndarray) and part.dtype.kind == "b"
