"""Managed memory: allocations that every device of the pool may use, and what was said of their use.

An allocation lives on the device that it was made on; elsewhere a copy is read, and nobody is warned of it. Hints
make that copy early (``prefetch``) or let one copy serve many reads (``READ_MOSTLY``). A copy made early counts as long
as nothing at all was issued to the device it came from: then it cannot have been written to. Holds no data itself.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

from rgpu.client import pool
from rgpu.client.remote import Remote
from rgpu.functions import dispatch, views

#: cudaMemoryAdvise (driver_types.h)
READ_MOSTLY, NOT_READ_MOSTLY, PREFERRED, NOT_PREFERRED, ACCESSED_BY, NOT_ACCESSED_BY = range(1, 7)

_lock = threading.RLock()
_known: dict[tuple[int, int], Managed] = {}  # by stream and handle of an allocation, as long as that lives


class Managed:
    """What is known of one allocation. ``copies``: by the number of a device's stream."""

    def __init__(self, pooled: bool) -> None:
        self.pooled = pooled
        self.copies: dict[int, Remote] = {}
        self.issued = -1  # commands of the home device when the copies were made
        self.read_mostly = False

    def copy_on(self, root: Remote, stream: Any) -> Remote | None:
        """A copy that is as the allocation now is, or None."""
        with _lock:
            if self.issued != root._stream.left + root._stream.unsent:
                self.copies = {}
            found = self.copies.get(stream.number)
            if found is not None and not self.read_mostly:
                del self.copies[stream.number]  # whoever gets it may change it, as with any other copy
            return found

    def replicate(self, root: Remote, stream: Any) -> None:
        """Begin to copy it to another device; nothing waits."""
        if root._stream is stream:
            return
        with _lock:
            home = root._stream
            if self.issued != home.left + home.unsent:
                self.copies = {}
            with stream.device:
                self.copies[stream.number] = dispatch.to_device(root)
            self.issued = home.left + home.unsent  # the sending was no writing


def manage(root: Remote, pooled: bool = False) -> None:
    """From now on this allocation is managed."""
    key = root._stream.number, root._handle
    _known[key] = Managed(pooled)
    weakref.finalize(root, _known.pop, key, None).atexit = False


def of(root: Remote) -> Managed | None:
    return _known.get((root._stream.number, root._handle))


def everything() -> bool:
    """Whether the current allocator makes all memory managed."""
    from rgpu.cuda import memory, pools

    allocator = pools.current_allocator()
    return memory.malloc_managed in (allocator, getattr(getattr(allocator, "__self__", None), "_allocator", None))


def reach(array: Remote) -> Remote | None:
    """An array over managed memory, on the current device; None: its memory is not managed."""
    root = views.root_of(array)
    known = of(root)
    if known is None:
        return dispatch.to_device(array) if everything() else None
    stream = pool.current_stream()
    copy = known.copy_on(root, stream)
    if copy is None and known.read_mostly:
        known.replicate(root, stream)
        copy = known.copy_on(root, stream)
    if copy is None or not array._metadata.size:
        return dispatch.to_device(array)
    return views.make(copy, array._metadata, array._offset, type(array))


def prefetch(root: Remote, device: int) -> None:
    """The next use on this device will find it there."""
    known = of(root)
    if known is not None:
        known.replicate(root, pool.get().device(device).stream)


def advise(root: Remote, advice: int, device: int) -> None:
    """``PREFERRED`` begins to copy it there; of who accesses it nothing needs to be known."""
    known = of(root)
    if known is None:
        return
    if advice in (READ_MOSTLY, NOT_READ_MOSTLY):
        known.read_mostly = advice == READ_MOSTLY
    elif advice == PREFERRED and device >= 0:
        prefetch(root, device)


dispatch.managed = reach
