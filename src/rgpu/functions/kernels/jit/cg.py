"""``cupyx.jit.cg``: cooperative groups of kernels; groups of a block and of the whole grid.

Marks, and the types that the groups are inside a kernel.
"""

from __future__ import annotations

import numpy as np

from rgpu.functions.kernels.jit.builtins import Builtin
from rgpu.functions.kernels.jit.types import DIM3, Struct

_UINT32, _UINT64, _BOOL = np.dtype(np.uint32), np.dtype(np.uint64), np.dtype(bool)

BLOCK = Struct(
    "cooperative_groups::thread_block",
    methods={
        "sync": None, "thread_rank": _UINT32, "size": _UINT32, "num_threads": _UINT32, "group_index": DIM3,
        "thread_index": DIM3, "group_dim": DIM3, "dim_threads": DIM3,
    },
)  # fmt: skip
GRID = Struct(
    "cooperative_groups::grid_group",
    methods={
        "sync": None, "is_valid": _BOOL, "thread_rank": _UINT64, "block_rank": _UINT64, "num_threads": _UINT64,
        "num_blocks": _UINT64, "size": _UINT64, "dim_blocks": DIM3, "block_index": DIM3, "group_dim": DIM3,
    },
)  # fmt: skip

this_thread_block = Builtin("group", "cg.this_thread_block", "cooperative_groups::this_thread_block")
this_grid = Builtin("group", "cg.this_grid", "cooperative_groups::this_grid")
sync = Builtin("group_sync", "cg.sync", "cooperative_groups::sync")
wait = Builtin("group_sync", "cg.wait", "cooperative_groups::wait")
wait_prior = Builtin("group_sync", "cg.wait_prior", "cooperative_groups::wait_prior")
memcpy_async = Builtin("group_copy", "cg.memcpy_async", "cooperative_groups::memcpy_async")

__all__ = ["memcpy_async", "sync", "this_grid", "this_thread_block", "wait", "wait_prior"]
