"""Arguments of the distributions: signatures from text, parameters to the device, shapes, checks.

One description such as ``"loc=0.0 scale=1.0 size=None dtype=float"`` makes a callable with that
signature. What can be checked on the host is checked at once; nothing here waits for a device.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from rgpu.client.remote import Remote
from rgpu.functions import creation

_REQUIRED = inspect.Parameter.empty
_DEFAULTS = {"None": None, "float": float, "int": int, "l": "l", "float64": np.float64, "int64": np.int64,
             "False": False, "inv": "inv", "0.0": 0.0, "1.0": 1.0}  # fmt: skip
_COMPARE = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq}


def signed(name: str, text: str, body: Callable[..., Any], method: bool = True) -> Callable[..., Any]:
    """A function (or method) of this name and signature that calls ``body([self,] values)``."""
    defaults = {}
    for word in text.split():
        key, _, default = word.partition("=")
        defaults[key] = _DEFAULTS[default] if default else _REQUIRED

    def bind(args: tuple, kwargs: dict) -> dict:
        if len(args) > len(defaults):
            raise TypeError(
                f"{name}() takes at most {len(defaults)} positional arguments but {len(args)} were given"
            )
        values = dict(defaults)
        values.update(zip(defaults, args))
        for key, value in kwargs.items():
            if key not in defaults:
                raise TypeError(f"{name}() got an unexpected keyword argument {key!r}")
            if key in list(defaults)[: len(args)]:
                raise TypeError(f"{name}() got multiple values for argument {key!r}")
            values[key] = value
        missing = [key for key, value in values.items() if value is _REQUIRED]
        if missing:
            raise TypeError(f"{name}() missing required arguments: {', '.join(missing)}")
        return values

    if method:

        def function(self: Any, *args: Any, **kwargs: Any) -> Any:
            return body(self, bind(args, kwargs))

        head = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    else:

        def function(*args: Any, **kwargs: Any) -> Any:  # type: ignore[misc]
            return body(bind(args, kwargs))

        head = []
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(key, kind, default=value) for key, value in defaults.items()]
    function.__signature__ = inspect.Signature(head + parameters)  # type: ignore[attr-defined]
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Samples of CuPy's ``{name}``, drawn on the device."
    return function


def check(conditions: str, values: dict) -> None:
    """Raise ValueError for a forbidden condition (``"p < 0; p > 1"``) that host values fulfil.

    Conditions on device arrays are left to the worker, which may look at them without a round trip.
    """
    for condition in filter(None, conditions.split("; ")):
        left, compare, right = condition.split()
        sides = [values[side] if side in values else float(side) for side in (left, right)]
        if not any(isinstance(side, Remote) for side in sides) and np.any(
            _COMPARE[compare](*map(np.asarray, sides))
        ):
            raise ValueError(
                condition if left != "a" or right != "1.0" else "'a' must be a valid float > 1.0"
            )


def shape_of(x: Any) -> tuple:
    return x._metadata.shape if isinstance(x, Remote) else ()


def on_device(x: Any) -> Any:
    """A parameter as the worker takes it: a scalar by value, everything else as a device array."""
    if isinstance(x, Remote | bool | int | float | np.generic):
        return x
    return creation.asarray(x)


def drawn_shape(size: Any, parameters: list, strict: bool = True) -> tuple:
    """Shape of a draw: ``size``, or the parameters broadcast; ValueError if they do not fit in it."""
    broadcast = np.broadcast_shapes(*map(shape_of, parameters))
    if size is None:
        return broadcast
    shape = creation.checked_shape(size)
    joined = np.broadcast_shapes(shape, broadcast)
    if joined != shape and strict:
        raise ValueError(f"Array size mismatch: parameters of shape {broadcast} do not fit in size {shape}")
    return joined
