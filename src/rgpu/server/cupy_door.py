"""Device memory of another process of this host, read through CUDA's IPC: a copy from card to card by the cards alone.

A ticket is the handle of an allocation, the handle of an event that says when its content is there, and an offset.
The owner keeps the memory until the reader has copied. Waits for hardware: no test without GPUs comes here.
"""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import cupy
from cupy.cuda import runtime

LEAST = 256 << 10  # bytes; to open a handle costs as much as to carry these through the host
_HANDLES = struct.Struct("<64s64sQ")  # CUDA's sizes of both handles (driver_types.h)
_EVENT_FLAGS = 0x2 | 0x4  # cudaEventDisableTiming | cudaEventInterprocess (driver_types.h)


class _Event:
    """One that other processes can wait for; destroyed with the ticket's memory."""

    def __init__(self) -> None:
        self.ptr = runtime.eventCreateWithFlags(_EVENT_FLAGS)

    def __del__(self) -> None:
        runtime.eventDestroy(self.ptr)


class Door:
    """The tickets of one device."""

    def __init__(self) -> None:
        self._event: _Event | None = None  # recorded anew for each ticket: who waits, waits for the latest

    def ticket(self, array: Any) -> bytes | None:
        """None: too small, not contiguous, or memory that CUDA gives no handle of (managed, or of its own pools)."""
        if array.nbytes < LEAST or not (array.flags.c_contiguous or array.flags.f_contiguous):
            return None
        try:
            base = _beginning(array.data.ptr)
            memory = runtime.ipcGetMemHandle(base)
            self._event = self._event or _Event()
            runtime.eventRecord(self._event.ptr, cupy.cuda.get_current_stream().ptr)
            return _HANDLES.pack(memory, runtime.ipcGetEventHandle(self._event.ptr), array.data.ptr - base)
        except (runtime.CUDARuntimeError, OSError):
            return None

    def redeem(self, target: Any, ticket: bytes, nbytes: int) -> bool:
        """Returns when the bytes are there, on the current stream and for the owner. False: cannot be opened here."""
        if len(ticket) != _HANDLES.size or nbytes != target.nbytes:
            raise ValueError(f"{nbytes} bytes came for an array of {target.nbytes}")
        memory, event, offset = _HANDLES.unpack(ticket)
        stream = cupy.cuda.get_current_stream()
        try:
            there = runtime.ipcOpenMemHandle(memory)
        except runtime.CUDARuntimeError:
            return False
        try:
            ready = runtime.ipcOpenEventHandle(event)
            try:
                runtime.streamWaitEvent(stream.ptr, ready)
                runtime.memcpyAsync(target.data.ptr, there + offset, nbytes, runtime.memcpyDefault, stream.ptr)
                stream.synchronize()
            finally:
                runtime.eventDestroy(ready)
        finally:
            runtime.ipcCloseMemHandle(there)
        return True


def _beginning(pointer: int) -> int:
    """Where the allocation begins that an address is in: handles are of whole allocations."""
    base = ctypes.c_uint64()
    if ctypes.CDLL("libcuda.so.1").cuMemGetAddressRange_v2(ctypes.byref(base), None, ctypes.c_uint64(pointer)):
        raise OSError("no allocation of CUDA's")
    return base.value
