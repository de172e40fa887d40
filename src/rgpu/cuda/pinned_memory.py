"""CuPy's pinned host memory. On the client it is ordinary memory: no device here could use a pinned page.

Pointers export the buffer protocol (``numpy.frombuffer``), as programs for fast transfers expect. Transfers
are fast or slow by the network, not by this.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from rgpu import surface
from rgpu.cuda import runtime
from rgpu.cuda.addresses import round_up


class PinnedMemory:
    """A piece of host memory: ``ptr``, ``size``."""

    __module__ = "cupy.cuda.pinned_memory"

    def __init__(self, size: int, flags: int = 0) -> None:
        self.size = size
        self.ptr = 0
        if size:
            self._buffer = runtime.host_buffer(size)
            self.ptr = self._buffer.__array_interface__["data"][0]

    def __int__(self) -> int:
        return self.ptr


class _Bytes:
    """What NumPy needs to see the memory, and to keep it alive."""

    def __init__(self, mem: Any, offset: int) -> None:
        self.mem = mem
        size = max(mem.size - offset, 0)
        address = mem.ptr + offset
        self.__array_interface__ = {
            "version": 3,
            "shape": (size if address else 0,),
            "typestr": "|u1",
            "data": (address or 1, False),
        }


class PinnedMemoryPointer(np.ndarray):
    """A place in pinned memory. Add and subtract bytes; use it as a buffer of what lies behind it.

    An array of bytes only because a class needs C to export a buffer; compare and convert it like a pointer.
    """

    __module__ = "cupy.cuda.pinned_memory"
    mem: Any
    ptr: int

    def __new__(cls, mem: Any, offset: int) -> PinnedMemoryPointer:
        # Twice: an array made of a view of a plain array names that as its base, and not this.
        pointer = np.asarray(_Bytes(mem, offset)).view(cls).view(cls)
        pointer.mem, pointer.ptr, pointer._offset = mem, mem.ptr + offset, offset  # type: ignore[attr-defined]
        return pointer

    def __int__(self) -> int:
        return self.ptr

    def __repr__(self) -> str:
        return f"<PinnedMemoryPointer {self.ptr:#x}>"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:  # type: ignore[override]
        return self is other

    def __hash__(self) -> int:  # type: ignore[override]
        return id(self)

    def __bool__(self) -> bool:
        return True

    def __add__(self, offset: Any) -> PinnedMemoryPointer:  # type: ignore[override]
        return PinnedMemoryPointer(self.mem, self._offset + offset)  # type: ignore[attr-defined]

    __radd__ = __iadd__ = __add__  # type: ignore[assignment]

    def __sub__(self, offset: Any) -> PinnedMemoryPointer:  # type: ignore[override]
        return PinnedMemoryPointer(self.mem, self._offset - offset)  # type: ignore[attr-defined]

    __isub__ = __sub__  # type: ignore[assignment]

    def size(self) -> int:  # type: ignore[override]
        """Bytes from here to the end of the memory."""
        return self.mem.size - self._offset  # type: ignore[attr-defined]


def _malloc(size: int) -> PinnedMemoryPointer:
    return PinnedMemoryPointer(PinnedMemory(size), 0)


class PooledPinnedMemory(PinnedMemory):
    """Memory out of a pool; goes back when it is dropped."""

    def __init__(self, mem: Any, pool: PinnedMemoryPool) -> None:
        self._mem, self.size, self.ptr = mem, mem.size, mem.ptr
        self._pool = weakref.ref(pool)

    def free(self) -> None:
        """Give it back now; harmless when it is."""
        mem, self._mem, self.ptr = self._mem, None, 0
        pool = self._pool()
        if mem is not None and pool is not None:
            pool.free(mem, mem.size)

    def __del__(self) -> None:
        if self.__dict__.get("_mem") is not None:
            self.free()


class PinnedMemoryPool:
    """Keeps host memory that was used, for the next of the same size."""

    __module__ = "cupy.cuda.pinned_memory"

    def __init__(self, allocator: Any = _malloc) -> None:
        self._allocator = allocator
        self._free: dict[int, list[Any]] = {}

    def malloc(self, size: int) -> PinnedMemoryPointer:
        if not size:
            return PinnedMemoryPointer(PinnedMemory(0), 0)
        rounded = round_up(size)
        free = self._free.get(rounded)
        mem = free.pop() if free else self._allocator(rounded).mem
        return PinnedMemoryPointer(PooledPinnedMemory(mem, self), 0)

    def free(self, mem: Any, size: int) -> None:
        self._free.setdefault(round_up(size), []).append(mem)

    def free_all_blocks(self) -> None:
        self._free.clear()

    def n_free_blocks(self) -> int:
        return sum(len(blocks) for blocks in self._free.values())


default_pool = PinnedMemoryPool()
_allocator: Any = default_pool.malloc


def alloc_pinned_memory(size: int) -> PinnedMemoryPointer:
    """Host memory from the current allocator."""
    return _allocator(size)


def set_pinned_memory_allocator(allocator: Any = None) -> None:
    """Use another allocator from now on; None: no pool."""
    global _allocator
    _allocator = _malloc if allocator is None else allocator


def is_memory_pinned(data: int) -> bool:
    return runtime.pointerGetMemoryType(data) == runtime.memoryTypeHost


__getattr__, __dir__ = surface.face(__name__)
