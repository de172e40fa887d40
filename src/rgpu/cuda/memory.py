"""Device memory as CuPy shows it: allocations, pointers into them, and who allocates.

An allocation is an array of bytes on the worker; a pointer is an allocation and an offset. Addresses are
made when asked for, so that ``a.data`` costs nothing. Pools live in ``rgpu.cuda.pools`` and on the worker.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from rgpu import surface
from rgpu.client import follow
from rgpu.client import meta as layouts
from rgpu.client.remote import Remote, root_of
from rgpu.cuda import addresses, allocations, copying, handles, issue, managed
from rgpu.cuda.errors import INVALID_VALUE, invalid
from rgpu.cuda.errors import CUDARuntimeError as CUDARuntimeError
from rgpu.cuda.errors import OutOfMemoryError as OutOfMemoryError
from rgpu.functions import views

_U1 = np.dtype(np.uint8)
_round_size = addresses.round_up
_allocation_unit_size = addresses.UNIT


class BaseMemory:
    """A piece of device memory: ``ptr``, ``size``, ``device_id``."""

    __module__ = "cupy.cuda.memory"
    size: int
    device_id: int
    _root: Remote | None = None  # the array whose memory it is
    _start = 0  # bytes into it

    @property
    def ptr(self) -> int:
        found = self.__dict__.get("ptr")
        if found is None:
            found = 0 if self._root is None else addresses.of(self._root) + self._start
            self.__dict__["ptr"] = found
        return found

    @ptr.setter
    def ptr(self, value: int) -> None:
        self.__dict__["ptr"] = value

    def __int__(self) -> int:
        return self.ptr

    @property
    def device(self) -> Any:
        from rgpu.cuda.device import Device

        return Device(self.device_id)

    def _take(self, size: int, pool: int) -> None:
        """Allocate on the current device; ``pool`` as ``client.follow`` has it."""
        stream = issue.here()
        self.size, self.device_id = size, issue.ordinal(stream)
        if size:
            with follow.on(stream, pool=pool):
                self._root = views.empty(layouts.fresh((size,), _U1), stream)


    def _show(self, root: Remote) -> None:
        self._root = root
        self.size = addresses.round_up(root._metadata.nbytes)
        self.device_id = issue.ordinal(root._stream)

    @classmethod
    def over(cls, root: Remote) -> Any:
        """What an array's memory is shown as."""
        memory = object.__new__(cls)
        memory._show(root)
        return memory


class Memory(BaseMemory):
    """An allocation that belongs to no pool."""

    def __init__(self, size: int) -> None:
        self._take(size, follow.NO_POOL)


class MemoryAsync(BaseMemory):
    """An allocation in the order of a stream."""

    def __init__(self, size: int, stream: Any, pool: int = follow.NO_POOL) -> None:
        import weakref

        self.stream_ref = weakref.ref(stream)
        with follow.on(issue.here(), handles.handle_of(handles.stream(stream.ptr)[1])):
            self._take(size, pool)


class ManagedMemory(BaseMemory):
    """Memory that every device of the pool may use; it lives on this one, and the host must copy."""

    def __init__(self, size: int) -> None:
        self._take(size, follow.NO_POOL)
        if self._root is not None:
            managed.manage(self._root)

    def prefetch(self, stream: Any, *, device_id: int | None = None) -> None:
        """Begin to copy it to a device; the next use there finds it."""
        from rgpu.cuda import runtime

        runtime.memPrefetchAsync(
            self.ptr, self.size, self.device_id if device_id is None else device_id, stream.ptr
        )

    def advise(self, advise: int, dev: Any) -> None:
        """``cudaMemoryAdvise``: read mostly (1, 2: not), preferred location (3, 4: none), accessed by (5, 6: not)."""
        from rgpu.cuda import runtime

        runtime.memAdvise(self.ptr, self.size, advise, dev.id)


class UnownedMemory(BaseMemory):
    """Memory that somebody else owns, by address; ``owner`` is kept alive."""

    def __init__(self, ptr: int, size: int, owner: Any, device_id: int = -1) -> None:
        if not ptr and device_id < 0:
            raise RuntimeError("UnownedMemory requires explicit device ID for a null pointer.")
        self.size, self._owner = size, owner
        self.ptr = ptr
        if ptr:
            self._root, self._start = addresses.find(ptr)
            device_id = issue.ordinal(self._root._stream)
        self.device_id = device_id

    def _show(self, root: Remote) -> None:
        if not isinstance(root, allocations.Lent) or root.span is None:
            raise ValueError("the array is not in memory that somebody else owns")
        self._root, self._owner = root, root.owner
        self._start, self.size = root.span
        self.device_id = issue.ordinal(root._stream)


