"""``cupyx.jit.cg``: cooperative groups of kernels; the marks are ``functions/kernels/jit/cg``."""

from rgpu.functions.kernels.jit.cg import memcpy_async, sync, this_grid, this_thread_block, wait, wait_prior

__all__ = ["memcpy_async", "sync", "this_grid", "this_thread_block", "wait", "wait_prior"]
