"""A name for an array that lives on a device: handle, layout, stream.

The base of ``rgpu.ndarray``; everything below the face works with this. Dropping the last
reference frees the handle on the worker, batched with the commands around it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rgpu import _native
from rgpu.client.meta import Meta

FIELDS = ("_handle", "_metadata", "_stream", "_root", "_offset")
SMALL = 4096  # bytes: arrays that may live a little longer, to be freed many in one command


class PureRemote:
    """``_root`` is the array whose memory a view shares (None: its own), ``_offset`` bytes into it. A
    ``_handle`` of 0 is nobody's to free."""

    __slots__ = (*FIELDS, "__weakref__")

    _handle: int
    _metadata: Meta
    _stream: Any
    _root: PureRemote | None
    _offset: int

    def __del__(self) -> None:
        try:
            handle = self._handle
            if self._metadata.nbytes > SMALL:
                self._stream.free(handle)
            elif handle:
                self._stream.freed.append(handle)
        except Exception:
            pass  # never constructed, a forked child, or an interpreter that is shutting down


if TYPE_CHECKING or _native.issue is None:
    Remote = PureRemote
else:
    Remote = _native.issue.Remote


def root_of(array: Any) -> Any:
    """The array that owns the memory. Where a setter gave that one another shape, the program's object has become a
    view of what it was, and is still what its older views name as their root."""
    while array._root is not None:
        array = array._root
    return array


def name(cls: type, handle: int, meta: Meta, stream: Any) -> Any:
    """A new array object for a handle that owns its memory."""
    array = cls.__new__(cls) if cls.__new__ is object.__new__ else object.__new__(cls)
    array._handle, array._metadata, array._stream = handle, meta, stream
    array._root, array._offset = None, 0
    return array
