"""Streams, captures, graphs and memory pools as CUDA and CuPy have them, over one array of the host's memory.

What is issued while a stream is captured is kept and not run; a graph runs it again on the same addresses. Memory that
is freed is given out again at once, as on a card, where the order of a stream makes that right.
"""

import os
import types

import numpy as np

BASE = 0x7F0000000000
UNIT = 512
CARD = int(os.environ.get("CUPY_STAND_IN_MEMORY", 16 << 20))
machine = types.SimpleNamespace(
    memory=np.zeros(CARD, np.uint8), top=0, free={}, card=CARD, mallocs=0,
    refused=set(),  # functions that raise while a stream is captured
    spoil=None,  # what is done to the operations of a graph when its capture ends
    launches=0,
)  # fmt: skip


def reset(card=CARD):
    """A card that nobody has used."""
    machine.memory[:] = 0xCD
    machine.top, machine.free, machine.card, machine.mallocs = 0, {}, card, 0  # what is freed later was of the last one
    machine.refused, machine.spoil, machine.launches = set(), None, 0
    _current[0] = Stream.null
    set_allocator(None)


class CUDARuntimeError(RuntimeError):
    def __init__(self, status):
        super().__init__(f"error {status}")
        self.status = status


class OutOfMemoryError(MemoryError):
    def __init__(self, size, total, limit=0):
        super().__init__(f"{size} of {total}, {limit}")
        self.figures = size, total, limit

    def __reduce__(self):
        return type(self), self.figures


class Memory:
    """From the card."""

    def __init__(self, size):
        self.size, self.ptr, self.device_id, self._free = size, 0, 0, machine.free
        if not size:
            return
        if _current[0].operations is not None:
            raise CUDARuntimeError(900)  # not permitted while a stream is captured
        machine.mallocs += 1
        spots = machine.free.get(size)
        if spots:
            self.ptr = spots.pop()
        else:
            if machine.top + size > machine.card:
                raise CUDARuntimeError(2)
            self.ptr, machine.top = BASE + machine.top, machine.top + size

    def __del__(self):
        if self.ptr:
            self._free.setdefault(self.size, []).append(self.ptr)


class UnownedMemory:
    def __init__(self, ptr, size, owner, device_id=-1):
        self.ptr, self.size, self.device_id, self._owner = ptr, size, device_id, owner


class MemoryPointer:
    def __init__(self, mem, offset):
        self.mem, self.ptr, self.device_id = mem, mem.ptr + offset, mem.device_id
        self._offset = offset

    def __add__(self, offset):
        return MemoryPointer(self.mem, self._offset + offset)

    def __sub__(self, offset):
        return self + -offset

    def bytes(self, size):
        at = self.ptr - BASE
        assert 0 <= at <= at + size <= machine.memory.size
        return machine.memory[at : at + size]

    def copy_from_device_async(self, source, size, stream=None):
        a, b = self.bytes(size), source.bytes(size)
        issue(lambda: np.copyto(a, b.copy()), stream)

    def memset_async(self, value, size, stream=None):
        a = self.bytes(size)
        issue(lambda: a.fill(value), stream)

    def copy_from_host_async(self, address, size, stream=None):
        import ctypes

        _no_capture("H2D")
        self.bytes(size)[:] = np.frombuffer((ctypes.c_char * size).from_address(address), np.uint8)


def _malloc(size):
    return MemoryPointer(Memory(size), 0)


class _Chunk:
    def __init__(self, memory, at, size):
        self.memory, self.at, self.size = memory, at, size
        self.before = self.after = None
        self.free = False


class _Pooled:
    def __init__(self, chunk, pool, stream):
        self.chunk, self.pool, self.stream = chunk, pool, stream
        self.ptr, self.size, self.device_id = chunk.memory.ptr + chunk.at, chunk.size, 0

    def __del__(self):
        self.pool.back(self.chunk, self.stream)


