"""``cupy.cuda.curand``: cuRAND by handle. Random numbers are in `cupy.random`.

Names of CuPy's that are not here raise NotImplementedError with their name when used.
"""

from __future__ import annotations

from rgpu import surface
from rgpu.cuda.errors import library_error

CURANDError = library_error("CURANDError", "cupy_backends.cuda.libs.curand")

__getattr__, __dir__ = surface.face(__name__)
