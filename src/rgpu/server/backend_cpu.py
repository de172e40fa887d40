"""The cpu backend: NumPy (and SciPy) as a device, with CuPy's semantics.

The semantic reference and CI's GPU. Functions are NumPy's of the same path; what NumPy lacks or
does differently from CuPy is in ``server.cpu``. Never reads the wire, never keeps client code.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rgpu.server import collective, kernels_cpu, peers, state
from rgpu.server.backend import Backend
from rgpu.server.collective import Runner
from rgpu.server.cpu import OVERRIDES, device, mathematics

FUNCTIONS = {**device.FUNCTIONS, **peers.FUNCTIONS, **collective.FUNCTIONS, **state.FUNCTIONS}


class CpuBackend(Backend):
    """One cpu device: host memory under a limit, commands run in order on this thread."""

    kind = "cpu"
    array = np.ndarray
    scalar = np.generic
    shortcuts = {**mathematics.REDUCTIONS, "ndarray.setitem": "assign", "ndarray.copy": "copy"}
    borrowed = (kernels_cpu.Variable,)

    def __init__(self, device: int = 0, memory_limit: int = 0) -> None:
        self.device, self.limit = device, memory_limit
        self.stream: Any = None  # the current one; commands run in order on any
        self.runner = Runner()
        np.seterr(all="ignore")  # a GPU raises no floating-point warnings

    def entitle(self, allowance: Any, spill_to: Any = None) -> None:
        super().entitle(allowance, spill_to)
        self.runner.away = allowance.away

    def resolve(self, name: str) -> Callable[..., Any] | None:
        if name in FUNCTIONS:
            return functools.partial(FUNCTIONS[name], self)
        found = OVERRIDES.get(name)
        if found is not None:
            return functools.partial(found, self) if getattr(found, "wants_backend", False) else found
        found = np
        for part in name.split("."):
            found = getattr(found, part, None)
        return found

    def empty(self, shape: Sequence[int], dtype: np.dtype, strides: Sequence[int] | None) -> Any:
        if strides is None:
            return np.empty(shape, dtype)
        flat = np.empty(int(np.prod(shape)) * dtype.itemsize, np.uint8)
        return np.ndarray(shape, dtype, flat, 0, strides) if flat.size else np.empty(shape, dtype)

    def view(self, root: Any, shape: tuple, dtype: np.dtype, strides: tuple, offset: int) -> Any:
        if 0 in shape:
            return np.empty(shape, dtype)
        return np.ndarray(shape, dtype, memory_of(root), offset, strides)

    def address(self, array: Any) -> int:
        return array.__array_interface__["data"][0]

    def from_host(self, array: np.ndarray) -> Any:
        return np.array(array)

    def to_host(self, array: Any, order: str) -> np.ndarray:
        return np.asarray(array, order=order)

    def memory(self, array: Any, offset: int, size: int) -> memoryview | None:
        return memoryview(memory_of(array))[offset : offset + size] if array.flags.writeable else None

    def write(self, array: Any, offset: int, data: Any) -> None:
        memory = memory_of(array)
        source = np.frombuffer(data, np.uint8)
        if offset + source.size > memory.size:
            raise ValueError("write beyond the end of the array")
        memory[offset : offset + source.size] = source

    def lend(self, array: Any) -> memoryview:
        return memoryview(memory_of(array)) if array.size else memoryview(b"")

    place = lend

    def landed(self, array: Any, place: memoryview) -> None:
        """It was received where it belongs."""

    def collective(self, work: Callable[..., None], source: Any, target: Any, dtype: np.dtype) -> Any:
        flat = [None if x is None else memory_of(x).view(dtype) for x in (source, target)]
        if self.stream is not None and self.stream.non_blocking:
            return self.runner.start(lambda: work(*flat), self.stream)
        self.runner.finish()
        work(*flat)
        return None

    def separate(self, result: Any, others: list) -> bool:
        """A view of memory that nobody else has needs no copy either, unless it keeps much more alive."""
        if result.flags.owndata:
            return all(x is not result for x in others)
        base = result.base
        return (
            isinstance(base, np.ndarray)
            and base.nbytes <= result.nbytes + 4096
            and base.flags.owndata
            and base.flags.writeable
            and not any(np.may_share_memory(result, x) for x in others)
        )

    def own(self, result: Any, order: str = "C") -> Any:
        return np.array(result, order=order, subok=False)

    def synchronize(self) -> None:
        self.runner.finish()

    def at_rest(self) -> bool:
        return not self.runner.started

    def use_stream(self, stream: Any) -> None:
        self.stream = stream


def memory_of(array: np.ndarray) -> np.ndarray:
    """The bytes of an array that fills its memory without gaps, in memory order."""
    if array.flags.c_contiguous:
        return array.reshape(-1).view(np.uint8)
    if array.flags.f_contiguous:
        return array.T.reshape(-1).view(np.uint8)
    base = array.base  # what ``empty`` put another order of axes on
    if isinstance(base, np.ndarray) and base.dtype == np.uint8 and base.size == array.nbytes:
        return base
    raise ValueError("the array is not contiguous")
