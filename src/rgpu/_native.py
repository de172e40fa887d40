"""Bytes, strides and checksums: the Python room of the C core, and its twin in NumPy.

The compiled module is optional. ``COMPILED`` and ``PURE`` have the same functions with the same
results, and the module's own ``pack``, ``unpack``, ``crc32c`` and ``tune_malloc`` are the better
one of this machine (``RGPU_PURE=1``: the twin). Knows no arrays' meaning, only where their
elements lie; never converts values, never keeps a reference.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import os
import signal
import sys
from typing import Any

import numpy as np

try:
    _rgpu_core: Any = importlib.import_module("rgpu._rgpu_core")
except ImportError:
    _rgpu_core = None

Buffer = Any  # whatever memoryview() takes

_forced = os.environ.get("RGPU_PURE", "") not in ("", "0")


def _extension(name: str) -> Any:
    """A C-API module of the package, None where it was not built or is not wanted."""
    try:
        return None if _forced else importlib.import_module(name)
    except ImportError:
        return None


#: what arrays and queues of commands are made of (its twin: ``client.queue`` and ``client.remote``)
issue: Any = _extension("rgpu._rgpu_issue")
#: a session's table and the loop over its commands (their twins: ``server.table`` and ``server.executor``)
execute: Any = _extension("rgpu._rgpu_execute")

#: what small messages are made of (its twins: ``session.session.PureSession`` and ``link.framing``)
link: Any = _extension("rgpu._rgpu_link")

MMAP_THRESHOLD = 1 << 30  # blocks up to this size come from the heap, whose pages are already there
TRIM_THRESHOLD = 1 << 30  # so much free memory at the heap's end is kept


def swap_unit(dtype: np.dtype) -> int:
    """How many bytes turn around together when values of ``dtype`` change byte order; 1: none do."""
    if dtype.fields is not None:
        raise ValueError(f"the fields of {dtype} have to be swapped one by one")
    if dtype.kind == "c":
        return dtype.itemsize // 2
    if dtype.kind == "U":
        return 4
    return 1 if dtype.type in (np.void, np.bytes_) else dtype.itemsize


def _check(array: np.ndarray, buffer: Buffer, swap: bool, *, into_array: bool) -> int:
    """The one gate before raw memory is touched; returns the swap unit (1: leave the bytes alone)."""
    if array.dtype.hasobject:
        raise TypeError(f"{array.dtype} holds Python objects, which have no bytes to send")
    view = memoryview(buffer)
    if not view.c_contiguous or view.nbytes != array.nbytes:
        raise ValueError(f"needs one contiguous buffer of {array.nbytes} bytes, got {view.nbytes}")
    if not array.flags.writeable if into_array else view.readonly:
        raise ValueError("the destination is read-only")
    return swap_unit(array.dtype) if swap else 1


class PURE:
    """The twin: NumPy and the standard library only."""

    name = "pure"

    @staticmethod
    def pack(array: np.ndarray, out: Buffer, *, swap: bool = False) -> None:
        """Write the elements of ``array`` in C order into ``out``, with ``swap`` in the other byte order."""
        unit = _check(array, out, swap, into_array=False)
        if array.nbytes:
            flat = np.frombuffer(out, np.uint8)
            raw = _raw(array)
            np.copyto(flat.view(raw.dtype).reshape(array.shape), raw)
            if unit > 1:
                parts = flat.reshape(-1, unit)
                parts[:] = parts[:, ::-1].copy()

    @staticmethod
    def unpack(data: Buffer, array: np.ndarray, *, swap: bool = False) -> None:
        """Fill ``array`` from the bytes that ``pack`` wrote."""
        unit = _check(array, data, swap, into_array=True)
        if array.nbytes:
            flat = np.frombuffer(data, np.uint8)
            if unit > 1:
                flat = np.ascontiguousarray(flat.reshape(-1, unit)[:, ::-1]).reshape(-1)
            raw = _raw(array)
            np.copyto(raw, flat.view(raw.dtype).reshape(array.shape))

    @staticmethod
    def crc32c(data: Buffer, crc: int = 0) -> int:
        """CRC-32C of a contiguous buffer, continued from ``crc``."""
        view = memoryview(data)
        flat = np.frombuffer(view, np.uint8) if view.nbytes else np.empty(0, np.uint8)
        register = crc ^ 0xFFFFFFFF
        lanes = 1 << (flat.size.bit_length() // 2 + 1)
        width = flat.size // lanes
        if width >= 16:
            register = _crc_lanes(register, flat[: lanes * width].reshape(lanes, width))
            flat = flat[lanes * width :]
        table = _crc_table().tolist()
        for byte in flat.tolist():
            register = table[(register ^ byte) & 0xFF] ^ (register >> 8)
        return register ^ 0xFFFFFFFF

    @staticmethod
    def crc32c_is_fast() -> bool:
        """Whether it costs less than moving the bytes: the processor has an instruction for it."""
        return False

    @staticmethod
    def tune_malloc(mmap_threshold: int = MMAP_THRESHOLD, trim_threshold: int = TRIM_THRESHOLD) -> bool:
        """Keep freed memory of this process for its next use; False where malloc has no such settings."""
        try:
            mallopt = ctypes.CDLL(None).mallopt
        except (AttributeError, OSError, TypeError):
            return False
        m_trim_threshold, m_mmap_threshold = -1, -3  # malloc.h
        return bool(mallopt(m_mmap_threshold, mmap_threshold) and mallopt(m_trim_threshold, trim_threshold))


def _raw(array: np.ndarray) -> np.ndarray:
    """The same elements as plain bytes of the same size (bfloat16 and the like export no buffer)."""
    size = array.dtype.itemsize
    return array.view(np.dtype(f"u{size}") if size in (1, 2, 4, 8) else np.dtype((np.void, size)))


@functools.cache
def _crc_table() -> np.ndarray:
    table: Any = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = (table >> 1) ^ (np.uint32(0x82F63B78) * (table & 1))
    return table


def _crc_lanes(register: int, data: np.ndarray) -> int:
    """The register after ``data`` (lanes x width), all lanes at once.

    The register is linear over GF(2): each lane starts from zero, and 32 more lanes over zero bytes,
    one for each bit, tell what ``width`` zero bytes do to a register. That moves a left lane past
    its right neighbour, pair by pair, until one is left.
    """
    lanes, width = data.shape
    bits = np.arange(32, dtype=np.uint32)[:, None]
    columns = np.zeros((width, lanes + 32), np.uint8)
    columns[:, :lanes] = data.T
    state: np.ndarray = np.zeros(lanes + 32, np.uint32)
    state[0] = register
    state[lanes:] = np.uint32(1) << bits[:, 0]
    table = _crc_table()
    for column in columns:
        state = table[(state ^ column) & 0xFF] ^ (state >> 8)

    def shifted(registers: np.ndarray, shift: np.ndarray) -> np.ndarray:
        return np.bitwise_xor.reduce(((registers >> bits) & 1) * shift[:, None], axis=0)

    state, shift = state[:lanes], state[lanes:]
    while state.size > 1:
        state = shifted(state[0::2], shift) ^ state[1::2]
        shift = shifted(shift, shift)
    return int(state[0])


class COMPILED:
    """The C core; every call gives up the GIL while it runs. Only usable where it was built."""

    name = "compiled"

    @staticmethod
    def pack(array: np.ndarray, out: Buffer, *, swap: bool = False) -> None:
        unit = _check(array, out, swap, into_array=False)
        if array.nbytes:
            ffi, lib = _rgpu_core.ffi, _rgpu_core.lib
            lib.rgpu_pack(ffi.from_buffer(out, require_writable=True), *_region(array, unit))

    @staticmethod
    def unpack(data: Buffer, array: np.ndarray, *, swap: bool = False) -> None:
        unit = _check(array, data, swap, into_array=True)
        if array.nbytes:
            region, *layout = _region(array, unit)
            _rgpu_core.lib.rgpu_unpack(region, _rgpu_core.ffi.from_buffer(data), *layout)

    @staticmethod
    def crc32c(data: Buffer, crc: int = 0) -> int:
        view = _rgpu_core.ffi.from_buffer(data)
        return _rgpu_core.lib.rgpu_crc32c(crc, view, memoryview(data).nbytes)

    @staticmethod
    def crc32c_is_fast() -> bool:
        return bool(_rgpu_core.lib.rgpu_crc32c_hardware())

    @staticmethod
    def tune_malloc(mmap_threshold: int = MMAP_THRESHOLD, trim_threshold: int = TRIM_THRESHOLD) -> bool:
        return bool(_rgpu_core.lib.rgpu_tune_malloc(mmap_threshold, trim_threshold))


def _region(array: np.ndarray, unit: int) -> tuple:
    ffi = _rgpu_core.ffi
    address = ffi.cast("char *", array.__array_interface__["data"][0])
    return address, array.ndim, array.shape, array.strides, array.dtype.itemsize, unit


AVAILABLE: tuple[type, ...] = (PURE,) if _rgpu_core is None else (COMPILED, PURE)
IMPLEMENTATION: Any = PURE if _forced else AVAILABLE[0]

pack = IMPLEMENTATION.pack
unpack = IMPLEMENTATION.unpack
crc32c = IMPLEMENTATION.crc32c
crc32c_is_fast = IMPLEMENTATION.crc32c_is_fast
tune_malloc = IMPLEMENTATION.tune_malloc


def divide_as_gpu(path: str) -> bool:
    """Let integer divisions by zero in this loaded shared object give a number, as on a GPU; False without the C core,
    and where none of them ends a process anyway."""
    return IMPLEMENTATION is not PURE and bool(_rgpu_core.lib.rgpu_divide_as_gpu(path.encode()))


def trim_malloc() -> bool:
    """Give freed memory of this process back to the system now; False where malloc cannot be asked to."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return False
    return bool(trim(0))


