"""Bytes between hosts' and devices' memory, both given by address.

Everything is a rectangle of rows (one row: a plain copy). The client's memory is reached through NumPy;
between two devices bytes go directly (``client.peer``). To a device nothing waits; from one, everything
does, so that the bytes are there on return.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from rgpu.client import meta as layouts
from rgpu.client import peer
from rgpu.client.remote import Remote
from rgpu.cuda import addresses, handles, issue
from rgpu.cuda.errors import INVALID_VALUE, CUDARuntimeError, invalid
from rgpu.functions import creation, dispatch, views

HOST_TO_HOST, HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE, BY_ADDRESS = range(5)
_U1 = np.dtype(np.uint8)


class Rectangle(NamedTuple):
    """``height`` rows of ``width`` bytes, ``pitch`` bytes apart."""

    width: int
    height: int
    pitch: int

    @property
    def extent(self) -> int:
        return (self.height - 1) * self.pitch + self.width

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.width,) if self.height == 1 else (self.height, self.width)

    @property
    def strides(self) -> tuple[int, ...]:
        return (1,) if self.height == 1 else (self.pitch, 1)


class _HostMemory:
    def __init__(self, address: int, size: int) -> None:
        self.__array_interface__ = {
            "version": 3,
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
        }


def host_memory(address: int, size: int) -> np.ndarray:
    """Host memory by address; as with any pointer, the caller answers for it."""
    return np.asarray(_HostMemory(address, size))


def _host(address: int, shape: Rectangle) -> np.ndarray:
    flat = host_memory(address, shape.extent)
    return np.lib.stride_tricks.as_strided(flat, shape.shape, shape.strides)


def device_bytes(root: Remote, offset: int, shape: Rectangle) -> Any:
    """The bytes of a root allocation as an array of uint8."""
    if offset < 0 or offset + shape.extent > root._metadata.nbytes:
        raise invalid(
            INVALID_VALUE,
            f"{shape.extent} bytes from offset {offset} do not fit the {root._metadata.nbytes} allocated ones",
        )
    return views.make(root, layouts.intern(shape.shape, _U1, shape.strides), offset, dispatch.ndarray)


def address_of(pointer: Any) -> int:
    """The integer of an int, a ctypes pointer, a MemoryPointer or anything that has ``ptr``."""
    if type(pointer) is int:
        return pointer
    value = getattr(pointer, "ptr", None)
    if value is None:
        value = getattr(pointer, "value", pointer)
    return 0 if value is None else int(value)


def copy(dst: Any, src: Any, size: int, kind: int = BY_ADDRESS) -> None:
    """``size`` bytes; ``kind`` as in cudaMemcpy."""
    copy_rows(dst, size, src, size, size, 1, kind)


def copy_rows(
    dst: Any, dpitch: int, src: Any, spitch: int, width: int, height: int, kind: int = BY_ADDRESS
) -> None:
    """A rectangle of ``height`` rows of ``width`` bytes."""
    if not width or not height:
        return
    if width < 0 or height < 0 or kind not in range(5) or (height > 1 and min(dpitch, spitch) < width):
        raise CUDARuntimeError(INVALID_VALUE)
    dst, src = address_of(dst), address_of(src)
    to_device, from_device = addresses.is_device(dst), addresses.is_device(src)
    if kind != BY_ADDRESS and (to_device, from_device) != (kind in (1, 3), kind in (2, 3)):
        where = {False: "host", True: "device"}
        raise invalid(
            INVALID_VALUE,
            f"a copy of kind {kind} was asked for, but {src:#x} is {where[from_device]} memory "
            f"and {dst:#x} is {where[to_device]} memory",
        )
    target, source = Rectangle(width, height, dpitch), Rectangle(width, height, spitch)
    if not to_device and not from_device:
        _host(dst, target)[...] = _host(src, source)
    elif not from_device:
        _upload(device_bytes(*addresses.find(dst), target), _host(src, source))
    elif not to_device:
        _download(device_bytes(*addresses.find(src), source), _host(dst, target))
    else:
        between(device_bytes(*addresses.find(dst), target), device_bytes(*addresses.find(src), source))


def _upload(target: Any, host: np.ndarray) -> None:
    handles.finish_host_functions(target._stream)
    if target._metadata.c:
        target._stream.write(target._handle, memoryview(np.ascontiguousarray(host).reshape(-1)))
    else:
        between(target, creation.upload(np.ascontiguousarray(host), target._stream))


def _download(source: Any, host: np.ndarray) -> None:
    if host.flags.c_contiguous:
        source._stream.read(source._handle, host)
    else:
        host[...] = source.get()


def between(target: Any, source: Any) -> None:
    """Copy between two arrays of equal shape, wherever they are."""
    if target._stream is source._stream:
        issue.submit(target._stream, "copyto", target, source)
        return
    here = source if source._metadata.c else views.copy(source, "C")
    there = target if target._metadata.c else views.empty(here._metadata, target._stream)
    peer.copy(there, here)
    if there is not target:
        issue.submit(target._stream, "copyto", target, there)


def fill(root: Remote, offset: int, value: int, size: int) -> None:
    """Set bytes of a root allocation."""
    if size:
        issue.submit(
            root._stream, "ndarray.fill", device_bytes(root, offset, Rectangle(size, 1, size)), value & 0xFF
        )
