"""``cupyx.scipy.spatial``: distances between points, trees of them and triangulations.

From the table of declared functions; names that are not there yet say so when used.
"""

from rgpu import surface
from rgpu.cupyx.scipy import _objects, _table
from rgpu.cupyx.scipy.spatial import distance

_objects.fill(globals(), "spatial")
_table.fill(globals(), "spatial")
distance_matrix = distance.distance_matrix
__getattr__, __dir__ = surface.face(__name__)
