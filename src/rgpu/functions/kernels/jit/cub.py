"""``cupyx.jit.cub``: CUB's reductions over the threads of a warp or a block, for kernels.

``WarpReduce[dtype]`` and ``BlockReduce[dtype, threads]`` are types of C++; their ``TempStorage`` is a type of
shared memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rgpu.functions.kernels.jit.builtins import Builtin
from rgpu.functions.kernels.jit.types import Struct, c_name


class Reducer:
    """One specialised template; called inside a kernel with its storage."""

    def __init__(self, template: str, dtype: np.dtype) -> None:
        self.dtype = dtype
        self.TempStorage = Struct(f"typename {template}::TempStorage")
        self.type = Struct(template, methods={"Sum": dtype, "Reduce": dtype})


class _Template:
    """A class of CUB before it is told its types."""

    def __init__(self, name: str, parameters: int) -> None:
        self.name, self.parameters, self._made = name, parameters, {}  # type: ignore[var-annotated]

    def __getitem__(self, given: Any) -> Reducer:
        dtype, *rest = given if isinstance(given, tuple) else (given,)
        if len(rest) != self.parameters:
            raise TypeError(f"cub.{self.name} takes {1 + self.parameters} parameters, {1 + len(rest)} were given")
        text = ", ".join([c_name(np.dtype(dtype)), *(str(int(x)) for x in rest)])
        return self._made.setdefault(text, Reducer(f"cub::{self.name}<{text}>", np.dtype(dtype)))


WarpReduce, BlockReduce = _Template("WarpReduce", 0), _Template("BlockReduce", 1)
Sum = Builtin("operator", "cub.Sum", "cuda::std::plus<>()")
Max = Builtin("operator", "cub.Max", "cuda::maximum<>()")
Min = Builtin("operator", "cub.Min", "cuda::minimum<>()")

__all__ = ["BlockReduce", "Max", "Min", "Sum", "WarpReduce"]
