"""``cupyx.distributed.array``: arrays whose parts lie on several devices."""

from __future__ import annotations

from rgpu import surface
from rgpu.cupyx.distributed.array._array import DistributedArray, distributed_array
from rgpu.cupyx.distributed.array._linalg import make_2d_index_map, matmul
from rgpu.cupyx.distributed.array._modes import MAX, MIN, PROD, REPLICA, SUM

__getattr__, __dir__ = surface.face(__name__)
