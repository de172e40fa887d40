"""``cupyx.scipy.interpolate``: interpolation.

Interpolators are objects on the worker; evaluating one where it was evaluated before in the same
shape does not wait. Functions come from the table; names that are not there yet say so when used.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rgpu import surface
from rgpu.client.remote import Remote
from rgpu.cupyx.scipy import _table
from rgpu.functions import creation, dispatch
from rgpu.functions.objects import RemoteObject
from rgpu.wire.functions import BY_NAME, TABLE

_PREFIX = "cupyx.scipy.interpolate."


def _on_device(x: Any) -> Any:
    if callable(x) and not isinstance(x, Remote):
        raise NotImplementedError("interpolation with a Python callable is not available in rgpu")
    return creation.array(x) if isinstance(x, np.ndarray) else x


class _Interpolator(RemoteObject):
    """An interpolator of SciPy's on the worker, and what is known of its answers."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        args = tuple(_on_device(x) for x in args)
        self._make(type(self).__name__, args, {key: _on_device(x) for key, x in kwargs.items()})

    def _make(self, name: str, args: tuple, kwargs: dict) -> None:
        self._learned: dict[Any, Any] = {}
        self._create(_PREFIX + name, *args, **kwargs)

    def _ask(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method; the layout of an answer with one signature is remembered."""
        function = BY_NAME[f"{_PREFIX}Interpolator.{name}"]
        args = tuple(creation.array(x) if isinstance(x, np.ndarray | list) else x for x in args)
        encoded = dispatch._Arguments(self._stream, (self, *args), kwargs, True)
        key = (name, *encoded.key)
        tree = self._learned.get(key)
        if tree is not None and name == "call":
            return dispatch.submit(function, encoded, tree)
        result = dispatch.ask(function, encoded)
        self._learned[key] = dispatch.shape_of(result)
        return result

    def _derived(self, name: str, *args: Any) -> Any:
        """An interpolator that a method of this one makes."""
        made = object.__new__(type(self))
        with self._stream.device:
            made._make(f"Interpolator.{name}", (self, *args), {})
        return made

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._ask("call", *args, **kwargs)

    def integrate(self, *args: Any, **kwargs: Any) -> Any:
        return self._ask("integrate", *args, **kwargs)

    def roots(self, *args: Any, **kwargs: Any) -> Any:
        return self._ask("roots", *args, **kwargs)

    def solve(self, *args: Any, **kwargs: Any) -> Any:
        return self._ask("solve", *args, **kwargs)

    def derivative(self, nu: int = 1) -> Any:
        return self._derived("derivative", nu)

    def antiderivative(self, nu: int = 1) -> Any:
        return self._derived("antiderivative", nu)

    c = property(lambda self: self._ask("attribute", "c"))
    x = property(lambda self: self._ask("attribute", "x"))
    t = property(lambda self: self._ask("attribute", "t"))
    k = property(lambda self: self._ask("attribute", "k"))


for _function in TABLE:
    _name = _function.name.removeprefix(_PREFIX)
    if _function.name.startswith(_PREFIX) and _function.kind == "object" and "." not in _name:
        globals()[_name] = type(
            _name, (_Interpolator,), {"__module__": _PREFIX[:-1], "__doc__": f"See {_name}."}
        )
pchip = globals()["PchipInterpolator"]


def _spline_maker(name: str) -> Any:
    """A function whose result is a BSpline on the worker."""

    def make(*args: Any, **kwargs: Any) -> Any:
        made = object.__new__(globals()["BSpline"])
        made._make(
            name, tuple(_on_device(x) for x in args), {key: _on_device(x) for key, x in kwargs.items()}
        )
        return made

    make.__name__ = make.__qualname__ = name
    make.__doc__ = f"A BSpline: see {name}."
    return make


make_interp_spline = _spline_maker("make_interp_spline")
make_lsq_spline = _spline_maker("make_lsq_spline")
_table.fill(globals(), "interpolate")
__getattr__, __dir__ = surface.face(__name__)
