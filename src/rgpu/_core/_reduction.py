"""``cupy._core._reduction``: `create_reduction_func`, with which CuPy and libraries make reductions of their own.

One ReductionKernel for each loop that was used. Must not compute anything itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rgpu._core._kernel import read_loops
from rgpu._ndarray import ndarray
from rgpu.functions import creation
from rgpu.functions.kernels import ReductionKernel as ReductionKernel
from rgpu.wire.kernels import c_type


class CreatedReduction:
    """A reduction: its loops by types, tried in order, the first that can hold its input."""

    def __init__(self, name: str, ops: tuple, routine: Any, identity: Any, preamble: str) -> None:
        self.name = self.__name__ = name
        self.identity, self.preamble = identity, preamble
        self._loops = [(ins[0], outs[0], todo) for ins, outs, todo in read_loops(ops, routine)]
        self._kernels: dict[tuple, ReductionKernel] = {}

    @property
    def _cached_codes(self) -> dict:
        return {key: code for kernel in self._kernels.values() for key, code in kernel._cached_codes.items()}

    def __call__(self, a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        """Over ``axis`` (None: all), as NumPy's reductions; ``dtype`` chooses the loop."""
        a = creation.cupy_like(a)
        if not isinstance(a, ndarray):
            raise TypeError(f"Argument 'a' has incorrect type (expected cupy.ndarray, got {type(a).__name__})")
        wanted = a.dtype if dtype is None else np.dtype(dtype)
        loop = next((x for x in self._loops if np.can_cast(wanted, x[0])), None)
        if loop is None:
            raise TypeError(f"{self.name} has no loop for {wanted}")
        result = self._kernel(loop)(a.astype(loop[0], copy=False), axis=axis, keepdims=keepdims)
        if out is None:
            return result
        out[...] = result
        return out

    def _kernel(self, loop: tuple) -> ReductionKernel:
        source, result, (mapped, reduced, after, kind) = loop
        if loop not in self._kernels:
            types = f"typedef {c_type(source)} type_in0_raw; typedef {c_type(result)} type_out0_raw;"
            self._kernels[loop] = ReductionKernel(
                f"{source.name} in0", f"{result.name} out0", mapped, reduced, after,
                "" if self.identity is None else str(self.identity), self.name,
                reduce_type=kind or c_type(result), preamble=f"{types}\n{self.preamble}",
            )  # fmt: skip
        return self._kernels[loop]


def create_reduction_func(
    name: str, ops: tuple, routine: Any = None, identity: Any = None, preamble: str = "", sort_reduce_axis: bool = True
) -> CreatedReduction:
    """A reduction from loops (``"f->f"``, or a pair with its own routine) and a routine: expressions that map ``in0``,
    reduce ``a`` and ``b``, and write ``out0`` from ``a``, and the type reduced in (None: the result's)."""
    return CreatedReduction(name, ops, routine, identity, preamble)
