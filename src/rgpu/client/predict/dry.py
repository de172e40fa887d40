"""A dry run of NumPy on small stand-ins, for results whose layout no rule states.

``relabelled`` serves functions whose result has only extents of the arguments: large extents are
replaced by small ones in the same order (so that equality and min/max survive), and translated
back. ``small`` runs what is small enough as it is. Neither may ever run the user's data.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from rgpu.client.meta import Meta, fresh
from rgpu.client.predict.elementwise import numpy_function


class _Wait:
    """The data decides the layout: wait for the answer, learn nothing."""

    def __repr__(self) -> str:
        return "WAIT"


WAIT = _Wait()
_SMALL = 1024  # elements, and values of integers, that a direct dry run may have
_KEPT = 4  # extents up to this are left alone: functions treat 0, 1, 2 and 3 specially
_MOST = 200_000  # elements of relabelled stand-ins

#: CuPy returns a list where NumPy returns a tuple
_LISTS = {"gradient"}


class _Unsuitable(Exception):
    """These arguments have no small stand-in."""


def relabelled(name: str, args: tuple, kwargs: dict) -> Any:
    """Layout of a result that has no extents but those of its arguments."""
    extents: set[int] = set()
    _collect(args, extents)
    _collect(tuple(kwargs.values()), extents)
    small = {n: n for n in range(_KEPT + 1)}
    for label, extent in enumerate(sorted(n for n in extents if n > _KEPT), _KEPT + 1):
        small[extent] = label
    large = {label: extent for extent, label in small.items()}
    square = name.startswith("linalg.")

    def stand_in(meta: Meta) -> np.ndarray:
        return _stand_in(tuple(small[n] for n in meta.shape), meta.dtype, square)

    try:
        tree = _run(name, _map(args, stand_in), {key: _map(x, stand_in) for key, x in kwargs.items()})
        return _translate(tree, large)
    except _Unsuitable:
        return None


def small(name: str, args: tuple, kwargs: dict) -> Any:
    """Layout of a result whose arguments are small enough to be run as they are."""
    left = _SMALL

    def stand_in(meta: Meta) -> np.ndarray:
        nonlocal left
        left -= meta.size
        if left < 0:
            raise _Unsuitable
        return _stand_in(meta.shape, meta.dtype, name.startswith("linalg."))

    try:
        return _run(
            name, _map(args, stand_in, True), {key: _map(x, stand_in, True) for key, x in kwargs.items()}
        )
    except _Unsuitable:
        return None


def dtype_of(name: str, *operands: Any, **options: Any) -> np.dtype | None:
    """The dtype of a function's (first) result for operands of these dtypes."""
    args = tuple(np.ones((1,) * max(x.ndim, 1), x.dtype) if type(x) is Meta else x for x in operands)
    tree = _run(name, args, options)
    while isinstance(tree, tuple | list):
        tree = tree[0]
    return None if tree is None else tree.dtype


def _collect(x: Any, into: set[int]) -> None:
    if type(x) is Meta:
        into.update(x.shape)
    elif isinstance(x, tuple | list):
        for item in x:
            _collect(item, into)


def _map(x: Any, stand_in: Any, direct: bool = False) -> Any:
    """The arguments with stand-ins for arrays."""
    if type(x) is Meta:
        return stand_in(x)
    if isinstance(x, tuple | list):
        return type(x)([_map(item, stand_in, direct) for item in x])
    if isinstance(x, np.ndarray) and (not direct or x.size > _SMALL):
        raise _Unsuitable
    if direct and isinstance(x, int) and abs(x) > _SMALL:
        raise _Unsuitable
    return x


def _stand_in(shape: tuple, dtype: np.dtype, square: bool) -> np.ndarray:
    """Ones; unit matrices for linear algebra, which nothing refuses."""
    count = 1
    for extent in shape:
        count *= extent
    if count > _MOST:
        raise _Unsuitable
    if square and len(shape) > 1:
        result = np.zeros(shape, dtype)
        result[...] = np.eye(*shape[-2:])
        return result
    return np.ones(shape, dtype)


def _run(name: str, args: tuple, kwargs: dict) -> Any:
    function = numpy_function(name)
    if function is None:
        return None
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = _metas(function(*args, **kwargs))
    except Exception:  # whatever NumPy objects to, the worker says it better
        return None
    return list(tree) if name in _LISTS and type(tree) is tuple else tree


def _metas(result: Any) -> Any:
    if isinstance(result, np.ndarray | np.generic):
        return None if result.dtype.hasobject else fresh(result.shape, result.dtype)
    if isinstance(result, bool | int | float | complex):  # CuPy has arrays where NumPy has scalars
        return fresh((), np.asarray(result).dtype)
    if isinstance(result, tuple | list):
        items = [_metas(item) for item in result]
        if any(item is None for item in items):
            return None
        return items if type(result) is list else tuple(items)
    return None


def _translate(tree: Any, large: dict[int, int]) -> Any:
    if type(tree) is Meta:
        try:
            return fresh(tuple(large[n] for n in tree.shape), tree.dtype)
        except KeyError:
            raise _Unsuitable from None
    if isinstance(tree, tuple | list):
        return type(tree)([_translate(item, large) for item in tree])
    return tree