class PooledMemory(BaseMemory):
    """Memory out of a pool; what ``array.data.mem`` is."""

    def __init__(self, root: Remote) -> None:
        self._show(root)

    def free(self) -> None:
        """Give it back now; harmless when it is."""
        self._root = None
        self.ptr = 0


class MemoryPointer:
    """A place in an allocation. Add and subtract bytes; copy; make an array of it."""

    __module__ = "cupy.cuda.memory"

    def __init__(self, mem: Any, offset: int) -> None:
        self.mem, self._offset = mem, offset

    @property
    def ptr(self) -> int:
        base = self.mem.ptr
        return base + self._offset if base or self._offset else 0

    @property
    def device_id(self) -> int:
        return self.mem.device_id

    @property
    def device(self) -> Any:
        return self.mem.device

    def __int__(self) -> int:
        return self.ptr

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.ptr:#x} device={self.device_id} mem={type(self.mem).__name__}>"

    def __add__(self, offset: int) -> MemoryPointer:
        return MemoryPointer(self.mem, self._offset + offset)

    __radd__ = __add__

    def __sub__(self, offset: int) -> MemoryPointer:
        return MemoryPointer(self.mem, self._offset - offset)

    def __iadd__(self, offset: int) -> MemoryPointer:
        self._offset += offset
        return self

    def __isub__(self, offset: int) -> MemoryPointer:
        self._offset -= offset
        return self

    # ---- copies; the asynchronous ones take the stream they are ordered in -------------------------

    def copy_from_device(self, src: MemoryPointer, size: int) -> None:
        copying.copy(self.ptr, src.ptr, size, copying.DEVICE_TO_DEVICE)

    def copy_from_host(self, mem: Any, size: int) -> None:
        copying.copy(self.ptr, mem, size, copying.HOST_TO_DEVICE)

    def copy_from(self, mem: Any, size: int) -> None:
        if isinstance(mem, MemoryPointer):
            self.copy_from_device(mem, size)
        else:
            self.copy_from_host(mem, size)

    def copy_to_host(self, mem: Any, size: int) -> None:
        copying.copy(mem, self.ptr, size, copying.DEVICE_TO_HOST)

    def memset(self, value: int, size: int) -> None:
        if self.mem._root is None:
            raise invalid(INVALID_VALUE, "memset of memory that is not on a device of the pool")
        copying.fill(self.mem._root, self.mem._start + self._offset, value, size)

    def copy_from_device_async(self, src: MemoryPointer, size: int, stream: Any = None) -> None:
        with self._on(stream):
            self.copy_from_device(src, size)

    def copy_from_host_async(self, mem: Any, size: int, stream: Any = None) -> None:
        with self._on(stream):
            self.copy_from_host(mem, size)

    def copy_from_async(self, mem: Any, size: int, stream: Any = None) -> None:
        with self._on(stream):
            self.copy_from(mem, size)

    def copy_to_host_async(self, mem: Any, size: int, stream: Any = None) -> None:
        with self._on(stream):
            self.copy_to_host(mem, size)

    def memset_async(self, value: int, size: int, stream: Any = None) -> None:
        with self._on(stream):
            self.memset(value, size)

    @staticmethod
    def _on(stream: Any) -> Any:
        return contextlib.nullcontext() if stream is None else on_stream(stream.ptr)

    def _array(self, cls: type, shape: tuple, dtype: np.dtype, strides: Any, order: str) -> Any:
        """An array over this memory (``ndarray(shape, dtype, memptr=...)``)."""
        if strides is not None:
            meta = layouts.intern(shape, dtype, tuple(strides))
        else:
            meta = layouts.ordered(layouts.fresh(shape, dtype), order or "C")
        root = self.mem._root
        if root is None or not meta.nbytes:
            if meta.nbytes:
                raise ValueError(
                    f"{self!r} has no memory on a device of the pool for an array of {meta.nbytes} bytes"
                )
            array = views.empty(meta, issue.here(), cls)
        else:
            low, high = layouts.reach(meta)
            start = self.mem._start + self._offset
            if start + low < 0 or start + high > root._metadata.nbytes:
                raise ValueError(
                    f"an array of {high - low} bytes at offset {start + low} "
                    f"does not fit the {root._metadata.nbytes} bytes that were allocated"
                )
            array = views.make(root, meta, start, cls)
        array.__array_finalize__(None)
        return array


