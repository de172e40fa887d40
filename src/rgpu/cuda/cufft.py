"""``cupy.cuda.cufft``: cuFFT plans. Transforms are in `cupy.fft`.

Names of CuPy's that are not here raise NotImplementedError with their name when used.
"""

from __future__ import annotations

from rgpu import surface
from rgpu.cuda.errors import library_error

CuFFTError = library_error("CuFFTError", "cupy.cuda.cufft")

__getattr__, __dir__ = surface.face(__name__)
