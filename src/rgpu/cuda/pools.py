"""Memory pools: their memory and their figures are the worker's.

A pool here is a name for one on each device it was used on. Figures are asked for, never guessed. The
current allocator decides which pool results come from; ``client.follow`` tells the worker.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator
from typing import Any

from rgpu.client import follow
from rgpu.client import pool as devices
from rgpu.client.stream import CommandStream
from rgpu.cuda import addresses, allocations, issue, managed

_pools: weakref.WeakSet[MemoryPool] = weakref.WeakSet()  # all there are
_WAIT_BYTES = 64 << 20  # an allocation of this size may well fail: wait, and raise where CuPy would


class MemoryPool:
    """CuPy's memory pool, on the worker of whichever device is current."""

    __module__ = "cupy.cuda.memory"

    def __init__(self, allocator: Any = None) -> None:
        self._allocator = allocator
        self._held: weakref.WeakKeyDictionary[CommandStream, issue.Held] = weakref.WeakKeyDictionary()
        self._limits: weakref.WeakKeyDictionary[CommandStream, int] = weakref.WeakKeyDictionary()
        self._totals: weakref.WeakKeyDictionary[CommandStream, int] = weakref.WeakKeyDictionary()  # for hooks
        _pools.add(self)

    def _on(self, stream: CommandStream) -> Any:
        """This pool in commands: None for the default one."""
        held = self._held.get(stream)
        if held is None:
            held = self._held[stream] = issue.Held(stream, "memory.create_pool")
        return held

    def _handle(self, stream: CommandStream) -> int:
        return self._on(stream).handle

    def malloc(self, size: int) -> Any:
        """Memory of the current device; raises OutOfMemoryError at once where that is likely."""
        from rgpu.cuda import memory

        if not size:
            return memory.MemoryPointer(memory.Memory(0), 0)
        stream, hooked = issue.here(), bool(allocations.hooks())
        if hooked:
            self.look(stream)  # and what was dropped is free
        taken = memory.BaseMemory()
        with allocations.aside():
            taken._take(addresses.round_up(size), self._handle(stream))  # all of it may be used
        if self._allocator is memory.malloc_managed:
            managed.manage(taken._root, pooled=True)
        pointer = memory.MemoryPointer(memory.PooledMemory(taken._root), 0)
        if hooked:
            allocations.taken(taken._root, size, id(pointer.mem), self)
        if size >= _WAIT_BYTES or self._limits.get(stream):
            stream.sync()
        return pointer

    def _figures(self, stream: CommandStream | None = None) -> list[int]:
        stream = stream or issue.here()
        return issue.ask(stream, "memory.figures", self._on(stream))

    def look(self, stream: CommandStream) -> None:
        """Remember for ``grown`` how large it is on a device."""
        self._totals[stream] = self._figures(stream)[1]

    def grown(self, stream: CommandStream) -> int:
        """The bytes that it took from a device since it was last looked at there."""
        before = self._totals.get(stream, 0)
        self.look(stream)
        return max(0, self._totals[stream] - before)

    def used_bytes(self) -> int:
        return self._figures()[0]

    def total_bytes(self) -> int:
        return self._figures()[1]

    def free_bytes(self) -> int:
        used, total, *_ = self._figures()
        return total - used

    def n_free_blocks(self) -> int:
        return self._figures()[2]

    def get_limit(self) -> int:
        return self._figures()[3]

    def free_all_blocks(self, stream: Any = None) -> None:
        """Give cached memory back to the device."""
        here = issue.here()
        with here.lock:
            here.gather()  # what was dropped before is free by then
            issue.submit(here, "memory.free_all", self._on(here))

    def free_all_free(self) -> None:
        import warnings

        warnings.warn(
            "free_all_free is deprecated. Use free_all_blocks instead.", DeprecationWarning, stacklevel=2
        )
        self.free_all_blocks()

    def set_limit(self, size: int | None = None, fraction: float | None = None) -> None:
        """Bound the pool on the current device, in bytes or as a part of the memory (0: no bound)."""
        if size is not None and fraction is not None:
            raise ValueError("size and fraction cannot be specified at one time")
        stream = issue.here()
        if fraction is not None:
            if not 0 <= fraction <= 1:
                raise ValueError(f"memory limit fraction out of range: {fraction}")
            size = int(fraction * issue.ask(stream, "device.memory")[1])
        if size is None:
            size = 0
        if size < 0:
            raise ValueError(f"memory limit size out of range: {size}")
        self._limits[stream] = size
        issue.submit(stream, "memory.set_limit", self._on(stream), size)


