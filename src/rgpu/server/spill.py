"""Device memory that is lent more than once: arrays that are not in use wait in host memory or on disk.

A table that keeps what is in device memory within the session's part of it. Whatever looks an array up gets it
back; the programs notice nothing but the time. Arrays that somebody in this process holds are left where they are.
Works through the backend's own transfers, so it is the same for every kind of device.
"""

from __future__ import annotations

import errno
import logging
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from rgpu.server.backend import Backend
from rgpu.server.table import OutOfMemoryError, PureTable, Table, charged

log = logging.getLogger("rgpu.worker")

PAUSE_SECONDS = 0.25  # after the daemon had no more device memory, before it is asked again


def table_of(backend: Backend) -> Any:
    """The table for a session on this backend."""
    if backend.spill_to is not None:
        return SpillingTable(backend)
    table = Table(backend.limit)
    if backend.allowance is not None:
        table.entitle(backend.allowance)
    return table


class Store:
    """Where spilled bytes are: host memory up to ``most`` bytes (0: any), then files in ``directory``, which have
    no name and so end with the process."""

    def __init__(self, directory: str = "", most: int = 0) -> None:
        self._directory, self._most = directory, most
        self.held = 0  # bytes in host memory

    def put(self, data: np.ndarray) -> Any:
        if self._directory and self._most and self.held + data.nbytes > self._most:
            return _written(data, self._directory)
        self.held += data.nbytes
        return data.copy()

    def take(self, kept: Any) -> np.ndarray:
        """The bytes, which are forgotten here."""
        if isinstance(kept, np.ndarray):
            self.held -= kept.nbytes
            return kept
        return _read(kept)

    def drop(self, kept: Any) -> None:
        if isinstance(kept, np.ndarray):
            self.held -= kept.nbytes
        else:
            kept.close()


def _written(data: np.ndarray, directory: str) -> Any:
    """A file with these bytes, without a buffer: what does not fit on the disk fails here, and once."""
    file = tempfile.TemporaryFile(dir=directory, prefix="rgpu-spill-", buffering=0)
    try:
        rest = memoryview(data).cast("B")
        while rest:
            rest = rest[file.write(rest) :]
    except BaseException:
        file.close()
        raise
    return file


def _read(file: Any) -> np.ndarray:
    data = np.empty(file.seek(0, 2), np.uint8)
    file.seek(0)
    rest = memoryview(data)
    while rest and (got := file.readinto(rest)):
        rest = rest[got:]
    if rest:
        raise OSError(errno.EIO, "a file of spilled data has become shorter")
    file.close()
    return data


class _Spilled:
    """An array that is elsewhere: its bytes, its layout, and the layouts of the views over it."""

    __slots__ = ("kept", "layout", "views", "nbytes")

    def __init__(self, kept: Any, layout: tuple, views: dict[int, tuple], nbytes: int) -> None:
        self.kept, self.layout, self.views, self.nbytes = kept, layout, views, nbytes


class _Tracked(dict):
    """Entries whose look-up brings an array back and counts as its use."""

    def __init__(self, touch: Callable[[int], None]) -> None:
        super().__init__()
        self._touch = touch

    def __getitem__(self, handle: int) -> Any:
        self._touch(handle)
        return super().__getitem__(handle)

    def get(self, handle: Any, default: Any = None) -> Any:
        if handle in self:
            return self[handle]
        return default


