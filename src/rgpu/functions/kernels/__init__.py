"""Custom kernels, as CuPy has them: element-wise, reduction, raw; and ``fuse``."""

from __future__ import annotations

from rgpu.functions.kernels.fuse import fuse
from rgpu.functions.kernels.loops import ElementwiseKernel, ReductionKernel
from rgpu.functions.kernels.raw import RawKernel, RawModule
from rgpu.functions.kernels.vectorize import vectorize

__all__ = ["ElementwiseKernel", "RawKernel", "RawModule", "ReductionKernel", "fuse", "vectorize"]