class _DefaultPool(MemoryPool):
    """The pool that exists from the beginning."""

    def _on(self, stream: CommandStream) -> Any:
        return None

    def _handle(self, stream: CommandStream) -> int:
        return follow.DEFAULT

    def set_limit(self, size: int | None = None, fraction: float | None = None) -> None:
        super().set_limit(size, fraction)
        stream = issue.here()
        device: Any = stream.device  # type: ignore[attr-defined]
        # What can never fit is refused on the line that asks for it, without waiting.
        device.memory_total = min(self._limits[stream] or device.memory_leased, device.memory_leased)


class SingleDeviceMemoryPool(MemoryPool):
    """CuPy's part of a pool for one device; here the same as the whole."""


class MemoryAsyncPool(MemoryPool):
    """CuPy's pool of the driver; on the worker it is an ordinary pool."""

    def __init__(self, pool_handles: Any = "current") -> None:
        super().__init__()

    def malloc(self, size: int) -> Any:
        """Memory in the order of the current stream."""
        from rgpu.cuda import memory
        from rgpu.cuda.stream import get_current_stream

        stream = issue.here()
        return memory.MemoryPointer(memory.MemoryAsync(size, get_current_stream(), self._handle(stream)), 0)

    def get_limit(self) -> int:
        return super().get_limit() or 2**64 - 1


default_pool = _DefaultPool()


# ---- which pool -----------------------------------------------------------------------------------


class _Thread(threading.local):
    allocator: Any = None


_thread = _Thread()
_process_allocator: Any = default_pool.malloc
on_worker: set[Any] = set()  # functions that mean a way of the worker's (``cuda.memory``)


def thread_allocator() -> Any:
    return _thread.allocator


def current_allocator() -> Any:
    return _thread.allocator or _process_allocator


def _of_pool(allocator: Any) -> MemoryPool | None:
    """The pool whose ``malloc`` an allocator is."""
    owner = getattr(allocator, "__self__", None)
    return owner if isinstance(owner, MemoryPool) else None


def _is_python(allocator: Any) -> bool:
    """Whether results go where a function of the program says."""
    return allocator is not None and allocator not in on_worker and _of_pool(allocator) is None


def _current_python() -> Any:
    allocator = current_allocator()
    return allocator if _is_python(allocator) else None


def _current_pool() -> MemoryPool | None:
    return _of_pool(current_allocator())


allocations.python_allocator, allocations.current_pool = _current_python, _current_pool


def look_at_all() -> None:
    """A hook begins: how large is each pool now, where it is in use?"""
    for stream in allocations.attached():
        for pool in list(_pools):
            if pool is default_pool or stream in pool._held:
                pool.look(stream)


def _pool_of(allocator: Any, stream: CommandStream) -> int:
    """The pool whose ``malloc`` an allocator is, as ``follow`` has it."""
    owner = _of_pool(allocator)
    return follow.NO_POOL if owner is None else owner._handle(stream)


def set_allocator(allocator: Any) -> None:
    global _process_allocator
    if _thread.allocator is not None:
        raise ValueError("Can't change the global allocator inside `using_allocator` context manager")
    before, _process_allocator = _process_allocator, allocator
    allocations.watch(_is_python(allocator) - _is_python(before))
    for stream in allocations.attached():
        follow.use_pool_everywhere(stream, _pool_of(allocator, stream))
    del before  # not earlier: until now, commands asked for the old pool, which may end with this


@contextlib.contextmanager
def using(allocator: Any) -> Iterator[None]:
    before = _thread.allocator
    _set_for_thread(allocator)
    try:
        yield
    finally:
        _set_for_thread(before)


def _set_for_thread(allocator: Any) -> None:
    before, _thread.allocator = _thread.allocator, allocator
    allocations.watch(_is_python(allocator) - _is_python(before))
    for stream in allocations.attached():
        follow.use_pool(stream, None if allocator is None else _pool_of(allocator, stream))
    del before  # as above


def _new_stream(stream: CommandStream) -> None:
    """A device was attached: what was chosen before holds for it too."""
    if _process_allocator != default_pool.malloc:
        follow.use_pool_everywhere(stream, _pool_of(_process_allocator, stream))
    if _thread.allocator is not None:
        follow.use_pool(stream, _pool_of(_thread.allocator, stream))


devices.on_attach.append(_new_stream)


def parse_limit(limit: str | None = None) -> dict[str, Any]:
    """A limit as CUPY_GPU_MEMORY_LIMIT has it: bytes, or a percentage."""
    if limit is None:
        import os

        limit = os.environ.get("CUPY_GPU_MEMORY_LIMIT")
    size = fraction = None
    if limit is not None:
        if limit.endswith("%"):
            fraction = float(limit[:-1]) / 100.0
        else:
            size = int(limit)
    return {"size": size, "fraction": fraction}
