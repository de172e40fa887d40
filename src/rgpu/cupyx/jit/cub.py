"""``cupyx.jit.cub``: CUB's reductions of kernels; the marks are ``functions/kernels/jit/cub``."""

from rgpu.functions.kernels.jit.cub import BlockReduce, Max, Min, Sum, WarpReduce

__all__ = ["BlockReduce", "Max", "Min", "Sum", "WarpReduce"]
