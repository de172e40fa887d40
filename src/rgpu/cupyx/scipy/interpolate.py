"""``cupyx.scipy.interpolate``: interpolation.

Interpolators are objects on the worker, functions come from the table; names that are not there yet say so when used.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from rgpu import surface
from rgpu.cupyx.scipy import _objects, _table

_objects.fill(globals(), "interpolate")
_table.fill(globals(), "interpolate")
pchip = globals()["PchipInterpolator"]


_LEAST_DEGREE = {"thin_plate_spline": 1, "cubic": 1, "quintic": 2}


def _of_low_degree(
    y: Any, d: Any, neighbors: Any = None, smoothing: Any = 0.0, kernel: str = "thin_plate_spline", epsilon: Any = None,
    degree: Any = None,
) -> None:  # fmt: skip
    """A warning where the polynomial's degree is less than makes the interpolant unique."""
    least = _LEAST_DEGREE.get(kernel, 0)
    if degree is not None and -1 < int(degree) < least:
        message = f"`degree` should not be below {least} when `kernel` is '{kernel}': the interpolant may not be unique"
        warnings.warn(message, UserWarning, stacklevel=3)


_objects.checks["interpolate.RBFInterpolator"] = _of_low_degree


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
