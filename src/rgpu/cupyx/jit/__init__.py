"""``cupyx.jit``: kernels written in Python, turned into CUDA C++ here and compiled by the server.

A function's source is read on the client; only the C++ text travels. What cannot be translated is refused at
the launch, by line.
"""

from rgpu import surface
from rgpu.cupyx.jit import cg, cub, thrust
from rgpu.cupyx.jit._kernel import rawkernel
from rgpu.functions.kernels.jit.builtins import (
    ATOMICS,
    SHUFFLES,
    blockDim,
    blockIdx,
    grid,
    gridDim,
    gridsize,
    laneid,
    shared_memory,
    syncthreads,
    syncwarp,
    threadIdx,
    warpsize,
)
from rgpu.functions.kernels.jit.builtins import range_ as range  # noqa: A004 (CuPy's name)

atomic_add, atomic_sub, atomic_exch, atomic_min, atomic_max, atomic_inc = (
    ATOMICS[name] for name in ("add", "sub", "exch", "min", "max", "inc")
)
atomic_dec, atomic_cas, atomic_and, atomic_or, atomic_xor = (
    ATOMICS[name] for name in ("dec", "cas", "and", "or", "xor")
)
shfl_sync, shfl_up_sync, shfl_down_sync, shfl_xor_sync = SHUFFLES.values()

__getattr__, __dir__ = surface.face(__name__)

__all__ = [
    "atomic_add", "atomic_and", "atomic_cas", "atomic_dec", "atomic_exch", "atomic_inc",
    "atomic_max", "atomic_min", "atomic_or", "atomic_sub", "atomic_xor", "blockDim", "blockIdx",
    "cg", "cub", "grid", "gridDim", "gridsize", "laneid", "range", "rawkernel", "shared_memory",
    "shfl_down_sync", "shfl_sync", "shfl_up_sync", "shfl_xor_sync", "syncthreads", "syncwarp",
    "threadIdx", "thrust", "warpsize",
]  # fmt: skip
