"""``cupyx.scipy.spatial.distance``: distances between vectors.

From the table of declared functions; names that are not there yet say so when used.
"""

from rgpu import surface
from rgpu.cupyx.scipy import _table

_table.fill(globals(), "spatial.distance")
__getattr__, __dir__ = surface.face(__name__)
