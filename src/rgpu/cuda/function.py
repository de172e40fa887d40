"""``cupy.cuda.function``: a kernel of a module, as the driver's interface shows it.

Names of CuPy's that are not here raise NotImplementedError with their name when used.
"""

from __future__ import annotations

from typing import Any

from rgpu import surface


class Function:
    """One kernel of a module; ``RawKernel.kernel`` is one."""

    __module__ = "cupy.cuda.function"

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel

    def __call__(
        self, grid: tuple, block: tuple, args: Any, shared_mem: int = 0, stream: Any = None,
        enable_cooperative_groups: bool = False,
    ) -> None:  # fmt: skip
        """Launch by grid and block."""
        self._kernel(grid, block, args, shared_mem=shared_mem, stream=stream)

    def linear_launch(
        self, size: int, args: Any, shared_mem: int = 0, block_max_size: int = 128, stream: Any = None,
        enable_cooperative_groups: bool = False,
    ) -> None:  # fmt: skip
        """Launch ``size`` threads or a little more, in blocks of ``block_max_size``."""
        grid = min(0x7FFFFFFF, -(-size // block_max_size))
        self((grid,), (min(block_max_size, size),), args, shared_mem, stream)


__getattr__, __dir__ = surface.face(__name__)
