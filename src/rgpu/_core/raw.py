"""``cupy._core.raw``: the two kinds of raw kernels."""

from __future__ import annotations

from rgpu.functions.kernels.raw import RawKernel as RawKernel
from rgpu.functions.kernels.raw import RawModule as RawModule
