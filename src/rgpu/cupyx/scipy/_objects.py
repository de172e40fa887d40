"""Objects of SciPy's classes that stay on the worker: the client's classes, made from ``wire/classes``.

Making one waits, so that wrong arguments are an error of the line that has them. Calling one where it was called
before with the same layouts does not. Python callables are refused: they would have to be called back over the network.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rgpu.client import pool
from rgpu.cupyx.scipy.sparse import _call
from rgpu.functions import dispatch
from rgpu.functions.objects import RemoteObject
from rgpu.wire import classes
from rgpu.wire.functions import BY_NAME

#: declared name -> what is said of the arguments on the caller's line, before the worker has them
checks: dict[str, Callable[..., None]] = {}
_made: dict[str, type] = {}  # declared name -> the client's class


def _plain(x: Any) -> Any:
    """An argument as it travels."""
    if isinstance(x, Thing):
        return x
    if isinstance(x, np.ndarray) and x.dtype.kind == "O":
        raise TypeError("object arrays have no meaning on a device")
    return _call.plain(x)


class Thing(RemoteObject):
    """An object on the worker. ``_name`` is its declared class."""

    _name = ""
    _learned: dict[Any, Any]

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls._name in checks:
            checks[cls._name](*args, **kwargs)
        return made(classes.PREFIX + cls._name, *args, **kwargs)

    def _ask(self, function: str, name: str, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = tuple(_plain(x) for x in args), {key: _plain(x) for key, x in kwargs.items()}
        encoded = dispatch._Arguments(self._stream, (self, name, *args), kwargs, True)
        key = tuple(encoded.key)
        tree = self._learned.get(key) if name == "__call__" else None
        if tree is not None:
            return dispatch.submit(BY_NAME[function], encoded, tree)
        if name != "__call__":
            self._learned.clear()  # another method may have changed what the object is
        result = dispatch.ask(BY_NAME[function], encoded)
        if name == "__call__":
            self._learned[key] = dispatch.shape_of(result)
        elif name.startswith("set_"):
            self.__class__ = _class_of(self)  # a spline without smoothing becomes another kind of spline
        return _call.restored(result)

    def __repr__(self) -> str:
        return f"<{type(self).__module__}.{type(self).__name__} on {self._stream.name}>"


def made(function: str, *args: Any, **kwargs: Any) -> Any:
    """The object that a declared function makes, as one of the client's classes."""
    args, kwargs = tuple(_plain(x) for x in args), {key: _plain(x) for key, x in kwargs.items()}
    with _device_of((*args, *kwargs.values())):
        thing = object.__new__(Thing)
        thing._create(function, *args, **kwargs)
        thing.__class__ = _class_of(thing)
    thing._learned = {}
    return thing


def _class_of(thing: Thing) -> Any:
    """The client's class of what an object is on its worker."""
    encoded = dispatch._Arguments(thing._stream, (thing,), {}, True)
    return _made[dispatch.ask(BY_NAME["cupyx.object.kind"], encoded)]


def _device_of(args: tuple) -> Any:
    for x in args:
        if isinstance(x, RemoteObject):
            return x._stream.device
    return _call._first_device(args) or pool.current()


def _method(name: str, makes: bool) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if makes:
            return made("cupyx.object.make", self, name, *args, **kwargs)
        return self._ask("cupyx.object.call", name, *args, **kwargs)

    method.__name__ = name
    return method


def _attribute(name: str, settable: bool) -> property:
    def get(self: Any) -> Any:
        return self._ask("cupyx.object.get", name)

    def set_(self: Any, value: Any) -> None:
        self._ask("cupyx.object.set", name, value)

    return property(get, set_ if settable else None)


def _class_method(declared: str, name: str, makes: bool) -> Any:
    def method(cls: type, *args: Any, **kwargs: Any) -> Any:
        if makes:
            return made("cupyx.object.construct", cls._name, name, *args, **kwargs)  # type: ignore[attr-defined]
        args, kwargs = tuple(_plain(x) for x in args), {key: _plain(x) for key, x in kwargs.items()}
        with _device_of(args):
            encoded = dispatch._Arguments(pool.current_stream(), (declared, name, *args), kwargs, True)
            return _call.restored(dispatch.ask(BY_NAME["cupyx.object.function"], encoded))

    method.__name__ = name
    return classmethod(method)


def _build(spec: classes.Class) -> type:
    module, _, short = spec.name.rpartition(".")
    public = f"{classes.PREFIX}{module}"
    body: dict[str, Any] = {"__module__": public, "_name": spec.name, "__doc__": f"See scipy.{spec.name}."}
    body |= {name: _method(name, False) for name in spec.methods}
    body |= {name: _method(name, True) for name in spec.makers}
    body |= {name: _attribute(name, name in spec.settable) for name in spec.attributes}
    body |= {name: _class_method(spec.name, name, True) for name in spec.constructors}
    body |= {name: _class_method(spec.name, name, False) for name in spec.functions}
    return type(short, tuple(_made[base] for base in spec.bases) or (Thing,), body)


for _spec in classes.CLASSES.values():
    _made[_spec.name] = _build(_spec)


def _maker(name: str) -> Callable[..., Any]:
    def make(*args: Any, **kwargs: Any) -> Any:
        return made(classes.PREFIX + name, *args, **kwargs)

    make.__name__ = make.__qualname__ = name.rpartition(".")[2]
    make.__module__ = classes.PREFIX + name.rpartition(".")[0]
    make.__doc__ = f"An object on the worker: see scipy.{name}."
    return make


def fill(names: dict[str, Any], namespace: str) -> None:
    """The classes of a module of cupyx.scipy, and the functions that make their objects."""
    for name in (*classes.PUBLIC, *classes.MAKERS):
        module, _, short = name.rpartition(".")
        if module == namespace:
            names[short] = _made[name] if name in classes.CLASSES else _maker(name)
