"""What CuPy refuses or warns of on the caller's line, before or after the table's function runs.

The functions themselves are the declared ones, with predicted layouts. Nothing here waits: the warning
of ``nanmax`` that all elements are NaN, for which CuPy reads the result, is left out.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from rgpu.client import pool
from rgpu.client.quick import quick
from rgpu.client.remote import Remote
from rgpu.functions import dispatch, indexing, signatures
from rgpu.wire.functions import BY_NAME

#: per thread, what ``cupyx.seterr`` set
error_states = threading.local()
MAY_FAIL = frozenset(("linalg.inv", "linalg.cholesky", "linalg.solve"))


def strictly(name: str, args: tuple, kwargs: dict) -> Any:
    """A function of linear algebra under ``errstate(linalg="raise")``: waits, and raises LinAlgError here."""
    encoded = dispatch._Arguments(pool.current_stream(), (name, *args), kwargs, False)
    return dispatch.ask(BY_NAME["linalg.strict"], encoded)


def named(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A function that answers to CuPy's name."""
    function.__name__ = function.__qualname__ = name
    function.__module__ = "cupy"
    function.__doc__ = f"CuPy's ``{name}``, on the current device."
    return function


def _joining(name: str) -> Callable[..., Any]:
    bind = signatures.binder(name)

    def function(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = bind(args, kwargs)
        if kwargs.get("casting") == "unsafe" and kwargs.get("dtype") is not None:
            dispatch.warn_of_lost_parts(args[0] if isinstance(args[0], list | tuple) else args[:1], kwargs["dtype"])
        return dispatch.call(name, *args, **kwargs)

    return named(function, name)


def delete(arr: Any, obj: Any, axis: Any = None) -> Any:
    """The array without the elements that ``obj`` names (a mask waits for their number)."""
    if not isinstance(arr, Remote):
        raise ValueError(f"arr must be a cupy.ndarray, not {type(arr)}")
    return dispatch.call("delete", arr, obj, axis)


def repeat(a: Any, repeats: Any, axis: Any = None) -> Any:
    """Each element as often as ``repeats`` says (which waits when it is a device array)."""
    if isinstance(repeats, np.ndarray) and repeats.ndim:
        raise TypeError("repeats must not be a numpy.ndarray: pass a cupy.ndarray, a list or an integer")
    if isinstance(repeats, list | tuple) and any(isinstance(n, list | tuple) for n in repeats):
        raise ValueError("object too deep for desired array")
    if isinstance(repeats, Remote) and isinstance(a, Remote) and repeats._metadata.ndim == 1:
        extent = a._metadata.size if axis is None else a._metadata.shape[axis]
        if repeats._metadata.size not in (1, extent):
            raise ValueError("'repeats' and the axis must have the same length")
    return dispatch.call("repeat", a, repeats, axis)


def select(condlist: Any, choicelist: Any, default: Any = 0) -> Any:
    """Elements of the choice whose condition is the first to hold."""
    if len(condlist) != len(choicelist):
        raise ValueError("list of cases must be same length as list of conditions")
    if len(condlist) == 0:
        raise ValueError("select with an empty condition list is not possible")
    if not np.isscalar(default) and not (isinstance(default, Remote) and not default._metadata.ndim):
        raise TypeError("default only accepts scalar values")
    for condition in condlist:
        if condition.dtype.kind != "b":
            raise ValueError("condlist must contain boolean arrays")
    return dispatch.call("select", condlist, choicelist, default)


def indices(dimensions: Any, dtype: Any = int) -> Any:
    """The index of each element of a grid, one array for each axis."""
    if np.dtype(dtype).kind == "b" and any(n > 2 for n in dimensions):
        raise TypeError("The dtype of indices must not be bool")
    return dispatch.call("indices", dimensions, dtype)


def _triangle(name: str) -> Callable[..., Any]:
    def function(n: Any, k: Any = 0, m: Any = None) -> Any:
        if isinstance(n, Remote) and n._metadata.ndim:
            raise TypeError("the number of rows must be an integer")
        return dispatch.call(name, n, k, m)

    return named(function, name)


def cov(a: Any, y: Any = None, rowvar: bool = True, bias: bool = False, ddof: Any = None, fweights: Any = None,
        aweights: Any = None, *, dtype: Any = None) -> Any:  # fmt: skip
    """The covariance matrix; with too few observations a warning, as NumPy's."""
    if ddof is not None and ddof != int(ddof):
        raise ValueError("ddof must be integer")
    observations = a.size if a.ndim < 2 else a.shape[1 if rowvar else 0]
    lost = int(ddof) if ddof is not None else 0 if bias else 1
    if fweights is None and aweights is None and observations <= lost and y is None:
        warnings.warn("Degrees of freedom <= 0 for slice", RuntimeWarning, stacklevel=2)
    return dispatch.call("cov", a, y, rowvar, bias, ddof, fweights, aweights, dtype=dtype)


@quick()
def nan_to_num(x: Any, copy: bool = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> Any:
    """Numbers for what is none; ``copy=False`` writes them into the array itself and returns it."""
    result = dispatch.call("nan_to_num", x, nan=nan, posinf=posinf, neginf=neginf)
    if copy or not isinstance(x, Remote):
        return result
    if x._metadata.dtype.kind in "fc":
        indexing.assign(x, result)
    return x


NAMES: dict[str, Any] = {name: _joining(name) for name in ("concatenate", "concat", "stack", "hstack", "vstack")}
NAMES["delete"] = delete
NAMES.update({name: _triangle(name) for name in ("tril_indices", "triu_indices")})
NAMES.update(repeat=repeat, select=select, indices=indices, cov=cov, nan_to_num=nan_to_num)
