"""``cupy.cuda.nvrtc``: The compiler of kernels; it runs on the worker.

Names of CuPy's that are not here raise NotImplementedError with their name when used.
"""

from __future__ import annotations

from rgpu import surface
from rgpu.cuda import runtime
from rgpu.cuda.errors import library_error

NVRTCError = library_error("NVRTCError", "cupy_backends.cuda.libs.nvrtc")


def getVersion() -> tuple[int, int]:  # noqa: N802 - CuPy's name
    """Major and minor, those of the CUDA that the worker has: libraries choose a kernel's options by it."""
    version = runtime.runtimeGetVersion()
    return version // 1000, version % 1000 // 10


__getattr__, __dir__ = surface.face(__name__)