def die_with_parent() -> None:
    """Ask Linux to kill this process when the one that started it ends; elsewhere nothing happens."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1  # sys/prctl.h
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)


# ---- transports -------------------------------------------------------------------------------------


class Transport:
    """A stream of bytes to another process. No call waits; ConnectionError: the other broke the rules or is gone."""

    def __init__(self, lib: Any, ffi: Any, handle: Any, *keep: Any) -> None:
        self._lib, self._ffi, self._handle, self._keep = lib, ffi, None, keep
        if handle == ffi.NULL:
            raise OSError("no transport")
        self._handle = handle

    def read(self, place: memoryview) -> int:
        """Bytes taken; 0: there are none now."""
        with self._ffi.from_buffer(place, require_writable=True) as memory:
            return self._moved(self._lib.rgpu_transport_read(self._handle, memory, len(memory)))

    def write(self, data: Buffer) -> int:
        """Bytes given; 0: it is full."""
        with self._ffi.from_buffer(data) as memory:
            return self._moved(self._lib.rgpu_transport_write(self._handle, memory, len(memory)))

    def _moved(self, count: int) -> int:
        if count < 0:
            raise ConnectionError("the peer is gone, or broke the rules of the transport")
        return count

    def doze(self, writing: bool) -> bool:
        """Before sleeping. False: there is news already."""
        return bool(self._lib.rgpu_transport_doze(self._handle, writing))

    def ring(self) -> bool:
        """Whether the other side sleeps, and has to be rung."""
        return bool(self._lib.rgpu_transport_ring(self._handle))

    def busy(self) -> bool:
        """Whether what was written still needs calls to leave."""
        return bool(self._lib.rgpu_transport_busy(self._handle))

    def fileno(self) -> int:
        return self._lib.rgpu_transport_fd(self._handle)

    def address(self, most: int) -> bytes:
        """Where this end is, for a peer (UCX)."""
        memory = self._ffi.new("char[]", most)
        return bytes(self._ffi.buffer(memory, self._moved(self._lib.rgpu_ucx_address(self._handle, memory, most))))

    def connect(self, address: bytes, tag: int) -> None:
        """Give this end its peer (UCX)."""
        self._moved(self._lib.rgpu_ucx_connect(self._handle, address, tag))

    def shut(self, seconds: float = 0.0) -> None:
        """Let go of the peer, once what was written has left or so many seconds are over; the memory stays for whoever
        is looking at it (UCX)."""
        if self._handle is not None:
            self._lib.rgpu_ucx_shut(self._handle, seconds)

    @property
    def pointer(self) -> int:
        """Its address, for C code that is to use it."""
        return int(self._ffi.cast("uintptr_t", self._handle))

    def close(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            self._lib.rgpu_transport_close(handle)
            for memory in self._keep:
                self._ffi.release(memory)

    def __del__(self) -> None:
        self.close()


class Transports:
    """The compiled transports."""

    def __init__(self, module: Any) -> None:
        self.lib, self._ffi = module.lib, module.ffi

    def shm(self, shared: Buffer, capacity: int, side: int) -> Transport:
        """Two rings in memory that is shared with another process (``rgpu_shm_size`` bytes, zeroed)."""
        memory = self._ffi.from_buffer(shared, require_writable=True)
        if len(memory) < self.lib.rgpu_shm_size(capacity):
            raise ValueError("too little memory")
        return Transport(self.lib, self._ffi, self.lib.rgpu_shm_open(memory, capacity, side), memory)

    def load_seal(self, name: str) -> bool:
        """Find a libcrypto by its name (empty: in this process), once a process."""
        return not self.lib.rgpu_seal_load(name.encode())

    def seal(self, fd: int, out_key: bytes, in_key: bytes, records: int) -> Transport:
        """A connected socket whose bytes are sealed; a key is 32 bytes and 12 of its first nonce."""
        if len(out_key) != 44 or len(in_key) != 44:
            raise ValueError("a direction's key has 44 bytes")
        return Transport(self.lib, self._ffi, self.lib.rgpu_seal_open(fd, out_key, in_key, records))

    def check(self, fd: int) -> Transport:
        """A connected socket whose bytes have checksums."""
        return Transport(self.lib, self._ffi, self.lib.rgpu_check_open(fd))

    def load_ucx(self, path: str) -> str:
        """Find the library, once a process; what is wrong, or an empty text."""
        why = self._ffi.new("char[]", 1024)
        failed = self.lib.rgpu_ucx_load(path.encode(), why, 1024)
        return self._ffi.string(why).decode(errors="replace") if failed else ""

    def ucx(self, tag: int) -> Transport:
        """An end that takes messages with this tag; ``load_ucx`` comes first."""
        return Transport(self.lib, self._ffi, self.lib.rgpu_ucx_open(tag))


@functools.cache
def transports() -> Transports | None:
    """None where there is no C core."""
    try:
        return None if _forced else Transports(importlib.import_module("rgpu._rgpu_transport"))
    except ImportError:
        return None
