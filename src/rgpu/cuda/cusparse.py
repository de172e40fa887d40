"""``cupy.cuda.cusparse``: cuSPARSE by handle. Sparse matrices are in `cupyx.scipy.sparse`.

Names of CuPy's that are not here raise NotImplementedError with their name when used.
"""

from __future__ import annotations

from rgpu import surface
from rgpu.cuda.errors import library_error

CuSparseError = library_error("CuSparseError", "cupy_backends.cuda.libs.cusparse")

__getattr__, __dir__ = surface.face(__name__)
