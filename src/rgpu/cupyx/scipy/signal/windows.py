"""``cupyx.scipy.signal.windows``: window functions.

From the table of declared functions; names that are not there yet say so when used.
"""

from typing import Any

import numpy as np

from rgpu import surface
from rgpu.client.remote import Remote
from rgpu.cupyx.scipy import _table

_table.fill(globals(), "signal.windows")
_get_window = globals()["get_window"]


def get_window(window: Any, Nx: int, fftbins: bool = True) -> Any:  # noqa: N803 - CuPy's name
    """A window of ``Nx`` samples by its name, a tuple of name and parameters, or the beta of a Kaiser window.
    ValueError for anything else."""
    if not isinstance(window, str | tuple | int | float | np.generic | Remote):
        raise ValueError(f"{type(window)} as window type is not supported")
    return _get_window(window, Nx, fftbins)


__getattr__, __dir__ = surface.face(__name__)