class SpillingTable(PureTable):
    """``resident``: bytes of the arrays that are in device memory."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend.limit)
        self.entitle(backend.allowance)
        self._backend, self._store = backend, backend.spill_to
        self.entries = _Tracked(self._touch)
        self._in_memory: dict[int, int] = {}  # arrays by their last use, the oldest first -> bytes
        self._elsewhere: dict[int, _Spilled] = {}
        self._bytes = 0
        self._ask_at = 0.0
        self.moved = 0  # bytes spilled so far
        self.allowance.spill = self._spare

    @property
    def resident(self) -> int:
        return self._bytes

    # Arrays come and go

    def put(self, handle: int, entry: Any, nbytes: int = 0) -> None:
        super().put(handle, entry, nbytes)
        if nbytes:
            try:
                self._enter(handle, charged(nbytes))
            except OutOfMemoryError:
                self.free(handle)
                raise

    def admit(self, nbytes: int) -> None:
        super().admit(nbytes)
        self._make_room(nbytes)

    def free(self, handle: int) -> None:
        if (root := self.root(handle)) in self._elsewhere:
            self._elsewhere[root].views.pop(handle, None)
        super().free(handle)

    def _discharge(self, handle: int) -> None:
        self._bytes -= self._in_memory.pop(handle, 0)
        if gone := self._elsewhere.pop(handle, None):
            self._store.drop(gone.kept)
        super()._discharge(handle)

    def _enter(self, handle: int, nbytes: int) -> None:
        self._make_room(nbytes)
        self._in_memory[handle] = nbytes
        self._bytes += nbytes

    def _make_room(self, nbytes: int) -> None:
        """Device memory for so many bytes: the daemon's, or what own arrays leave."""
        allowance = self.allowance
        needed = self._bytes + nbytes
        if needed > allowance.resident and time.monotonic() >= self._ask_at:
            allowance.more(self.used, needed)
            if needed > allowance.resident:
                self._ask_at = time.monotonic() + PAUSE_SECONDS
        if needed > allowance.resident:
            self._spill(needed - allowance.resident)
        if self._bytes + nbytes > allowance.resident:
            raise OutOfMemoryError(nbytes, self._bytes, allowance.resident)

    def _touch(self, handle: int) -> None:
        root = self.root(handle) or handle
        nbytes = self._in_memory.pop(root, 0)
        if nbytes:
            self._in_memory[root] = nbytes  # now the latest
        elif root in self._elsewhere:
            self._bring_back(root)

    # Moving

    def _spare(self, nbytes: int) -> int:
        """The daemon wants device memory for others; what is left here."""
        self._spill(nbytes)
        return self._bytes

    def _spill(self, nbytes: int) -> None:
        """Free so many bytes, as far as arrays are not in use, those first that were not used for longest."""
        views: dict[int, list[int]] = {}
        for view, root in self._roots.items():
            views.setdefault(root, []).append(view)
        wanted = self._bytes - nbytes
        for root in list(self._in_memory):
            if self._bytes <= wanted:
                break
            try:
                self._move(root, views.get(root, []))
            except (OSError, MemoryError) as error:  # it stays; who wanted the room hears that there is none
                log.warning("nothing more can be spilled: %s", error)
                break
        self._backend.release()

    def _move(self, root: int, views: list[int]) -> None:
        """Copy an array out and forget it here, unless somebody holds it: then its memory would not be freed, and
        what is written to it would be lost."""
        backend = self._backend
        array = dict.get(self.entries, root)  # None: the handle is freed, its views are not
        if not isinstance(array, backend.array) or isinstance(array, backend.borrowed):
            return
        over = [dict.__getitem__(self.entries, view) for view in views]
        # References: the table's, ours, the call's; and of the array one for each view over it.
        if sys.getrefcount(array) > 3 + len(over) or any(sys.getrefcount(view) > 4 for view in over):
            return
        start = backend.address(array)
        layouts = {
            handle: (view.shape, view.dtype, view.strides, backend.address(view) - start)
            for handle, view in zip(views, over)
        }
        raw = backend.view(array, (array.nbytes,), np.dtype(np.uint8), (1,), 0)
        kept = self._store.put(backend.to_host(raw, "C"))
        nbytes = self._in_memory.pop(root)
        strides = None if array.flags.c_contiguous else array.strides
        self._elsewhere[root] = _Spilled(kept, (array.shape, array.dtype, strides), layouts, nbytes)
        for handle in (root, *views):
            dict.__setitem__(self.entries, handle, None)
        self._bytes -= nbytes
        self.moved += nbytes

    def _bring_back(self, root: int) -> None:
        spilled = self._elsewhere[root]
        self._make_room(spilled.nbytes)
        backend, raw = self._backend, dict.__setitem__
        shape, dtype, strides = spilled.layout
        array = backend.empty(shape, dtype, strides)
        backend.write(array, 0, self._store.take(spilled.kept))
        del self._elsewhere[root]  # not before: where there is no memory now it may come back later
        if root in self.entries:
            raw(self.entries, root, array)
        for view, layout in spilled.views.items():
            raw(self.entries, view, backend.view(array, *layout))
        self._in_memory[root] = spilled.nbytes
        self._bytes += spilled.nbytes
