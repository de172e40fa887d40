"""What a cpu device says of itself, and its streams, events and memory pools.

Commands run in order on the worker's thread, so a stream only needs to exist and an event only needs to
know when it was reached. Pools are accounts of the table. The numbers of the device are those of the
processor where it has them, and otherwise ones that let a program choose the size of its blocks.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from rgpu._native import TRIM_THRESHOLD, trim_malloc
from rgpu.server.table import Account
from rgpu.server.telemetry import host_memory, processor_name

_INVALID_HANDLE = 400
_DISABLE_TIMING = 2
_CUDA_VERSION = 12090  # the interfaces that are spoken here

#: cudaDeviceAttr numbers of what a program may ask before it launches anything
_ATTRIBUTES = {
    1: 1024, 2: 1024, 3: 1024, 4: 64, 5: 2**31 - 1, 6: 65535, 7: 65535, 8: 49152, 9: 65536, 10: 32,
    11: 2**31 - 1, 12: 65536, 14: 512, 15: 1, 17: 0, 18: 0, 19: 1, 20: 0, 31: 1, 32: 0, 35: 0, 39: 2048,
    40: 1, 41: 1, 51: 32, 75: 8, 76: 0, 78: 1, 79: 1, 80: 1, 81: 102400, 82: 65536, 83: 1, 84: 0, 85: 0,
    86: 0, 87: 2, 88: 0, 89: 0, 90: 1, 91: 0, 95: 1, 96: 0, 97: 101376, 100: 0, 101: 0, 106: 16, 115: 1,
}  # fmt: skip

#: properties that are one of those attributes
_PROPERTIES = {
    "sharedMemPerBlock": 8, "regsPerBlock": 12, "warpSize": 10, "maxThreadsPerBlock": 1, "totalConstMem": 9,
    "major": 75, "minor": 76, "textureAlignment": 14, "texturePitchAlignment": 51, "multiProcessorCount": 16,
    "kernelExecTimeoutEnabled": 17, "integrated": 18, "canMapHostMemory": 19, "computeMode": 20,
    "concurrentKernels": 31, "ECCEnabled": 32, "pciBusID": 33, "pciDeviceID": 34, "pciDomainID": 50,
    "tccDriver": 35, "clockRate": 13, "memoryClockRate": 36, "memoryBusWidth": 37, "l2CacheSize": 38,
    "maxThreadsPerMultiProcessor": 39, "isMultiGpuBoard": 84, "cooperativeLaunch": 95,
    "cooperativeMultiDeviceLaunch": 96, "deviceOverlap": 15, "asyncEngineCount": 40, "unifiedAddressing": 41,
    "streamPrioritiesSupported": 78, "globalL1CacheSupported": 79, "localL1CacheSupported": 80,
    "sharedMemPerMultiprocessor": 81, "regsPerMultiprocessor": 82, "managedMemory": 83,
    "multiGpuBoardGroupID": 85, "hostNativeAtomicSupported": 86, "singleToDoublePrecisionPerfRatio": 87,
    "pageableMemoryAccess": 88, "concurrentManagedAccess": 89, "computePreemptionSupported": 90,
    "canUseHostPointerForRegisteredMem": 91, "sharedMemPerBlockOptin": 97,
    "pageableMemoryAccessUsesHostPageTables": 100, "directManagedMemAccessFromHost": 101,
    "maxBlocksPerMultiProcessor": 106,
}  # fmt: skip


class CUDARuntimeError(RuntimeError):
    """Rebuilt on the client from its status."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class CpuStream:
    """Commands run in order anyway; only collectives on a non-blocking stream run beside them."""

    def __init__(self, non_blocking: bool = False, priority: int = 0) -> None:
        self.non_blocking = non_blocking
        self.pending: list[Any] = []  # promises of collectives

    def finish(self) -> None:
        """Wait for what runs beside the commands; raises what went wrong there."""
        while self.pending:
            self.pending.pop(0).wait()


class CpuEvent:
    """Remembers when it was reached."""

    def __init__(self, flags: int) -> None:
        self.timing = not flags & _DISABLE_TIMING
        self.time: float | None = None
        self.pending: list[Any] = []  # what has to end until it is reached


