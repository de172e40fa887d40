"""``cupy.cuda.cufft``: cuFFT plans. Transforms are in `cupy.fft`.

Names of CuPy's that are not here raise NotImplementedError with their name when used.
"""

from __future__ import annotations

from rgpu import surface
from rgpu.cuda.errors import library_error
from rgpu.fft.plans import Plan1d as Plan1d
from rgpu.fft.plans import PlanNd as PlanNd
from rgpu.fft.plans import get_current_plan as get_current_plan


def getVersion() -> int:  # noqa: N802 - CuPy's name
    """The cuFFT whose interface this is: transforms run on whatever the device has."""
    return 11303


CuFFTError = library_error("CuFFTError", "cupy.cuda.cufft")

__getattr__, __dir__ = surface.face(__name__)
