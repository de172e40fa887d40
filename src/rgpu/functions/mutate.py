"""Functions that change an argument: what can be refused is refused here, before a command leaves.

CuPy's checks and defaults for ``put`` and its kin, and for functions whose errors are in their data
(``put(mode="raise")``, ``unravel_index``): only those wait.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rgpu.client import predict
from rgpu.client.remote import Remote
from rgpu.functions import creation, dispatch


def _array(name: str, x: Any) -> Any:
    if not isinstance(x, Remote):
        raise TypeError(f"`{name}` should be of type cupy.ndarray, not {type(x)}")
    return x


def place(arr: Any, mask: Any, vals: Any) -> None:
    """Put ``vals``, repeated as needed, where the mask is true."""
    _array("arr", arr)
    mask = creation.asarray(mask)
    if arr._metadata.size != mask._metadata.size:
        raise ValueError("Mask and data must be the same size.")
    vals = creation.asarray(vals)
    if not vals._metadata.size:
        if not bool(dispatch.call("any", mask)):
            return
        raise ValueError("Cannot insert from an empty array.")
    dispatch.run_internal("place", arr, mask, vals)


def put(a: Any, ind: Any, v: Any, mode: str = "wrap") -> None:
    """``a.flat[ind] = v``; out-of-bounds indices wrap unless ``mode`` says 'clip' or 'raise'."""
    _array("a", a)
    if mode not in ("raise", "wrap", "clip"):
        raise ValueError(f"clipmode must be one of 'clip', 'raise', or 'wrap' (got '{mode}')")
    with a._stream.device:
        ind, v = (x if isinstance(x, Remote) else creation.array(x) for x in (ind, v))
    if ind._metadata.dtype.kind not in "biu":
        raise TypeError("Cannot cast array data to indices according to the rule 'safe'")
    if not ind._metadata.size or not v._metadata.size:
        return
    if not a._metadata.size:
        raise IndexError("cannot replace elements of an empty array")
    if mode == "raise":
        _check_bounds(ind, a._metadata.size)
    dispatch.run_internal("put", a, ind, v, mode=mode)


def _check_bounds(ind: Any, size: int) -> None:
    low, high = int(dispatch.call("min", ind)), int(dispatch.call("max", ind))
    if low < -size or high >= size:
        raise IndexError(f"index {low if low < -size else high} is out of bounds for axis 0 with size {size}")


def putmask(a: Any, mask: Any, values: Any) -> None:
    """``a[mask] = values[mask]``, with ``values`` repeated to the shape of ``a``."""
    _array("a", a), _array("mask", mask)
    scalar = np.isscalar(values)
    if not scalar:
        _array("values", values)
    if a._metadata.shape != mask._metadata.shape:
        raise ValueError("mask and data must be the same size")
    if not scalar and not np.can_cast(values._metadata.dtype, a._metadata.dtype):
        raise TypeError(
            f"Cannot cast array data from {values._metadata.dtype} to {a._metadata.dtype} according to the rule 'safe'"
        )
    if scalar:
        with a._stream.device:
            values = creation.array(np.asarray(values).astype(a._metadata.dtype))
    if values._metadata.size:
        dispatch.run_internal("putmask", a, mask, values)


def put_along_axis(arr: Any, indices: Any, values: Any, axis: Any) -> None:
    """Put values at indices along one axis."""
    _array("arr", arr), _array("indices", indices)
    if indices._metadata.dtype.kind not in "iu":
        raise IndexError("`indices` must be an integer array")
    if axis is None:
        if indices._metadata.ndim != 1:
            raise NotImplementedError("Flattened iterator of an N-dimensional index is not supported")
    else:
        predict.normalize_axis(axis, arr._metadata.ndim)
        if indices._metadata.ndim != arr._metadata.ndim:
            raise ValueError("`indices` and `arr` must have the same number of dimensions")
    if not isinstance(values, Remote):
        with arr._stream.device:
            values = creation.array(np.asarray(values))
    dispatch.run_internal("put_along_axis", arr, indices, values, axis)


def fill_diagonal(a: Any, val: Any, wrap: bool = False) -> None:
    """Write the main diagonal: a strided view of the flat array, so nothing but an assignment."""
    ndim, shape = a._metadata.ndim, a._metadata.shape
    if ndim < 2:
        raise ValueError("array must be at least 2-d")
    end = None
    if ndim == 2:
        step = shape[1] + 1
        if not wrap:
            end = shape[1] * shape[1]
    else:
        if len(set(shape)) > 1:
            raise ValueError("All dimensions of input must be of equal length")
        step = 1 + int(np.cumprod(shape[:-1]).sum())
    a.flat[:end:step] = val


def unravel_index(indices: Any, dims: Any, order: str = "C") -> tuple:
    """Coordinates of flat indices; waits, because a wrong index is an error."""
    order = "C" if order is None else order
    if order not in ("C", "F"):
        raise ValueError("order not understood")
    indices = indices if isinstance(indices, Remote) else creation.array(indices)
    if indices._metadata.dtype.kind not in "biu":
        raise TypeError("Iterator operand 0 dtype could not be cast according to the rule 'same_kind'")
    dims = creation.checked_shape(dims)
    if indices._metadata.size:
        low, high = int(dispatch.call("min", indices)), int(dispatch.call("max", indices))
        if low < 0 or high >= int(np.prod(dims)):
            raise ValueError("invalid entry in index array")
    return dispatch.call("unravel_index", indices.astype(np.int64), dims, order=order)


def ravel_multi_index(multi_index: Any, dims: Any, mode: Any = "wrap", order: str = "C") -> Any:
    """Flat indices of coordinates; ``mode='raise'`` waits, because a wrong index is an error."""
    dims = creation.checked_shape(dims)
    modes = mode if isinstance(mode, tuple) else (mode,) * len(dims)
    order = "C" if order is None else order
    if order not in ("C", "F") or any(m not in ("raise", "wrap", "clip") for m in modes):
        raise ValueError("order or mode not understood")
    if len(multi_index) != len(dims) or len(modes) != len(dims):
        raise ValueError(f"parameter multi_index must be a sequence of length {len(dims)}")
    if math.prod(dims) > np.iinfo(np.int64).max:
        raise ValueError("invalid dims: array size defined by dims is larger than the maximum possible size")
    indices = [x if isinstance(x, Remote) else creation.array(x) for x in multi_index]
    for x, extent, how in zip(indices, dims, modes):
        if x._metadata.dtype.kind not in "biu":
            raise TypeError("only int indices permitted")
        if how == "raise" and x._metadata.size:
            low, high = int(dispatch.call("min", x)), int(dispatch.call("max", x))
            if low < 0 or high >= extent:
                raise ValueError("invalid entry in coordinates array")
    modes = tuple("wrap" if m == "raise" else m for m in modes)
    return dispatch.call(
        "ravel_multi_index", tuple(x.astype(np.int64) for x in indices), dims, mode=modes, order=order
    )


def roll(a: Any, shift: Any, axis: Any = None) -> Any:
    """The elements moved along axes, around the end."""
    if not isinstance(a, Remote):
        a = creation.array(a)
    if isinstance(shift, str):
        shift = int(shift)
    if axis is not None:
        shifts = shift.tolist() if isinstance(shift, Remote | np.ndarray) else shift
        try:
            shape = np.broadcast_shapes(np.shape(shifts), np.shape(axis))
        except ValueError:
            raise ValueError("shift and axis must broadcast together") from None
        if len(shape) > 1:
            raise ValueError("'shift' and 'axis' should be scalars or 1D sequences")
        for one in np.atleast_1d(axis).tolist():  # an axis may be named twice
            predict.normalize_axis(one, a._metadata.ndim)
    return dispatch.call("roll", a, shift, axis)


def mask_indices(n: int, mask_func: Any, k: Any = 0) -> tuple:
    """Where ``mask_func(ones((n, n)), k)`` is true (waits)."""
    return mask_func(creation.ones((n, n), np.int8), k).nonzero()


NAMES: dict[str, Any] = {
    function.__name__: function
    for function in (
        place,
        put,
        putmask,
        put_along_axis,
        fill_diagonal,
        unravel_index,
        ravel_multi_index,
        roll,
        mask_indices,
    )
}