class MemoryPool:
    """Best fit, split and merged, apart for each stream."""

    def __init__(self, allocator=None):
        self._allocator = allocator or _malloc
        self._arenas, self._limit, self._used, self._total = {}, 0, 0, 0
        self._pending = []  # freed meanwhile: garbage is collected anywhere

    def malloc(self, size):
        if not size:
            return MemoryPointer(Memory(0), 0)
        size = -(-size // UNIT) * UNIT
        self._take_back()
        stream = _current[0].ptr
        arena = self._arenas.setdefault(stream, [])
        fitting = [c for c in arena if c.size >= size]
        if fitting:
            chunk = min(fitting, key=lambda c: (c.size, c.memory.ptr + c.at))
            arena.remove(chunk)
            if chunk.size > size:
                rest = _Chunk(chunk.memory, chunk.at + size, chunk.size - size)
                rest.before, rest.after, rest.free = chunk, chunk.after, True
                if chunk.after:
                    chunk.after.before = rest
                chunk.after, chunk.size = rest, size
                arena.append(rest)
        else:
            chunk = _Chunk(self._fresh(size), 0, size)
        chunk.free = False
        self._used += chunk.size
        return MemoryPointer(_Pooled(chunk, self, stream), 0)

    def _fresh(self, size):
        for attempt in (1, 2, 3):
            if not self._limit or self._total + size <= self._limit:
                self._total += size
                try:
                    return self._allocator(size).mem
                except CUDARuntimeError as error:
                    self._total -= size
                    if error.status != 2:
                        raise
            if attempt < 3:
                self.free_all_blocks()
        raise OutOfMemoryError(size, self._total, self._limit)

    def back(self, chunk, stream):
        self._used -= chunk.size
        self._pending.append((chunk, stream))

    def _take_back(self):
        while self._pending:
            self._insert(*self._pending.pop())

    def _insert(self, chunk, stream):
        arena = self._arenas[stream]
        chunk.free = True
        while chunk.after and chunk.after.free:
            arena.remove(chunk.after)
            self._merge(chunk)
        while chunk.before and chunk.before.free:
            arena.remove(chunk.before)
            chunk = chunk.before
            self._merge(chunk)
        arena.append(chunk)

    @staticmethod
    def _merge(chunk):
        chunk.size += chunk.after.size
        chunk.after = chunk.after.after
        if chunk.after:
            chunk.after.before = chunk

    def free_all_blocks(self, stream=None):
        self._take_back()
        for arena in self._arenas.values():
            for chunk in [c for c in arena if not (c.before or c.after)]:
                arena.remove(chunk)
                self._total -= chunk.size

    def set_limit(self, size=0):
        self._limit = size

    def used_bytes(self):
        return self._used

    def total_bytes(self):
        return self._total

    def n_free_blocks(self):
        self._take_back()
        return sum(map(len, self._arenas.values()))


_allocator = [_malloc]


def set_allocator(allocator=None):
    _allocator[0] = allocator or _malloc


def get_allocator():
    return _allocator[0]


def alloc(size):
    return _allocator[0](size)


def alloc_pinned_memory(size):
    return bytearray(size)


class Stream:
    null = None
    _count = 0

    def __init__(self, null=False, non_blocking=False, priority=None):
        Stream._count += not null
        self.ptr, self.operations, self._before = 0 if null else Stream._count, None, []

    def use(self):
        _current[0] = self
        return self

    def __enter__(self):
        self._before.append(_current[0])
        return self.use()

    def __exit__(self, *_):
        _current[0] = self._before.pop()

    def begin_capture(self, mode=None):
        if self.ptr == 0:
            raise RuntimeError("cannot capture on the default (legacy) stream")
        self.operations = []

    def end_capture(self):
        found, self.operations = self.operations, None
        return graph.Graph(machine.spoil(found) if machine.spoil else found)

    def synchronize(self):
        _no_capture("a wait")

    done = True


Stream.null = Stream(null=True)
_current = [Stream.null]


def get_current_stream(device_id=-1):
    return _current[0]


def issue(work, stream=None):
    """A kernel."""
    stream = stream or _current[0]
    if stream.operations is not None:
        stream.operations.append(work)
    else:
        work()


def _no_capture(what):
    if _current[0].operations is not None:
        raise RuntimeError(f"the current stream is capturing, so {what} is disallowed")


class Graph:
    def __init__(self, operations):
        self.operations = operations

    def launch(self, stream=None):
        machine.launches += 1
        for work in self.operations:
            work()


class Event:
    done = True

    def __init__(self, *_, **__): ...

    def record(self, stream=None): ...

    def synchronize(self): ...


class Device:
    def __init__(self, number=0): ...

    def use(self): ...

    def synchronize(self):
        _no_capture("a wait")


class PinnedMemoryPool:
    def free_all_blocks(self): ...


graph = types.SimpleNamespace(Graph=Graph)
memory = types.SimpleNamespace(_malloc=_malloc, OutOfMemoryError=OutOfMemoryError)
compiler = types.SimpleNamespace(CompileException=type("CompileException", (Exception,), {}))
nccl = types.SimpleNamespace(available=False)
runtime = types.SimpleNamespace(
    CUDARuntimeError=CUDARuntimeError, streamCaptureModeThreadLocal=1, getDeviceCount=lambda: 1,
    deviceGetPCIBusId=lambda device: "0000:01:00.0",
    memGetInfo=lambda: (machine.card - machine.top, machine.card), driverGetVersion=lambda: 12080,
    runtimeGetVersion=lambda: 12080, deviceGetAttribute=lambda number, device: 0,
    getDeviceProperties=lambda device: {
        "name": b"a stand-in", "major": 9, "minor": 0, "totalGlobalMem": machine.card, "warpSize": 32,
        "multiProcessorCount": 1, "maxThreadsPerBlock": 1024, "computeMode": 0,
    },
)  # fmt: skip
