"""CUDA's own memory pools by handle: pools of the worker, under the integers that the runtime functions give programs.

A pool lives from ``memPoolCreate`` to ``memPoolDestroy`` on one device. Must not know how a pool counts.
"""

from __future__ import annotations

from typing import Any

from rgpu.client import follow
from rgpu.client import pool as devices
from rgpu.cuda import handles, memory, pools
from rgpu.cuda.errors import INVALID_VALUE, invalid

_TYPES = (1, 0, 1)  # pinned memory, to be handed to nobody, on a device: all that there is
_RESERVED, _USED = 5, 7  # cudaMemPoolAttr

_pools: dict[int, tuple[pools.MemoryPool, Any]] = {}  # by handle, with the command stream of its device


class MemPoolProps:
    """What a pool is to be: cudaMemAllocationType, cudaMemAllocationHandleType, cudaMemLocationType, device."""

    __module__ = "cupy_backends.cuda.api.runtime"

    def __init__(self, allocType: int, handleType: int, locationType: int, devId: int) -> None:  # noqa: N803
        self.allocType, self.handleType, self.locationType, self.devId = allocType, handleType, locationType, devId


def _find(pool: int) -> tuple[pools.MemoryPool, Any]:
    if pool not in _pools:
        raise invalid(INVALID_VALUE, f"{pool:#x} is no memory pool of this process, or it was destroyed")
    return _pools[pool]


def create(props: MemPoolProps) -> int:
    """A pool on a device; its handle. CUDARuntimeError for kinds of memory that no device of the pool has."""
    if (props.allocType, props.handleType, props.locationType) != _TYPES:
        raise invalid(INVALID_VALUE, "a memory pool here is of pinned memory (1), without handles (0), on a device (1)")
    found = devices.get().devices
    if not 0 <= props.devId < len(found):
        raise invalid(INVALID_VALUE, f"there is no device {props.devId}: the pool has {len(found)}")
    with found[props.devId]:
        pool, stream = pools.MemoryPool(), devices.current_stream()
        pointer = pool._on(stream).pointer
    _pools[pointer] = pool, stream
    return pointer


def destroy(pool: int) -> None:
    """Forget it; what was allocated of it stays."""
    _find(pool)
    del _pools[pool]


def allocate(size: int, pool: int, stream: int) -> memory.MemoryAsync:
    """Memory of a pool, in the order of a stream of its device."""
    found, commands = _find(pool)
    _, held = handles.stream(stream)
    taken = memory.MemoryAsync.__new__(memory.MemoryAsync)
    with commands.device, follow.on(commands, handles.handle_of(held)):
        taken._take(size, found._handle(commands))
    return taken


def trim(pool: int, size: int) -> None:
    """Give back what is not used, if it holds more than ``size`` bytes."""
    found, commands = _find(pool)
    with commands.device:
        if found.total_bytes() > size:
            found.free_all_blocks()


def attribute(pool: int, which: int) -> int:
    """cudaMemPoolAttrReservedMemCurrent (5) or cudaMemPoolAttrUsedMemCurrent (7), in bytes."""
    found, commands = _find(pool)
    with commands.device:
        if which == _RESERVED:
            return found.total_bytes()
        if which == _USED:
            return found.used_bytes()
    raise NotImplementedError(f"memPoolGetAttribute has attributes {_RESERVED} and {_USED} here, not {which}")
