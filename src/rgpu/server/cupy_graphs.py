"""The CUDA calls behind ``server.graphs``: memory for a capture, the capture, the launch, and the proof.

CuPy comes as an argument, so that a stand-in can take its place where there is no card. A capture runs on a stream of
its own and does nothing yet; launches are on the session's stream, in the order of its commands.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

NOISE = 0xA5  # what memory holds before a graph must fill it
_SCRATCH_PART = 4  # scratch memory takes at most this part of the session's
_KERNELS = ("kernel.elementwise", "kernel.reduction")
_WITHIN = ("static", "asm", "clock", "printf", "malloc", "atomic", "__device__", "__shared__")


def reach(shape: Sequence[int], itemsize: int, strides: Sequence[int]) -> tuple[int, int]:
    """The bytes an array touches, from its first element."""
    steps = [(extent - 1) * stride for extent, stride in zip(shape, strides)]
    return sum(s for s in steps if s < 0), sum(s for s in steps if s > 0) + itemsize


class Device:
    """One CUDA device, as graphs see it."""

    def __init__(self, cupy: Any, backend: Any) -> None:
        self._cupy, self._backend = cupy, backend
        self.array = cupy.ndarray
        self._counted = backend.pools.create()  # as memory of the session, and of no array
        self._pool = self._counted.cupy
        self._stream: Any = None

    def ready(self) -> bool:
        """Whether all is on the default stream, and arrays stay where they are."""
        return not self._backend.streams and self._backend.spill_to is None

    def address(self, array: Any) -> int:
        return array.data.ptr

    def stateless(self, kernel: Any) -> bool:
        """Whether running a client's kernel twice is the same as once, when its arrays are as before."""
        made = self._backend.made
        how = made.of(kernel) if made is not None else None
        if how is None or how[0].name not in _KERNELS:
            return False
        _, (*texts, given), _ = how
        preamble = texts[5] if how[0].name == _KERNELS[0] else texts[-1]
        text = " ".join(x for x in texts if isinstance(x, str))
        return not preamble and not given and not any(word in text for word in _WITHIN)

    # Memory

    def allocator(self) -> Callable[[int], Any]:
        return self._cupy.cuda.get_allocator()

    def allocate(self, size: int) -> Any:
        """For results, of the session's pool; raises CuPy's OutOfMemoryError."""
        return self._cupy.cuda.alloc(size)

    def may_hold(self, size: int) -> bool:
        lease = self._backend.pools.lease
        return not lease or size * _SCRATCH_PART <= lease

    def block(self, size: int) -> Any:
        """Scratch memory; raises CuPy's OutOfMemoryError."""
        return self._pool.malloc(max(size, 1))

    def part(self, block: Any, offset: int, size: int) -> Any:
        """A piece of a block, as memory of its own that keeps the block."""
        cuda = self._cupy.cuda
        return cuda.MemoryPointer(cuda.UnownedMemory(block.ptr + offset, size, block, self._backend.device), 0)

    @contextlib.contextmanager
    def serving(self, allocator: Callable[[int], Any]) -> Iterator[None]:
        """Memory comes from this one meanwhile."""
        before = self._cupy.cuda.get_allocator()
        self._cupy.cuda.set_allocator(allocator)
        try:
            yield
        finally:
            self._cupy.cuda.set_allocator(before)

    def make(self, pointer: Any, offset: int, shape: tuple, dtype: np.dtype, strides: tuple) -> Any:
        return self._cupy.ndarray(shape, dtype, memptr=pointer + offset if offset else pointer, strides=strides)

    def span(self, array: Any) -> tuple[Any, int]:
        """Where an array's bytes are: (pointer, how many, gaps included)."""
        low, high = reach(array.shape, array.dtype.itemsize, array.strides)
        return array.data + low, high - low

    # Graphs

    def capture(self, work: Callable[[], bool]) -> Any:
        """The graph of what ``work`` issues, none of which runs; None where it says that it is none."""
        cuda = self._cupy.cuda
        if self._stream is None:
            self._stream = cuda.Stream(non_blocking=True)  # the default stream does not wait for it, nor it for that
        with self._stream:
            # What could wait or allocate behind our back is an error, which ends the capture.
            self._stream.begin_capture(cuda.runtime.streamCaptureModeThreadLocal)
            try:
                good = work()
            except BaseException:
                with contextlib.suppress(Exception):
                    self._stream.end_capture()  # otherwise it would go on
                raise
            graph = self._stream.end_capture()
        return graph if good else None

    def launch(self, graph: Any) -> None:
        graph.launch()

    def proof(self) -> Proof:
        return Proof(self._cupy, self._pool, self)


class Proof:
    """Whether a graph does what its commands have just done. All on the device, but for the answer."""

    def __init__(self, cupy: Any, pool: Any, device: Device) -> None:
        self._cupy, self._pool, self._device = cupy, pool, device
        self._changed: list[tuple[Any, int]] = []
        self._made: list[tuple[Any, int]] = []
        self._before: list = []

    def before(self, changed: list[tuple[Any, int]], made: list[tuple[Any, int]]) -> None:
        """The commands are about to run: they change these bytes, and make those."""
        self._changed, self._made = changed, made
        self._before = self._copies(changed)
        self._scribble(made)

    def holds(self, graph: Any, block: Any, total: int) -> bool:
        """The commands have run. Their results stay, whatever the graph's are."""
        spans = self._changed + self._made
        after = self._copies(spans)
        good = False
        try:
            self._paste(self._changed, self._before)
            self._scribble([*self._made, (block, total)])
            self._device.launch(graph)
            with self._device.serving(self._pool.malloc):
                good = all(self._same(*span, kept) for span, kept in zip(spans, after))
        finally:
            if not good:
                self._paste(spans, after)
        return good

    def end(self) -> None:
        """Give the memory back."""
        self._before = []
        self._pool.free_all_blocks()

    def _copies(self, spans: list[tuple[Any, int]]) -> list:
        copies = [self._pool.malloc(size) for _, size in spans]
        for (pointer, size), copy in zip(spans, copies):
            copy.copy_from_device_async(pointer, size)
        return copies

    def _paste(self, spans: list[tuple[Any, int]], copies: list) -> None:
        for (pointer, size), copy in zip(spans, copies):
            pointer.copy_from_device_async(copy, size)

    def _scribble(self, spans: list[tuple[Any, int]]) -> None:
        for pointer, size in spans:
            if size:
                pointer.memset_async(NOISE, size)

    def _same(self, pointer: Any, size: int, copy: Any) -> bool:
        a, b = (self._cupy.ndarray((size,), np.uint8, memptr=memory) for memory in (pointer, copy))
        return not bool((a != b).any())
