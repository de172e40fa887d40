"""``cupy.cuda.cusolver``: cuSOLVER by handle. Solvers are in `cupy.linalg`.

Names of CuPy's that are not here raise NotImplementedError with their name when used.
"""

from __future__ import annotations

from rgpu import surface
from rgpu.cuda.errors import library_error

CUSOLVERError = library_error("CUSOLVERError", "cupy_backends.cuda.libs.cusolver")

__getattr__, __dir__ = surface.face(__name__)
