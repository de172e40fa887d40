"""How objects of SciPy's classes and captured graphs are told, in calls that make them again on another worker.

A call is of a declared function, as the client could have made it, with what the object consists of now: nothing here
can make what a client could not. Arrays that have no handle get a hidden one until the copy is made; those that share
memory with the program's arrays go as views of them. TypeError for what cannot be told.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from rgpu.server import objects, recording, sparse
from rgpu.wire import classes, codec, values

HIDDEN = 7 << 61  # handles from here on are of no program and no visitor

#: a class method and the attributes that it takes, for a class and what is derived from it
_BY_STATE = {
    "interpolate.PPoly": ("construct_fast", "c x extrapolate axis"),
    "interpolate.BPoly": ("construct_fast", "c x extrapolate axis"),
    "interpolate.NdPPoly": ("construct_fast", "c x extrapolate"),
    "interpolate.BSpline": ("construct_fast", "t c k extrapolate axis"),
}
#: the constructor's parameters that are attributes (parameter=attribute where they differ); others as they were given
_BY_CALL = {
    "interpolate.NdBSpline": "t c k extrapolate",
    "interpolate.RegularGridInterpolator": "points=grid values method bounds_error fill_value",
    "interpolate.interp1d": "x y fill_value bounds_error",
    "interpolate.NearestNDInterpolator": "x=points y=values",
    "interpolate.KroghInterpolator": "xi",
    "interpolate.BarycentricInterpolator": "xi wi",
    "interpolate.LinearNDInterpolator": "points",
    "interpolate.CloughTocher2DInterpolator": "points",
    "interpolate.RBFInterpolator": "y smoothing kernel epsilon",
    "spatial.KDTree": "data leafsize boxsize",
    "spatial.Delaunay": "points",
    "signal.CZT": "n m a",
    "signal.ZoomFFT": "n m fs",
    "signal.TransferFunctionContinuous": "num den",
    "signal.TransferFunctionDiscrete": "num den",
    "signal.StateSpaceContinuous": "A B C D",
    "signal.StateSpaceDiscrete": "A B C D",
    "signal.ZerosPolesGainContinuous": "zeros poles gain",
    "signal.ZerosPolesGainDiscrete": "zeros poles gain",
}
_SPLINE = "interpolate.UnivariateSpline"
_SYSTEMS = ("Continuous", "Discrete")  # what is made by the class of that name without its end, with dt


def _values_of(thing: Any) -> Any:
    """The values at each point, in the shape that they were given in."""
    return thing.values.reshape(thing.values.shape[:1] + tuple(thing.values_shape))


def _along_axis(thing: Any) -> Any:
    """``yi`` as it was given."""
    if thing.yi is None:
        return None
    found = thing.yi.reshape(thing.yi.shape[:1] + tuple(thing._y_extra_shape))
    package = importlib.import_module(type(found).__module__.partition(".")[0])
    return package.moveaxis(found, 0, thing._y_axis)


#: parameters that are made of several attributes
_MADE_OF: dict[str, dict[str, Callable[[Any], Any]]] = {
    "interpolate.LinearNDInterpolator": {"values": _values_of},
    "interpolate.CloughTocher2DInterpolator": {"values": _values_of},
    "interpolate.KroghInterpolator": {"yi": _along_axis},
    "interpolate.BarycentricInterpolator": {"yi": _along_axis},
    "signal.ZoomFFT": {"fn": lambda thing: [thing.f1, thing.f2]},
    "interpolate.RBFInterpolator": {
        "d": lambda thing: thing.d.view(thing.d_dtype).reshape(thing.d.shape[:1] + tuple(thing.d_shape))
    },
}


def without_arrays(backend: Any, x: Any) -> Any:
    """Arguments for keeping: an array, which would stay alive, is left out (Ellipsis)."""
    if isinstance(x, tuple | list):
        return type(x)(without_arrays(backend, item) for item in x)
    if isinstance(x, dict):
        return {key: without_arrays(backend, item) for key, item in x.items()}
    return ... if isinstance(x, backend.array) else x


def call_of(thing: Any, made: tuple | None) -> tuple[str, tuple, dict]:
    """Function, arguments and named arguments that make the object again. ``made``: the call that made it."""
    if isinstance(thing, objects.Factors):
        return f"{classes.PREFIX}sparse.linalg.{thing.name}", *thing.given
    kind = objects.kind(thing)
    if any(spec.name == _SPLINE for spec in classes.lineage(kind)):
        return _spline(thing, made)
    for spec in classes.lineage(kind):
        if spec.name in _BY_STATE:
            method, names = _BY_STATE[spec.name]
            return "cupyx.object.construct", (kind, method, *[getattr(thing, name) for name in names.split()]), {}
    if kind not in _BY_CALL or getattr(thing, "rescale", False):
        raise TypeError(f"nobody can make a {kind} again")
    named = [pair.partition("=") for pair in _BY_CALL[kind].split()]
    found = {parameter: getattr(thing, attribute or parameter) for parameter, _, attribute in named}
    found |= {parameter: make(thing) for parameter, make in _MADE_OF.get(kind, {}).items()}
    if kind.endswith(_SYSTEMS):
        kind = kind.removesuffix("Continuous").removesuffix("Discrete")
        if thing.dt is not None:
            found["dt"] = thing.dt
        return classes.PREFIX + kind, _positional(kind, found), found
    if made is None or made[0].name != classes.PREFIX + kind:
        raise TypeError(f"nobody can make a {kind} again that no constructor made")
    given = inspect.signature(type(thing)).bind_partial(*made[1], **made[2]).arguments
    rest = {name: x for name, x in given.items() if name not in found}
    if any(x is ... for x in _flat(rest)):
        raise TypeError(f"nobody knows any more what the {kind} was made of")
    return classes.PREFIX + kind, (), rest | found


def _spline(thing: Any, made: tuple | None) -> tuple[str, tuple, dict]:
    """FITPACK's: by the data that it has kept, unless it has been smoothed since, on a way that none can go again."""
    name = "" if made is None else made[0].name.removeprefix(classes.PREFIX)
    if name not in classes.CLASSES:
        raise TypeError("nobody can make again what is no spline of data")
    first = getattr(importlib.import_module(type(thing).__module__), name.rpartition(".")[2])
    given = inspect.signature(first).bind_partial(*made[1], **made[2]).arguments
    x, y, w, begin, end, k, s, n, t = thing._data[:9]
    found = {"x": x, "y": y, "w": w, "bbox": [begin, end], "k": k, "ext": given.get("ext", 0)}
    if name == _SPLINE:
        if s != (x.size if given.get("s") is None else given["s"]):
            raise TypeError("nobody can make a spline again that was smoothed")
        found["s"] = s
    elif name.endswith("LSQUnivariateSpline"):
        found["t"] = t[k + 1 : n - k - 1]
    return classes.PREFIX + name, (), found


