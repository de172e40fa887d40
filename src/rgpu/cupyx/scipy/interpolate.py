"""``cupyx.scipy.interpolate``: interpolation.

Interpolators are objects on the worker, functions come from the table; names that are not there yet say so when used.
"""

from __future__ import annotations

from rgpu import surface
from rgpu.cupyx.scipy import _objects, _table

_objects.fill(globals(), "interpolate")
_table.fill(globals(), "interpolate")
pchip = globals()["PchipInterpolator"]
__getattr__, __dir__ = surface.face(__name__)
