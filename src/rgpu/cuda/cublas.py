"""``cupy.cuda.cublas``: cuBLAS by handle. Matrix products are `cupy.matmul` and its kin.

Names of CuPy's that are not here raise NotImplementedError with their name when used.
"""

from __future__ import annotations

from rgpu import surface
from rgpu.cuda.errors import library_error

CUBLASError = library_error("CUBLASError", "cupy_backends.cuda.libs.cublas")

__getattr__, __dir__ = surface.face(__name__)
