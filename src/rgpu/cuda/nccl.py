"""``cupy.cuda.nccl``: Collectives between GPUs.

Names of CuPy's that are not here raise NotImplementedError with their name when used.
"""

from __future__ import annotations

from rgpu import surface
from rgpu.cuda.errors import library_error

NcclError = library_error("NcclError", "cupy_backends.cuda.libs.nccl")

__getattr__, __dir__ = surface.face(__name__)
