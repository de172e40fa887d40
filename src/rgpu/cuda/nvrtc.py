"""``cupy.cuda.nvrtc``: The compiler of kernels; it runs on the worker.

Names of CuPy's that are not here raise NotImplementedError with their name when used.
"""

from __future__ import annotations

from rgpu import surface
from rgpu.cuda.errors import library_error

NVRTCError = library_error("NVRTCError", "cupy_backends.cuda.libs.nvrtc")

__getattr__, __dir__ = surface.face(__name__)