def on_stream(pointer: int) -> Any:
    """Inside, this thread's commands run on a stream given by its integer."""
    commands, held = handles.stream(pointer)
    return follow.on(commands, handles.handle_of(held))


def pointer_of(array: Remote) -> MemoryPointer:
    """``array.data``."""
    root = root_of(array)
    if isinstance(root, allocations.Lent) and root.span is not None:
        return MemoryPointer(UnownedMemory.over(root), array._offset - root.span[0])
    known = managed.of(root)
    kind = PooledMemory if known is None or known.pooled else ManagedMemory
    return MemoryPointer(kind.over(root), 0 if array._root is None else array._offset)


# ---- who allocates --------------------------------------------------------------------------------


def _malloc(size: int) -> MemoryPointer:
    return MemoryPointer(Memory(size), 0)


def malloc_managed(size: int) -> MemoryPointer:
    return MemoryPointer(ManagedMemory(size), 0)


def malloc_async(size: int) -> MemoryPointer:
    from rgpu.cuda.stream import get_current_stream

    return MemoryPointer(MemoryAsync(size, get_current_stream()), 0)


class PythonFunctionAllocator:
    """Memory from two Python functions on addresses: ``malloc(size, device)``, ``free(ptr, device)``."""

    __module__ = "cupy.cuda.memory"

    def __init__(self, malloc_func: Any, free_func: Any) -> None:
        self._malloc, self._free = malloc_func, free_func

    def malloc(self, size: int) -> MemoryPointer:
        return MemoryPointer(_FunctionMemory(size, self._malloc, self._free), 0)


class CFunctionAllocator(PythonFunctionAllocator):
    """The same with addresses of C functions of this process: ``void *malloc(void *param, size_t size, int device)``
    and ``void free(void *param, void *ptr, int device)``. ``owner`` is kept alive."""

    def __init__(self, param: int, malloc_func: int, free_func: int, owner: Any) -> None:
        take = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)(malloc_func)
        give = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)(free_func)
        super().__init__(lambda size, device: take(param, size, device), lambda ptr, device: give(param, ptr, device))
        self._owner = owner


class _FunctionMemory(BaseMemory):
    def __init__(self, size: int, malloc: Any, free: Any) -> None:
        self.size, self.device_id = size, issue.ordinal(issue.here())
        self.ptr = malloc(size, self.device_id) if size else 0
        if self.ptr:
            root, self._start = addresses.find(self.ptr)
            self._root = allocations.lent(root, functools.partial(free, self.ptr, self.device_id))


from rgpu.cuda import pools  # noqa: E402 - pools allocate the memory defined above
from rgpu.cuda.pools import MemoryAsyncPool as MemoryAsyncPool  # noqa: E402
from rgpu.cuda.pools import MemoryPool as MemoryPool  # noqa: E402
from rgpu.cuda.pools import SingleDeviceMemoryPool as SingleDeviceMemoryPool  # noqa: E402

_parse_limit_string = pools.parse_limit
pools.on_worker |= {_malloc, malloc_managed, malloc_async}


def alloc(size: int) -> MemoryPointer:
    """Memory from the current allocator."""
    return get_allocator()(size)


def get_allocator() -> Any:
    """The allocator of this thread, else of the process."""
    return pools.current_allocator()


def set_allocator(allocator: Any = None) -> None:
    """Use another allocator from now on; None: no pool.

    A MemoryPool's ``malloc`` decides where results are accounted, and limited. Any other function (bytes ->
    MemoryPointer) is called for each array that is made; results are made by the worker, which cannot call it, and
    copied there.
    """
    pools.set_allocator(_malloc if allocator is None else allocator)


@contextlib.contextmanager
def using_allocator(allocator: Any = None) -> Iterator[None]:
    """``set_allocator`` for this thread, inside."""
    with pools.using(_malloc if allocator is None else allocator):
        yield


def _get_thread_local_allocator() -> Any:
    return pools.thread_allocator()


__getattr__, __dir__ = surface.face(__name__)
