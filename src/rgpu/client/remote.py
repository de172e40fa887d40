"""A name for an array that lives on a device: handle, layout, stream.

The base of ``rgpu.ndarray``; everything below the face works with this. Dropping the last
reference frees the handle on the worker, batched with the commands around it.
"""

from __future__ import annotations

from typing import Any

from rgpu.client.meta import Meta
from rgpu.client.ticker import ticker
from rgpu.wire import ops

_T_FREE = ops.Free.tag
SMALL = 4096  # bytes: arrays that may live a little longer, to be freed many in one command


class Remote:
    """``_root`` is the array whose memory a view shares (None: its own), ``_offset`` bytes into it."""

    __slots__ = ("_handle", "_meta", "_stream", "_root", "_offset")

    _handle: int
    _meta: Meta
    _stream: Any
    _root: Remote | None
    _offset: int

    def __del__(self) -> None:
        try:  # what ``CommandStream.free`` does: the call would cost as much as the rest
            if self._meta.nbytes <= SMALL:
                self._stream.freed.append(self._handle)
            else:
                pending = self._stream.pending
                pending += ((_T_FREE, (self._handle,)), None)
            if not ticker.armed:
                ticker.arm()
        except Exception:
            pass  # never constructed, a forked child, or an interpreter that is shutting down


def name(cls: type, handle: int, meta: Meta, stream: Any) -> Any:
    """A new array object for a handle that owns its memory."""
    array = cls.__new__(cls) if cls.__new__ is object.__new__ else object.__new__(cls)
    array._handle, array._meta, array._stream = handle, meta, stream
    array._root, array._offset = None, 0
    return array
