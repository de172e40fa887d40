"""CuPy's functions that return views: one word each, computed by NumPy's function on the shadow.

Nothing here touches data. The few that may have to copy (reshape, ravel) or take several arrays
are written out below the table.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from rgpu.client import meta as layouts
from rgpu.client.predict import normalize_axis
from rgpu.client.remote import Remote
from rgpu.functions import creation, dispatch, views

#: NumPy's function of the same name gives views of its first argument
_BY_NUMPY = """transpose swapaxes moveaxis rollaxis squeeze expand_dims diagonal fliplr flipud rot90
split array_split hsplit vsplit dsplit""".split()


def _by_numpy(name: str) -> Callable[..., Any]:
    of_numpy = getattr(np, name)

    def function(a: Any, *args: Any, **kwargs: Any) -> Any:
        return views.apply(of_numpy, array_of(a), *_on_host(args), **kwargs)

    return named(function, name)


def named(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A function that answers to CuPy's name."""
    function.__name__ = function.__qualname__ = name
    function.__module__ = "cupy"
    function.__doc__ = f"CuPy's ``{name}``: a view where possible."
    return function


def array_of(a: Any) -> Any:
    """The argument, which must be a device array."""
    if not isinstance(a, Remote):
        raise TypeError(f"Unsupported type {type(a)}: only cupy.ndarray is accepted")
    return a


def _on_host(args: tuple) -> tuple:
    """Split points given as a device array are needed here (this waits)."""
    return tuple(x.get() if isinstance(x, Remote) else x for x in args)


def reshape(
    a: Any, newshape: Any = None, order: str = "C", *, shape: Any = None, copy: bool | None = None
) -> Any:
    """A view with another shape where the layout allows it, else a copy (``copy=False``: ValueError)."""
    wanted = newshape if shape is None else shape
    if wanted is None:
        raise TypeError("reshape() missing 1 required positional argument: 'shape'")
    return array_of(a).reshape(wanted, order=order, copy=copy)


def ravel(a: Any, order: str = "C") -> Any:
    return array_of(a).ravel(order)


def flip(a: Any, axis: Any = None) -> Any:
    """A view in reverse order. (NumPy's own would read a 0-dimensional array, and a shadow has no memory.)"""
    ndim = array_of(a)._metadata.ndim
    axes = range(ndim) if axis is None else normalize_axis(axis, ndim)
    index = tuple([slice(None, None, -1) if i in axes else slice(None) for i in range(ndim)])
    return views.apply(lambda shadow: shadow[(*index, ...)], a)


def matrix_transpose(x: Any, /) -> Any:
    if array_of(x)._metadata.ndim < 2:
        raise ValueError(f"Input array must be at least 2-dimensional, but it is {x._metadata.ndim}")
    return x.mT


def broadcast_to(array: Any, shape: Any, subok: bool = False) -> Any:
    array = array if isinstance(array, Remote) else creation.array(array)
    return views.broadcast_to(array, shape)


def broadcast_arrays(*args: Any) -> tuple:
    shape = np.broadcast_shapes(*[array_of(a)._metadata.shape for a in args])
    return tuple([a if a._metadata.shape == shape else views.broadcast_to(a, shape) for a in args])


def _at_least(name: str) -> Callable[..., Any]:
    of_numpy = getattr(np, name)

    def function(*arys: Any) -> Any:
        made = [views.apply(of_numpy, a if isinstance(a, Remote) else creation.array(a)) for a in arys]
        return made[0] if len(made) == 1 else made

    return named(function, name)


def real(val: Any) -> Any:
    return (val if isinstance(val, Remote) else creation.array(val)).real


def imag(val: Any) -> Any:
    return (val if isinstance(val, Remote) else creation.array(val)).imag


