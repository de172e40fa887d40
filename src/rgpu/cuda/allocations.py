"""Allocations, where somebody looks at them or makes them: memory hooks, and allocators that are Python functions.

Memory is the worker's; an array that owns some gets its name on the client. While a hook is active, or such an
allocator is current, every new one passes here (``dispatch.made``) and the C core leaves calls to Python; otherwise
nothing of this runs. Must not know what a hook does.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rgpu.client import pool as devices
from rgpu.client.remote import Remote
from rgpu.cuda import addresses, issue
from rgpu.functions import dispatch

Hooks = dict[str, Any]


class _Thread(threading.local):
    def __init__(self) -> None:
        self.hooks: Hooks = {}  # by name, in the order in which they were entered
        self.aside = False  # what allocates now tells of it itself


_thread = _Thread()
_lock = threading.RLock()
_watchers = 0  # hooks that are active and allocators in Python, of all threads
_watched: dict[int, weakref.ref] = {}  # allocations that a hook was told of, by handle
#: set by ``cuda.pools``: the current allocator if it is a Python function; the current pool, None without one
python_allocator: Any = None
current_pool: Any = None


def hooks() -> Hooks:
    """The hooks of this thread."""
    return _thread.hooks


def watch(more: int) -> None:
    """``more`` watchers than before, of whatever thread; a negative number: fewer."""
    global _watchers
    with _lock:
        _watchers += more
        dispatch.made = _made if _watchers else None
        for stream in attached():
            stream.let_direct(not _watchers)


def attached() -> list[Any]:
    """The command streams of the devices that are in use."""
    return [device.stream for device in devices.get().devices if device.attached]


def _new_stream(stream: Any) -> None:
    if _watchers:
        stream.let_direct(False)


devices.on_attach.append(_new_stream)


@contextmanager
def aside() -> Iterator[None]:
    """Inside, this thread allocates without being looked at."""
    before, _thread.aside = _thread.aside, True
    try:
        yield
    finally:
        _thread.aside = before


def _made(array: Any) -> Any:
    """An array that was just made and owns its memory, or the same in the memory of a Python allocator."""
    if _thread.aside:
        return array
    allocator = python_allocator()
    if allocator is not None:
        return _placed(allocator, array)
    pool = current_pool()
    if _thread.hooks and pool is not None and array._metadata.nbytes:
        taken(array, array._metadata.nbytes, id(array), pool)
    return array


def _placed(allocator: Callable[[int], Any], array: Any) -> Any:
    """An array's content in memory that an allocator gives, on the array's device: results are made by the worker,
    which cannot call it, and copied there."""
    meta = array._metadata
    with aside(), array._stream.device:
        pointer = allocator(meta.nbytes)
        placed = pointer._array(type(array), meta.shape, meta.dtype, meta.strides, "C")
        if meta.nbytes:
            dispatch.run_internal("ndarray.astype", placed, array)
    return placed


# ---- hooks ------------------------------------------------------------------------------------------


def taken(root: Remote, size: int, pmem: int, pool: Any) -> None:
    """Tell this thread's hooks of an allocation of ``size`` bytes; waits, to hear whether the pool grew for it."""
    present, device = list(_thread.hooks.values()), issue.ordinal(root._stream)
    charged = addresses.round_up(size)
    for hook in present:
        hook.malloc_preprocess(device_id=device, size=size, mem_size=charged)
    grown, pointer = pool.grown(root._stream), addresses.of(root)
    if grown:
        for hook in present:
            hook.alloc_preprocess(device_id=device, mem_size=grown)
        for hook in present:
            hook.alloc_postprocess(device_id=device, mem_size=grown, mem_ptr=pointer)
    for hook in present:
        hook.malloc_postprocess(device_id=device, size=size, mem_size=charged, mem_ptr=pointer, pmem_id=pmem)
    handle = root._handle

    def gone(_: Any) -> None:
        _watched.pop(handle, None)
        left = list(_thread.hooks.values())
        for hook in left:
            hook.free_preprocess(device_id=device, mem_size=charged, mem_ptr=pointer, pmem_id=pmem)
        for hook in left:
            hook.free_postprocess(device_id=device, mem_size=charged, mem_ptr=pointer, pmem_id=pmem)

    _watched[handle] = weakref.ref(root, gone)


# ---- memory that somebody lends ---------------------------------------------------------------------


class Lent(Remote):
    """The root of arrays in memory that is not theirs to free. It keeps ``owner``; with the last array goes ``end``."""

    lender: Remote
    owner: Any
    span: tuple[int, int] | None  # of memory that an object describes: bytes from the lender's beginning, and how many
    end: Callable[[], None] | None

    def __del__(self) -> None:
        self._handle = 0  # the lender's
        if self.end is not None:
            self.end()


def lent(lender: Remote, end: Callable[[], None] | None = None, owner: Any = None, span: Any = None) -> Lent:
    """A root over the memory of another one, which lives as long."""
    root = object.__new__(Lent)
    root._handle, root._metadata, root._stream = lender._handle, lender._metadata, lender._stream
    root._root, root._offset = None, 0
    root.lender, root.end, root.owner, root.span = lender, end, owner, span
    return root
