"""``a[index]`` and ``a[index] = value``, with CuPy's rules.

Basic indices are views, computed on the shadow. Integer arrays and lists make a new array whose
shape is known beforehand; boolean masks on the device have to wait, as CuPy does.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from rgpu.client import meta as layouts
from rgpu.client.remote import Remote
from rgpu.functions import dispatch, views
from rgpu.wire.functions import BY_NAME

_GETITEM = BY_NAME["ndarray.getitem"]
_BASIC = (int, slice, type(Ellipsis), type(None), str)


def getitem(array: Remote, index: Any) -> Any:
    """``array[index]``; IndexError as NumPy's."""
    if type(index) in _BASIC or (type(index) is tuple and all(type(i) in _BASIC for i in index)):
        return _basic(array, index)
    parts, basic = _parse(index)
    if basic:
        return _basic(array, tuple(parts) if isinstance(index, tuple) else parts[0])
    shape = _result_shape(array._meta.shape, parts)
    encoded = dispatch._Arguments(array._stream, (array, tuple(parts)), {}, True)
    if shape is None:
        return dispatch.ask(_GETITEM, encoded)
    return dispatch.submit(_GETITEM, encoded, layouts.fresh(shape, array._meta.dtype))


def _basic(array: Remote, index: Any) -> Any:
    if type(index) is tuple and not any(i is Ellipsis for i in index):
        index = (*index, Ellipsis)
    elif type(index) is not tuple and type(index) not in (str, type(Ellipsis)):
        index = (index, Ellipsis)
    found = layouts.view_of_shadow(array._meta.shadow[index])
    return views.make(array, *found)  # basic indexing never copies


def setitem(array: Remote, index: Any, value: Any) -> None:
    """``array[index] = value``: through a view for basic indices, scattered otherwise."""
    parts, basic = _parse(index)
    if isinstance(value, np.ndarray):
        if basic and value.ndim:
            target = _basic(array, tuple(parts) if isinstance(index, tuple) else parts[0])
            from rgpu.functions import creation

            with array._stream.device:
                value = creation.array(value, dtype=target._meta.dtype)
            return _assign(target, value)
        with array._stream.device:
            from rgpu.functions import creation

            value = creation.array(value)
    elif isinstance(value, list | tuple):
        from rgpu.functions import creation

        with array._stream.device:
            value = creation.array(value)
    if basic:
        return _assign(_basic(array, tuple(parts) if isinstance(index, tuple) else parts[0]), value)
    shape = _result_shape(array._meta.shape, parts)
    if shape is not None and isinstance(value, Remote):
        _fits(value._meta.shape, shape)
    dispatch.run_internal("ndarray.setitem", array, tuple(parts), value)
    return None


def _assign(target: Any, value: Any) -> None:
    if isinstance(value, Remote):
        _fits(value._meta.shape, target._meta.shape)
        dispatch.run_internal("ndarray.setitem", target, Ellipsis, value)
    else:
        dispatch.run_internal("ndarray.fill", target, _scalar(value, target._meta.dtype))


def copyto(dst: Any, src: Any, casting: str = "same_kind", where: Any = None) -> None:
    """Copy values into ``dst``, broadcast, where the condition holds; any two devices."""
    if not isinstance(dst, Remote):
        raise TypeError(f"Unsupported type {type(dst)}")
    if isinstance(src, bool | int | float | complex) and not isinstance(src, np.generic):
        value = np.empty((), dst._meta.dtype)
        np.copyto(value, src, casting=casting)
        src = value[()]
    else:
        dtype = src._meta.dtype if isinstance(src, Remote) else src.dtype
        if not np.can_cast(dtype, dst._meta.dtype, casting):
            raise TypeError(f"Cannot cast {dtype} to {dst._meta.dtype} in {casting} casting mode")
        if not isinstance(src, Remote):
            if src.size != 1:
                raise TypeError(f"Unsupported type {type(src)}")
            src = src.astype(dst._meta.dtype).reshape(())[()]
    if where is None:
        return _assign(dst, src)
    if isinstance(where, Remote) and where._meta.dtype.kind != "b":
        raise TypeError(f"where must be boolean, not {where._meta.dtype}")
    if isinstance(src, Remote):
        _fits(src._meta.shape, dst._meta.shape)
    if isinstance(where, Remote):
        _fits(where._meta.shape, dst._meta.shape)
    stream = dispatch.pool.current_stream()
    for x in (dst, src, where):
        if isinstance(x, Remote) and x._stream is not stream:
            dispatch.warn_peer(x, stream)
    dispatch.run_internal("copyto", dst, src, casting="unsafe", where=where if isinstance(where, Remote) else bool(where))
    return None


