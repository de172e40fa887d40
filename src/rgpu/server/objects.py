"""Objects of SciPy's classes (or cupyx's) in the worker's table: made, called and asked as ``wire/classes`` declares.

An object's declared class is found by its type; a name that is not declared for it is refused. Sparse matrices go in
and out as their parts. Never reaches an attribute that the table of classes does not name.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from rgpu.server import sparse
from rgpu.wire import classes

_PREFIX = "cupyx.scipy."
_BUILTIN = {"SuperLU": "sparse.linalg.SuperLU"}  # made in C, without a module


def kind(thing: Any) -> str:
    """The declared class of an object; TypeError for one of no declared class."""
    if type(thing).__module__ == "builtins" and type(thing).__name__ in _BUILTIN:
        return _BUILTIN[type(thing).__name__]
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


def _maker(package: str, name: str) -> Callable[..., Any]:
    module, _, short = name.rpartition(".")

    def make(*args: Any, **kwargs: Any) -> Any:
        return getattr(importlib.import_module(f"{package}.{module}"), short)(*args, **kwargs)

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
