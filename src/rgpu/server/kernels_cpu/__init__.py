"""Custom kernels on the cpu backend: CUDA C++ compiled by the host's compiler and run by this worker.

The declared functions of the kernel group. A kernel is an object of the session; launching one compiles it
for the types at hand, or finds the binary. Nothing is ever run in the daemon.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rgpu.server.addressed import followed
from rgpu.server.cpu.arrays import override
from rgpu.server.kernels_cpu.loops import Elementwise
from rgpu.server.kernels_cpu.raw import Module, Pointer, Variable
from rgpu.server.kernels_cpu.reduction import Reduction

__all__ = ["Variable"]

override("kernel.elementwise")(Elementwise)
override("kernel.reduction")(Reduction)
override("kernel.module")(Module)


def _made(outputs: Any) -> tuple[list, tuple]:
    """Output arrays, and those among them that are new: a new one is named by its dtype and shape."""
    arrays = [x if isinstance(x, np.ndarray) else np.empty(x[1], x[0]) for x in outputs]
    return arrays, tuple(a for a, x in zip(arrays, outputs) if a is not x)


@override("kernel.elementwise.launch")
def _elementwise(kernel: Elementwise, inputs: tuple, outputs: tuple, size: int) -> tuple:
    arrays, made = _made(outputs)
    kernel.launch(list(inputs), arrays, size)
    return made


@override("kernel.reduction.launch")
def _reduction(kernel: Reduction, inputs: tuple, outputs: tuple, axes: tuple, keepdims: bool) -> tuple:
    arrays, made = _made(outputs)
    kernel.launch(list(inputs), arrays, axes, keepdims)
    return made


@override("kernel.module.load")
def _load(module: Module, remarks: bool) -> str:
    """Compile; the compiler's warnings where they are wanted."""
    module.load()
    return module.remarks() if remarks else ""


@override("kernel.module.function")
def _function(module: Module, name: str) -> dict:
    return module.function(name)


@override("kernel.module.symbol")
def _symbol(module: Module, name: str) -> Any:
    return module.symbol(name)


@override("kernel.launch")
def _launch(
    module: Module,
    name: str,
    grid: tuple,
    block: tuple,
    arguments: tuple,
    by_value: tuple,
    shared: int,
    cooperative: bool,
    addressed: tuple = ((), ()),
) -> None:
    """``by_value`` says which arguments are structs and scalars; the others are pointers. ``addressed``: what the client
    calls the memory of which arrays, for arguments that are arrays of pointers."""
    spans, arrays = addressed
    places = [(*span, x.ctypes.data) for span, x in zip(spans, arrays)]
    tables = [x if value else followed(x, places) for x, value in zip(arguments, by_value)]  # they live on until the end
    given = tuple(x if value else Pointer(x) for x, value in zip(tables, by_value))
    module.launch(name, grid, block, given, shared, cooperative)