def shares_memory(a: Any, b: Any, max_work: Any = None) -> bool:
    """Whether two arrays have a byte in common; never waits."""
    if not isinstance(a, Remote) or not isinstance(b, Remote):
        return False
    if not views.same_memory(a, b) or not a._metadata.size or not b._metadata.size:
        return False
    return np.shares_memory(_placed(a), _placed(b), max_work)


def may_share_memory(a: Any, b: Any, max_work: Any = None) -> bool:
    """As ``shares_memory``, from the arrays' bounds only."""
    if not isinstance(a, Remote) or not isinstance(b, Remote) or not views.same_memory(a, b):
        return False
    return np.may_share_memory(_placed(a), _placed(b))


def _placed(a: Any) -> np.ndarray:
    """The array's shadow, ``_offset`` bytes into its root's, so that two of one root can be compared."""
    return layouts.shadow_at(a._metadata, a._offset)


def byte_bounds(a: Any) -> tuple[int, int]:
    """First byte and the one after the last, as addresses on the device."""
    low, high = np.lib.array_utils.byte_bounds(_placed(a))
    start = a.data.ptr - layouts.shadow_at(a._metadata, a._offset).__array_interface__["data"][0]
    return low + start, high + start


def row_stack(tup: Any, *, dtype: Any = None, casting: str = "same_kind") -> Any:
    warnings.warn(
        "`row_stack` alias is deprecated. Use `cp.vstack` directly.", DeprecationWarning, stacklevel=3
    )
    return dispatch.call("vstack", tup, dtype=dtype, casting=casting)


def copy(a: Any, order: str = "K") -> Any:
    return array_of(a).copy(order)


def require(a: Any, dtype: Any = None, requirements: Any = None) -> Any:
    """An array that fits: 'C', 'F' and 'O'(wn data) can be asked for."""
    try:
        dtype = None if dtype is None else np.dtype(dtype)
    except TypeError as error:
        raise ValueError(str(error)) from None
    if not requirements:
        return creation.asanyarray(a, dtype)
    names = {"C": "C", "C_CONTIGUOUS": "C", "CONTIGUOUS": "C", "F": "F", "F_CONTIGUOUS": "F", "FORTRAN": "F",
             "O": "O", "OWNDATA": "O"}  # fmt: skip
    try:
        wanted = {names[r.upper()] for r in requirements}
    except KeyError:
        raise ValueError(f"invalid requirements: {requirements}") from None
    if {"C", "F"} <= wanted:
        raise ValueError("Cannot specify both C and Fortran contiguous.")
    order = "C" if "C" in wanted else "F" if "F" in wanted else "A"
    result = creation.array(a, dtype, copy=None, order=order)
    return result.copy(order) if "O" in wanted and result._root is not None else result


def astype(x: Any, dtype: Any, copy: bool = True, *, device: Any = None) -> Any:
    return array_of(x).astype(dtype, copy=copy)


def resize(a: Any, new_shape: Any) -> Any:
    """The content repeated to fill a shape."""
    if np.isscalar(a):
        return creation.full(new_shape, a)
    a = creation.asarray(a)
    shape = creation.checked_shape(new_shape)
    size = int(np.prod(shape))
    if size and not a._metadata.size:
        return creation.zeros(shape, a._metadata.dtype)
    flat = views.ravel(a)
    if size > flat._metadata.size:
        flat = dispatch.call("tile", flat, -(-size // flat._metadata.size))
    return views.reshape(flat[:size].copy(), shape)


NAMES: dict[str, Any] = {name: _by_numpy(name) for name in _BY_NUMPY}
NAMES.update({name: _at_least(name) for name in ("atleast_1d", "atleast_2d", "atleast_3d")})
NAMES.update(permute_dims=NAMES["transpose"])
for _function in (flip, reshape, ravel, matrix_transpose, broadcast_to, broadcast_arrays, real, imag, shares_memory,
                  may_share_memory, byte_bounds, copy, require, astype, resize, row_stack):  # fmt: skip
    NAMES[_function.__name__] = named(_function, _function.__name__)
