"""What a CUDA device says of itself, and its streams, events and memory pools: CuPy's own.

The counterpart of ``cpu_device``: the same declared names, the same arguments, the same answers. Part of
the cupy backend, which is the only one to import it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import cupy
from cupy.cuda import runtime

_BLOCKING, _DISABLE_TIMING = 1, 2
_COMPUTE_CAPABILITY = {75: "major", 76: "minor"}  # attributes that CuPy has no names for


class Pool:
    """One of CuPy's pools, with the limit that the user gave it (0: only the lease bounds it)."""

    def __init__(self, pool: Any) -> None:
        self.cupy = pool
        self.limit = 0


def device_memory() -> tuple[int, int]:
    """(free, total) bytes of the card."""
    free, total = runtime.memGetInfo()
    return free, total


def _info(backend: Any) -> dict:
    properties = runtime.getDeviceProperties(backend.device)
    attributes = {number: properties[name] for number, name in _COMPUTE_CAPABILITY.items()}
    for name in dir(runtime):
        if name.startswith("cudaDevAttr"):
            number = getattr(runtime, name)
            try:
                attributes[number] = runtime.deviceGetAttribute(number, backend.device)
            except runtime.CUDARuntimeError:  # this driver does not know it
                continue
    return {
        "properties": properties,
        "attributes": attributes,
        "driver_version": runtime.driverGetVersion(),
        "runtime_version": runtime.runtimeGetVersion(),
    }


def _pools(backend: Any) -> list[Pool]:
    others = [reference() for reference in backend.pools]
    return [backend.default_pool, *[pool for pool in others if pool is not None]]


def _memory(backend: Any) -> list[int]:
    free, total = device_memory()
    leased = min(backend.limit or total, total)
    held = sum(pool.cupy.total_bytes() for pool in _pools(backend))
    return [max(0, min(free, leased - held)), leased]


def _create_pool(backend: Any) -> Pool:
    made = Pool(cupy.cuda.MemoryPool())
    if backend.limit:
        made.cupy.set_limit(size=backend.limit)
    backend.pools = [reference for reference in backend.pools if reference() is not None]
    backend.pools.append(weakref.ref(made))
    return made


def _use_pool(backend: Any, pool: Any) -> None:
    """0: the default pool, -1: none."""
    if isinstance(pool, Pool):
        cupy.cuda.set_allocator(pool.cupy.malloc)
    else:
        cupy.cuda.set_allocator(backend.default_pool.cupy.malloc if pool == 0 else None)


def _chosen(backend: Any, pool: Pool | None) -> Pool:
    return backend.default_pool if pool is None else pool


def _figures(backend: Any, pool: Pool | None) -> list[int]:
    """[used, total, free blocks, limit]"""
    chosen = _chosen(backend, pool)
    return [chosen.cupy.used_bytes(), chosen.cupy.total_bytes(), chosen.cupy.n_free_blocks(), chosen.limit]


def _set_limit(backend: Any, pool: Pool | None, limit: int) -> None:
    chosen = _chosen(backend, pool)
    chosen.limit = limit
    chosen.cupy.set_limit(
        size=min(limit, backend.limit) if limit and backend.limit else limit or backend.limit
    )


def _free_all(backend: Any, pool: Pool | None) -> None:
    _chosen(backend, pool).cupy.free_all_blocks()


def _stream_create(backend: Any, non_blocking: bool, priority: int) -> Any:
    backend.streams = True
    return cupy.cuda.Stream(non_blocking=non_blocking, priority=priority)


def _stream(stream: Any) -> Any:
    return cupy.cuda.Stream.null if stream is None else stream


def _event_create(backend: Any, flags: int) -> Any:
    return cupy.cuda.Event(block=bool(flags & _BLOCKING), disable_timing=bool(flags & _DISABLE_TIMING))


def _elapsed(backend: Any, start: Any, end: Any) -> float:
    start.synchronize()
    end.synchronize()
    return cupy.cuda.get_elapsed_time(start, end)


#: by declared name; the first argument is the backend
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "device.info": _info,
    "device.memory": _memory,
    "stream.create": _stream_create,
    "stream.synchronize": lambda backend, stream=None: _stream(stream).synchronize(),
    "stream.wait_event": lambda backend, stream, event: _stream(stream).wait_event(event),
    "stream.query": lambda backend, stream=None: _stream(stream).done,
    "event.create": _event_create,
    "event.record": lambda backend, event, stream=None: event.record(_stream(stream)),
    "event.synchronize": lambda backend, event: event.synchronize(),
    "event.query": lambda backend, event: event.done,
    "event.elapsed": _elapsed,
    "memory.create_pool": _create_pool,
    "memory.use_pool": _use_pool,
    "memory.figures": _figures,
    "memory.free_all": _free_all,
    "memory.set_limit": _set_limit,
}