def _positional(kind: str, found: dict) -> tuple:
    """These take their matrices by position only."""
    return tuple(found.pop(name) for name in list(found) if name != "dt")


def _flat(x: Any) -> Iterator[Any]:
    if isinstance(x, dict):
        x = tuple(x.values())
    if isinstance(x, tuple | list):
        for item in x:
            yield from _flat(item)
    else:
        yield x


class Teller:
    """Tells the objects of one session at one point of its commands. ``entries``: of what has no handle."""

    def __init__(self, backend: Any, told: Callable[[Any, int], tuple]) -> None:
        self._backend, self._table, self._told = backend, backend.table, told
        self.entries: dict[int, tuple] = {}
        self._handles: dict[int, int] = {}  # id -> handle
        self._roots: dict[int, tuple[int, Any]] = {}  # id of an array's owner -> handle and array of the root
        self._kept: list = []  # what the ids are of
        for handle, entry in self._table.entries.items():
            if handle < HIDDEN:
                self._handles[id(entry)] = handle
                if isinstance(entry, backend.array) and not self._table.root(handle):
                    self._roots[id(self._owner(entry))] = handle, entry

    def forget(self) -> None:
        """The hidden handles mean nothing any more."""
        for handle in self.entries:
            self._table.free(handle)
        self.entries.clear()

    def tell(self, handle: int, thing: Any, made: tuple | None) -> tuple:
        """The entry of an object."""
        if isinstance(thing, recording.CpuGraph):
            data, numbers, kept = thing.told()
            return self._entry("graph", handle, "graph.make", (data, numbers, *kept), {})
        return self._entry("object", handle, *call_of(thing, made))

    def _entry(self, kind: str, handle: int, function: str, args: tuple, kwargs: dict) -> tuple:
        wired = [values.encode(sparse.taken_apart(x), self.special) for x in args]
        named = {name: values.encode(sparse.taken_apart(x), self.special) for name, x in kwargs.items()}
        return kind, handle, function, codec.pack(wired), codec.pack(named)

    def special(self, x: Any) -> Any:
        """Wire form of what goes by a handle."""
        found = self._handles.get(id(x))
        if found is None and isinstance(x, self._backend.array):
            found = self._array(x)
        elif found is None and self._backend.made.of(x) is not None:
            found = self._hide(x, self._told(x, HIDDEN + len(self.entries)))
        return None if found is None else [values.HANDLE, found]

    def _array(self, x: Any) -> int:
        """A view of the array that has its memory."""
        backend, owner = self._backend, self._owner(x)
        if x.dtype.hasobject:
            raise TypeError("an array of objects")
        if id(owner) not in self._roots:
            flags = owner.flags
            if not (flags.c_contiguous or flags.f_contiguous):
                raise TypeError("an array with gaps")
            strides = None if flags.c_contiguous else tuple(owner.strides)
            hidden = HIDDEN + len(self.entries)
            self._hide(owner, ("array", hidden, owner.dtype, tuple(owner.shape), strides, owner.nbytes))
            self._table.put(hidden, owner)
            self._roots[id(owner)] = hidden, owner
        root, base = self._roots[id(owner)]
        if x is base:
            return root
        offset = backend.address(x) - backend.address(base) if x.size else 0
        layout = x.dtype, tuple(x.shape), tuple(x.strides), offset
        return self._hide(x, ("view", HIDDEN + len(self.entries), root, *layout))

    def _hide(self, thing: Any, entry: tuple) -> int:
        handle = entry[1]
        self.entries[handle], self._handles[id(thing)] = entry, handle
        self._kept.append(thing)
        return handle

    def _owner(self, x: Any) -> Any:
        while isinstance(getattr(x, "base", None), self._backend.array):
            x = x.base
        return x
