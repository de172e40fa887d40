"""``cupy.cuda``: devices, streams, events, memory and the runtime functions, on the devices of the pool.

Modules lie where CuPy has them; what CuPy has and rgpu does not raises NotImplementedError with its name.
Importing connects to nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rgpu import surface
from rgpu.cuda import (
    device,
    driver,
    errors,
    memory,
    memory_hook,
    nvtx,
    pinned_memory,
    profiler,
    runtime,
    stream,
)
from rgpu.cuda.device import Device, get_device_id
from rgpu.cuda.memory import (
    BaseMemory,
    CFunctionAllocator,
    ManagedMemory,
    Memory,
    MemoryAsync,
    MemoryAsyncPool,
    MemoryPointer,
    MemoryPool,
    PythonFunctionAllocator,
    UnownedMemory,
    alloc,
    get_allocator,
    malloc_async,
    malloc_managed,
    set_allocator,
    using_allocator,
)
from rgpu.cuda.memory_hook import MemoryHook
from rgpu.cuda.pinned_memory import (
    PinnedMemory,
    PinnedMemoryPointer,
    PinnedMemoryPool,
    alloc_pinned_memory,
    set_pinned_memory_allocator,
)
from rgpu.cuda.stream import Event, ExternalStream, Stream, get_current_stream, get_elapsed_time


def is_available() -> bool:
    """Whether there is a device: a server answers and has one."""
    try:
        return runtime.getDeviceCount() > 0
    except Exception:  # whatever is wrong, there is none to use
        return False


def get_local_runtime_version() -> int:
    """The CUDA runtime version of the current device's worker."""
    return runtime.runtimeGetVersion()


def get_cuda_path() -> None:
    """Where CUDA is installed on this machine: nowhere that matters."""


get_nvcc_path = get_rocm_path = get_hipcc_path = get_cuda_path


@contextlib.contextmanager
def profile() -> Iterator[None]:
    """Accepted and without effect: a profiler on the client sees no device."""
    import warnings

    warnings.warn("cupy.cuda.profile is deprecated. Use cupyx.profiler.profile instead.", stacklevel=3)
    profiler.start()
    try:
        yield
    finally:
        profiler.stop()


__getattr__, __dir__ = surface.face(__name__)
