"""``cupy.cuda.cutensor``: cuTENSOR by handle.

Names of CuPy's that are not here raise NotImplementedError with their name when used.
"""

from __future__ import annotations

from rgpu import surface
from rgpu.cuda.errors import library_error

CuTensorError = library_error("CuTensorError", "cupy_backends.cuda.libs.cutensor")

__getattr__, __dir__ = surface.face(__name__)
