"""``cupyx.scipy.signal``: filtering, spectra and filter design.

From the table of declared functions; names that are not there yet say so when used.
"""

import warnings
from typing import Any

import numpy as np

from rgpu import surface
from rgpu.cupyx.scipy import _objects, _table


class BadCoefficients(UserWarning):
    """Warning about badly conditioned filter coefficients."""


_objects.fill(globals(), "signal")
_table.fill(globals(), "signal")
_filtfilt = globals()["filtfilt"]


def filtfilt(
    b: Any, a: Any, x: Any, axis: int = -1, padtype: Any = "odd", padlen: Any = None, method: str = "pad",
    irlen: Any = None,
) -> Any:  # fmt: skip
    """A filter forward and backward; warns where Gustafsson's method drops the imaginary part of complex filters."""
    if method == "gust" and any(getattr(c, "dtype", np.dtype(float)).kind == "c" for c in (a, b)):
        message = "Casting complex values to real discards the imaginary part"
        warnings.warn(message, np.exceptions.ComplexWarning, stacklevel=2)
    return _filtfilt(b, a, x, axis, padtype, padlen, method, irlen)


__getattr__, __dir__ = surface.face(__name__)