def _scalar(value: Any, dtype: np.dtype) -> Any:
    if isinstance(value, bool | int | float | complex | np.generic) or dtype.names is not None:
        return np.asarray(value).astype(dtype)[()] if dtype.names is not None else value
    raise TypeError(f"Unsupported type {type(value)}")


def _fits(source: tuple, target: tuple) -> None:
    extra = len(source) - len(target)
    trimmed = source[extra:] if extra > 0 and set(source[:extra]) == {1} else source
    if len(trimmed) > len(target) or any(
        n not in (1, m) for n, m in zip(trimmed[::-1], target[::-1])
    ):
        raise ValueError(f"could not broadcast input array from shape {source} into shape {target}")


def _parse(index: Any) -> tuple[list, bool]:
    """The index as a list of parts; True when it is basic."""
    items = index if isinstance(index, tuple) else (index,)
    parts: list = []
    basic = True
    for item in items:
        if item is None or item is Ellipsis or isinstance(item, slice):
            if isinstance(item, slice):
                item = slice(*[_index(x) for x in (item.start, item.stop, item.step)])
            parts.append(item)
        elif isinstance(item, str):
            parts.append(item)
        elif isinstance(item, bool | np.bool_):
            parts.append(np.asarray(item))
            basic = False
        elif isinstance(item, Remote):
            kind = item._meta.dtype.kind
            if kind not in "biu":
                raise IndexError("arrays used as indices must be of integer (or boolean) type")
            parts.append(item)
            basic = False
        elif isinstance(item, list | np.ndarray):
            item = np.asarray(item) if len(item) or isinstance(item, np.ndarray) else np.asarray(item, np.intp)
            if item.dtype.kind not in "biu":
                raise IndexError("arrays used as indices must be of integer (or boolean) type")
            parts.extend(np.nonzero(item) if item.dtype.kind == "b" and item.ndim else [item])
            basic = False
        else:
            try:
                parts.append(operator.index(item))
            except TypeError:
                raise IndexError(
                    "only integers, slices (`:`), ellipsis (`...`), numpy.newaxis (`None`) "
                    "and integer or boolean arrays are valid indices"
                ) from None
    if parts.count(Ellipsis) > 1 if all(type(p) in _BASIC for p in parts) else False:
        raise IndexError("an index can only have a single ellipsis ('...')")
    return parts, basic


def _index(x: Any) -> Any:
    if x is None or type(x) is int:
        return x
    if isinstance(x, Remote):
        x = dispatch.ndarray.get(x)
    return operator.index(x)


def _result_shape(shape: tuple, parts: list) -> tuple | None:
    """Shape of advanced indexing with integer arrays; None when a mask makes it unknown."""
    if any(isinstance(p, str) for p in parts):
        return None
    if any(_is_mask(p) for p in parts):
        return None
    consumed = sum(1 for p in parts if p is not None and p is not Ellipsis)
    if consumed > len(shape):
        raise IndexError(f"too many indices for array: array is {len(shape)}-dimensional, but {consumed} were indexed")
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
            advanced.append(part._meta.shape if isinstance(part, Remote) else np.shape(part))
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


def _is_mask(part: Any) -> bool:
    if isinstance(part, Remote):
        return part._meta.dtype.kind == "b"
    return isinstance(part, np.ndarray) and part.dtype.kind == "b"
