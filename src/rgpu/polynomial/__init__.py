"""``cupy.polynomial``: power series; the functions are in ``polynomial`` and ``polyutils``."""

from rgpu.polynomial import polynomial as polynomial
from rgpu.polynomial import polyutils as polyutils
