"""Unified arrays: one array for all devices of the pool, wherever it is used next.

Reading on a device makes a replica there, once; writing on a device drops every other one (single writer, versioned).
Replicas travel from device to device in the order of the commands, and nobody waits for them; ``prefetch``
starts one early. A unified array stands wherever CuPy's functions take an array. Holds no data itself.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from rgpu.client import pool
from rgpu.client.remote import Remote
from rgpu.functions import creation, dispatch

#: methods of an array that change it
_WRITERS = frozenset("fill put partition scatter_add scatter_max scatter_min set sort".split())
_FACTS = frozenset("shape dtype ndim size nbytes itemsize strides".split())
_managed: weakref.WeakValueDictionary[tuple[int, int], Unified] = weakref.WeakValueDictionary()


class Unified:
    """One array in as many places as read it. Made by ``rgpu.unified``.

    ``version`` counts writes; ``devices`` are those that hold the current one. Slices are copies: what writes must
    go through the unified array itself (``u[2:] = x``, ``u += x``, ``u.fill(0)``), on the current device.
    """

    __array_priority__ = 150
    __array_ufunc__ = None  # NumPy's arrays leave operators to us
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, array: Any) -> None:
        self._lock = threading.RLock()
        self._latest = array
        self._copies: dict[int, Any] = {array._stream.number: array}
        self.version = 0
        self._register(array)

    def _register(self, array: Any) -> None:
        _managed[array._stream.number, array._handle] = self

    def local(self, write: bool = False) -> Any:
        """The array on the current device: to be read until somebody writes, or, with ``write``, to be changed."""
        stream = pool.current_stream()
        with self._lock:
            found = self._copies.get(stream.number)
            if found is None:
                found = self._copies[stream.number] = dispatch.to_device(self._latest)
                self._register(found)
            if write:
                self._copies, self._latest = {stream.number: found}, found
                self.version += 1
            return found

    def __cupy_get_ndarray__(self) -> Any:
        return self.local()

    @property
    def devices(self) -> list[int]:
        """Numbers of the devices that hold the current version."""
        with self._lock:
            return sorted(array._stream.device.ordinal for array in self._copies.values())

    def prefetch(self, *devices: Any) -> None:
        """Begin to copy it to these devices; nothing waits."""
        for device in devices:
            with pool.get().device(int(device)):
                self.local()

    def get(self, *args: Any, **kwargs: Any) -> np.ndarray:
        """The content as a NumPy array (waits), from a device that has it."""
        with self._lock:
            array = self._latest
        return array.get(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name in _FACTS:
            return getattr(self.__dict__["_latest"], name)
        if name.startswith("_"):
            raise AttributeError(f"a unified array has no attribute {name!r}")
        return getattr(self.local(write=name in _WRITERS), name)

    def __getitem__(self, index: Any) -> Any:
        return self.local()[index].copy()

    def __setitem__(self, index: Any, value: Any) -> None:
        self.local(write=True)[index] = value

    def __len__(self) -> int:
        return len(self._latest)

    def __repr__(self) -> str:
        return f"<unified array {self.shape} {self.dtype}, version {self.version} on devices {self.devices}>"


def _forward(name: str) -> Callable[..., Any]:
    def read(self: Unified, *args: Any) -> Any:
        return getattr(self.local(), name)(*(x.local() if isinstance(x, Unified) else x for x in args))

    return read


def _in_place(name: str) -> Callable[..., Any]:
    def write(self: Unified, other: Any) -> Any:
        given = other.local() if isinstance(other, Unified) else other
        getattr(self.local(write=True), name)(given)
        return self

    return write


for _word in "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift divmod".split():
    setattr(Unified, f"__{_word}__", _forward(f"__{_word}__"))
    setattr(Unified, f"__r{_word}__", _forward(f"__r{_word}__"))
    if _word not in ("divmod", "matmul"):
        setattr(Unified, f"__i{_word}__", _in_place(f"__i{_word}__"))
for _word in "neg pos abs invert lt le gt ge eq ne int float bool complex".split():
    setattr(Unified, f"__{_word}__", _forward(f"__{_word}__"))


def unified(a: Any, dtype: Any = None) -> Unified:
    """A unified array with the content of ``a`` (of a device, of the host, nested lists), at first on the current
    device. An array that is given is copied: later changes to it are not seen."""
    if isinstance(a, Unified):
        a = a.local()
    return Unified(creation.array(a, dtype=dtype))


def behind(root: Remote) -> Unified | None:
    """The unified array whose replica an allocation is."""
    return _managed.get((root._stream.number, root._handle))
