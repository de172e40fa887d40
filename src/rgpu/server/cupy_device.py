"""What a CUDA device says of itself, and its streams, events and memory pools: CuPy's own.

The counterpart of ``cpu.device``: the same declared names, the same arguments, the same answers. Part of
the cupy backend, which is the only one to import it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import cupy
from cupy.cuda import runtime

_BLOCKING, _DISABLE_TIMING = 1, 2
_OUT_OF_MEMORY = 2
_COMPUTE_CAPABILITY = {75: "major", 76: "minor"}  # attributes that CuPy has no names for


class Pool:
    """One of CuPy's pools, with the limit that the user gave it (0: only the lease bounds it)."""

    def __init__(self, allocate: Callable[[int], Any]) -> None:
        self.cupy = cupy.cuda.MemoryPool(allocate)
        self.limit = 0

    def set_limit(self, limit: int) -> None:
        self.cupy.set_limit(size=limit)
        self.limit = limit


class Pools:
    """All pools of the session. Together they never hold more than the lease, cached blocks included. ``more`` asks
    the daemon to let the session hold so many bytes, and says what it may hold."""

    def __init__(self, lease: int) -> None:
        self.lease = lease
        self.more: Callable[[int], int] = lambda held: self.lease
        self.relieve: Callable[[], bool] = lambda: False  # frees what is held for speed alone; whether there was any
        self._all: weakref.WeakSet[Pool] = weakref.WeakSet()
        self.default = self.create()
        self.none = self.create()  # where the user wants no pool: accounted apart, and bounded as well

    def create(self) -> Pool:
        made = Pool(self._allocate)
        self._all.add(made)
        return made

    def use(self, pool: Pool) -> None:
        """Results come from this one."""
        cupy.cuda.set_allocator(pool.cupy.malloc)

    @property
    def held(self) -> int:
        return sum(pool.cupy.total_bytes() for pool in self._all)

    def free_all(self) -> None:
        for pool in self._all:
            pool.cupy.free_all_blocks()

    def _allocate(self, size: int) -> Any:
        """Memory of the card, for a pool that has none left; CuPy's pool already counts it as held."""
        if self.lease and self.held > self.lease:
            self.free_all()
            if self.held > self.lease:
                self.lease = self.more(self.held)
            if self.held > self.lease and self.relieve():
                self.free_all()
            if self.held > self.lease:
                raise runtime.CUDARuntimeError(_OUT_OF_MEMORY)  # the pool says it with its figures
        try:
            fresh = cupy.cuda.memory._malloc(size)
        except runtime.CUDARuntimeError as error:
            if error.status != _OUT_OF_MEMORY or not self.relieve():
                raise
            self.free_all()
            fresh = cupy.cuda.memory._malloc(size)
        fresh.memset_async(0, size)  # the card hands out what the process before us left in it
        return fresh


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


def _memory(backend: Any) -> list[int]:
    free, total = device_memory()
    if backend.allowance is not None:
        left, leased = backend.allowance.figures()
        return [min(free, left), min(leased, total)]
    leased = min(backend.limit or total, total)
    return [max(0, min(free, leased - backend.pools.held)), leased]


def _use_pool(backend: Any, pool: Any) -> None:
    """0: the default pool, -1: none."""
    pools = backend.pools
    pools.use(pool if isinstance(pool, Pool) else pools.default if pool == 0 else pools.none)


def _chosen(backend: Any, pool: Pool | None) -> Pool:
    return backend.pools.default if pool is None else pool


def _figures(backend: Any, pool: Pool | None) -> list[int]:
    """[used, total, free blocks, limit]"""
    chosen = _chosen(backend, pool)
    return [chosen.cupy.used_bytes(), chosen.cupy.total_bytes(), chosen.cupy.n_free_blocks(), chosen.limit]


def _free_all(backend: Any, pool: Pool | None) -> None:
    if backend.graphs is not None:
        backend.graphs.drop(short=False)
    _chosen(backend, pool).cupy.free_all_blocks()


def _stream_create(backend: Any, non_blocking: bool, priority: int) -> Any:
    backend.streams = True
    return cupy.cuda.Stream(non_blocking=non_blocking, priority=priority)


def _stream(stream: Any) -> Any:
    return cupy.cuda.Stream.null if stream is None else stream


def _event_create(backend: Any, flags: int) -> Any:
    return cupy.cuda.Event(block=bool(flags & _BLOCKING), disable_timing=bool(flags & _DISABLE_TIMING))


def _cancel_capture(backend: Any, stream: Any) -> None:
    """End a capture that the client has already said is no graph."""
    try:
        if stream is not None:  # dropped, and its capture with it
            stream.end_capture()
    except runtime.CUDARuntimeError:
        pass  # CUDA found the same


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
    "stream.join": lambda backend, stream: None,  # the stream itself is the order
    "stream.query": lambda backend, stream=None: _stream(stream).done,
    "graph.begin": lambda backend, stream, mode: stream.begin_capture(mode),
    "graph.join": lambda backend, origin, stream: None,  # CUDA sees the event
    "graph.end": lambda backend, stream: stream.end_capture(),
    "graph.cancel": _cancel_capture,
    "graph.launch": lambda backend, graph, stream=None: graph.launch(_stream(stream)),
    "graph.upload": lambda backend, graph, stream=None: graph.upload(_stream(stream)),
    "graph.dot": lambda backend, graph, flags: graph.debug_dot_str(flags),
    "event.create": _event_create,
    "event.record": lambda backend, event, stream=None: event.record(_stream(stream)),
    "event.synchronize": lambda backend, event: event.synchronize(),
    "event.query": lambda backend, event: event.done,
    "event.elapsed": _elapsed,
    "memory.create_pool": lambda backend: backend.pools.create(),
    "memory.use_pool": _use_pool,
    "memory.figures": _figures,
    "memory.free_all": _free_all,
    "memory.set_limit": lambda backend, pool, limit: _chosen(backend, pool).set_limit(limit),
}
