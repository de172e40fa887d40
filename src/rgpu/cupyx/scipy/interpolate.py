"""``cupyx.scipy.interpolate``: interpolation.

Interpolators are objects on the worker, functions come from the table; names that are not there yet say so when used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rgpu import surface
from rgpu.cupyx.scipy import _objects, _table

_objects.fill(globals(), "interpolate")
_table.fill(globals(), "interpolate")
pchip = globals()["PchipInterpolator"]


def _of_spline(function: Callable[..., Any], method: str) -> Callable[..., Any]:
    """A function of (t, c, k), for which a BSpline has a method."""

    def call(tck: Any, n: int = 1) -> Any:
        return getattr(tck, method)(n) if isinstance(tck, globals()["BSpline"]) else function(tck, n)

    call.__name__ = call.__qualname__ = function.__name__
    call.__doc__ = function.__doc__
    return call


splder = _of_spline(globals()["splder"], "derivative")
splantider = _of_spline(globals()["splantider"], "antiderivative")
__getattr__, __dir__ = surface.face(__name__)