def _info(backend: Any) -> dict:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    cores = int(os.environ.get("OMP_NUM_THREADS", cores))
    attributes = _ATTRIBUTES | {13: 0, 16: cores, 33: backend.device, 34: 0, 36: 0, 37: 64, 38: 0, 50: 0}
    properties: dict[str, Any] = {name: attributes[number] for name, number in _PROPERTIES.items()}
    properties |= {
        "name": f"CPU {processor_name()}".encode(),
        "totalGlobalMem": _total(backend),
        "maxThreadsDim": tuple(attributes[i] for i in (2, 3, 4)),
        "maxGridSize": tuple(attributes[i] for i in (5, 6, 7)),
        "uuid": bytes(15) + bytes([backend.device & 0xFF]),
    }
    return {
        "properties": properties,
        "attributes": attributes,
        "driver_version": _CUDA_VERSION,
        "runtime_version": _CUDA_VERSION,
    }


def _total(backend: Any) -> int:
    return backend.limit or host_memory()


def _memory(backend: Any) -> list[int]:
    if backend.allowance is not None:
        return list(backend.allowance.figures())
    total = _total(backend)
    return [max(0, total - backend.table.used), total]


def _account(backend: Any, pool: Account | None) -> Account:
    return backend.table.default if pool is None else pool


def _use_pool(backend: Any, pool: Any) -> None:
    """0: the default pool, -1: none."""
    backend.table.account = (
        pool if isinstance(pool, Account) else backend.table.default if pool == 0 else Account()
    )


def _figures(backend: Any, pool: Account | None) -> list[int]:
    """[used, total, free blocks, limit]. What was freed the process keeps, as far as malloc does: one block."""
    account = _account(backend, pool)
    free = min(account.total - account.used, TRIM_THRESHOLD)
    return [account.used, account.used + free, int(free > 0), account.limit]


def _free_all(backend: Any, pool: Account | None) -> None:
    """Give what the process keeps back to the system."""
    account = _account(backend, pool)
    account.total = account.used
    trim_malloc()


def _set_limit(backend: Any, pool: Account | None, limit: int) -> None:
    _account(backend, pool).limit = limit


def _record(backend: Any, event: CpuEvent, stream: CpuStream | None = None) -> None:
    event.time = time.perf_counter()
    event.pending = [] if stream is None else [promise for promise in stream.pending if not promise.done]


def _elapsed(backend: Any, start: CpuEvent, end: CpuEvent) -> float:
    if start.time is None or end.time is None or not (start.timing and end.timing):
        raise CUDARuntimeError(_INVALID_HANDLE)
    return (_reached(end) - _reached(start)) * 1e3


def _reached(event: CpuEvent) -> float:
    """When it was; waits for it."""
    for promise in event.pending:
        promise.wait()
    return max([event.time, *(promise.ended for promise in event.pending)])


def _stream_synchronize(backend: Any, stream: CpuStream | None = None) -> None:
    if stream is not None:
        stream.finish()


def _wait_event(backend: Any, stream: CpuStream | None, event: CpuEvent) -> None:
    """A non-blocking stream goes on when its next command needs to; collectives run in one order anyway."""
    if stream is not None and stream.non_blocking:
        stream.pending += [promise for promise in event.pending if promise not in stream.pending]
    else:
        _event_synchronize(backend, event)


def _event_synchronize(backend: Any, event: CpuEvent) -> None:
    for promise in event.pending:
        promise.wait()


#: by declared name; the first argument is the backend
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "device.info": _info,
    "device.memory": _memory,
    "stream.create": lambda backend, *args: CpuStream(*args),
    "stream.synchronize": _stream_synchronize,
    "stream.join": _stream_synchronize,
    "stream.wait_event": _wait_event,
    "stream.query": lambda backend, stream=None: stream is None or all(p.done for p in stream.pending),
    "graph.begin": lambda backend, stream, mode: backend.recorder.begin(stream),
    "graph.join": lambda backend, origin, stream: backend.recorder.join(origin, stream),
    "graph.end": lambda backend, stream: backend.recorder.end(stream),
    "graph.cancel": lambda backend, stream: backend.recorder.end(stream) and None,
    "graph.make": lambda backend, *told: backend.recorder.make(*told),
    "graph.launch": lambda backend, graph, stream=None: backend.recorder.launch(graph),
    "graph.upload": lambda backend, *_: None,
    "graph.dot": lambda backend, graph, flags: graph.dot(flags),
    "event.create": lambda backend, flags: CpuEvent(flags),
    "event.record": _record,
    "event.synchronize": _event_synchronize,
    "event.query": lambda backend, event: all(promise.done for promise in event.pending),
    "event.elapsed": _elapsed,
    "memory.create_pool": lambda backend: Account(),
    "memory.use_pool": _use_pool,
    "memory.figures": _figures,
    "memory.free_all": _free_all,
    "memory.set_limit": _set_limit,
}
