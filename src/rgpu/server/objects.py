"""Objects of SciPy's classes (or cupyx's) in the worker's table: made, called and asked as ``wire/classes`` declares.

An object's declared class is found by its type; a name that is not declared for it is refused. Sparse matrices go in
and out as their parts. Never reaches an attribute that the table of classes does not name.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from rgpu.server import sparse
from rgpu.wire import classes

_PREFIX = "cupyx.scipy."
_FACTORED = "sparse.linalg.SuperLU"


class Factors:
    """A factorisation (SuperLU's objects know neither their class's module nor what they were made of) by the function
    ``name`` of ``given``, which nobody else has."""

    def __init__(self, name: str, given: tuple[tuple, dict], made: Any) -> None:
        self.name, self.given, self._made = name, given, made

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "_made"), name)


def kind(thing: Any) -> str:
    """The declared class of an object; TypeError for one of no declared class."""
    if isinstance(thing, Factors):
        return _FACTORED
    for cls in type(thing).__mro__:
        places = cls.__module__.removeprefix("cupyx.").split(".")
        public = [place for place in places if not place.startswith("_")]
        name = ".".join([*public[1:], cls.__name__])
        if public[:1] == ["scipy"] and name in classes.CLASSES:
            return name
    raise TypeError(f"{type(thing).__name__} is not a class whose objects may be used from afar")


def _checked(thing: Any, section: str, name: str) -> Any:
    declared = kind(thing)
    if not classes.may(declared, section, name):
        raise AttributeError(f"{name!r} is not declared for {declared}")
    return getattr(thing, name)


def _rows(result: Any) -> Any:
    """Rows of different lengths (neighbours of points) as arrays, as CuPy has them."""
    if isinstance(result, np.ndarray) and result.dtype.hasobject:
        result = result.tolist()
    if isinstance(result, list) and all(isinstance(row, list) for row in result):
        return [np.asarray(row, np.int64) for row in result]
    return result


def _set(thing: Any, name: str, value: Any) -> None:
    declared = kind(thing)
    if not classes.may(declared, "settable", name):
        raise AttributeError(f"{name!r} of {declared} cannot be assigned")
    setattr(thing, name, value)


def _class_method(package: str, section: str) -> Callable[..., Any]:
    def call(declared: str, name: str, /, *args: Any, **kwargs: Any) -> Any:
        if not classes.may(declared, section, name):
            raise AttributeError(f"{name!r} is not declared for {declared}")
        module, _, short = declared.rpartition(".")
        cls = getattr(importlib.import_module(f"{package}.{module}"), short)
        return getattr(cls, name)(*args, **kwargs)

    return call


@functools.cache
def _seeded() -> str:
    """What SciPy calls the seed."""
    from scipy.interpolate import BarycentricInterpolator

    known = inspect.signature(BarycentricInterpolator).parameters
    return "rng" if "rng" in known else "random_state"


def _maker(package: str, name: str) -> Callable[..., Any]:
    module, _, short = name.rpartition(".")

    def make(*args: Any, **kwargs: Any) -> Any:
        if package == "scipy" and short == "BarycentricInterpolator":
            # It draws an order of its points: on two workers the same.
            kwargs = {_seeded(): 0, **kwargs}
        made = getattr(importlib.import_module(f"{package}.{module}"), short)(*args, **kwargs)
        return Factors(short, (args, kwargs), made) if type(made).__name__ == "SuperLU" else made

    return make


def overrides(package: str) -> dict[str, Callable[..., Any]]:
    """The declared constructors and what is done with objects, over ``scipy`` or ``cupyx.scipy``."""

    def method(section: str) -> Callable[..., Any]:
        return lambda thing, name, /, *args, **kwargs: _rows(_checked(thing, section, name)(*args, **kwargs))

    found: dict[str, Callable[..., Any]] = {
        "cupyx.object.kind": kind,
        "cupyx.object.call": method("methods"),
        "cupyx.object.make": method("makers"),
        "cupyx.object.get": lambda thing, name, /: _checked(thing, "attributes", name),
        "cupyx.object.set": _set,
        "cupyx.object.construct": _class_method(package, "constructors"),
        "cupyx.object.function": _class_method(package, "functions"),
    }
    found.update({_PREFIX + name: _maker(package, name) for name in (*classes.PUBLIC, *classes.MAKERS)})
    return {name: sparse.translated(f"{package}.sparse", function) for name, function in found.items()}
