"""``cupy._core.fusion``: ``fuse`` and its class."""

from __future__ import annotations

from rgpu.functions.kernels.fuse import Fusion as Fusion
from rgpu.functions.kernels.fuse import fuse as fuse
