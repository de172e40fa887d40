"""``cupy.cuda.memory_hook``: objects that are told of allocations while they are active in a thread.

Arrays are counted where they are named, on the client; whether a pool took memory from its device for one is asked of
the worker, so that a program with hooks waits at each allocation.
"""

from __future__ import annotations

from typing import Any

from rgpu import surface
from rgpu.cuda import allocations, pools


def get_memory_hooks() -> dict[str, Any]:
    """The hooks that are active in this thread, by name, the first first."""
    return allocations.hooks()


class MemoryHook:
    """Base of hooks: ``with hook:`` has its methods called, all with keywords, by whatever the thread allocates.

    ``malloc_*`` go around taking memory out of a pool, ``alloc_*``, inside of them, around what the pool takes from
    the device for that, ``free_*`` around giving memory back to the pool. A pool on the worker says afterwards
    whether it grew, so that both ``alloc_*`` come then. One hook of each ``name``: KeyError for a second.
    """

    __module__ = "cupy.cuda.memory_hook"
    name = "MemoryHook"

    def __enter__(self) -> Any:
        active = allocations.hooks()
        if self.name in active:
            raise KeyError(f"memory hook {self.name} already exists")
        pools.look_at_all()
        allocations.watch(1)
        active[self.name] = self
        return self

    def __exit__(self, *_: Any) -> None:
        del allocations.hooks()[self.name]
        allocations.watch(-1)

    def alloc_preprocess(self, **kwargs: Any) -> None:
        """``device_id``, ``mem_size`` (bytes that are taken from the device)."""

    def alloc_postprocess(self, **kwargs: Any) -> None:
        """``device_id``, ``mem_size``, ``mem_ptr``."""

    def malloc_preprocess(self, **kwargs: Any) -> None:
        """``device_id``, ``size`` (bytes that were asked for), ``mem_size`` (the same in whole units of the pool)."""

    def malloc_postprocess(self, **kwargs: Any) -> None:
        """``device_id``, ``size``, ``mem_size``, ``mem_ptr``, ``pmem_id`` (the same number as in ``free_*``)."""

    def free_preprocess(self, **kwargs: Any) -> None:
        """``device_id``, ``mem_size``, ``mem_ptr``, ``pmem_id``."""

    def free_postprocess(self, **kwargs: Any) -> None:
        """``device_id``, ``mem_size``, ``mem_ptr``, ``pmem_id``."""


__getattr__, __dir__ = surface.face(__name__)
