"""CuPy's cache of cuFFT plans, as a record: which plans CuPy would keep, under which key.

No plan is kept in this process: the device's own library plans. What a program sees (`get_plan_cache()`) is what it
would see with CuPy: one cache for each thread and device, the plans used longest ago make room, and a transform whose
plan is in it counts as a hit.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from rgpu.client import pool as devices

_local = threading.local()


class Node:
    """One kept plan and its key; ``gpus`` as in the plan."""

    __slots__ = ("gpus", "key", "memsize", "plan")

    def __init__(self, key: tuple, plan: Any, device: int) -> None:
        self.key, self.plan, self.gpus = key, plan, plan.gpus
        self.memsize = _memory(plan, device)

    def __repr__(self) -> str:
        kind = type(self.plan).__name__ + (" (static)" if getattr(self.plan, "static", False) else "")
        return f"key: {self.key}, plan type: {kind}, memory usage: {self.memsize}"


def _memory(plan: Any, device: int) -> int:
    """The figure for the plan's work area on this device."""
    area = plan.work_area
    if plan.gpus is not None and area is not None:
        area = area[plan.gpus.index(device)]
    return 0 if area is None else area.mem.size


class PlanCache:
    """The plans that CuPy would have cached in this thread for one device, by key; iteration starts at the latest.

    ``size``: at most so many plans (-1: any number, 0: none). ``memsize``: at most so many bytes of their work areas
    (-1: any number, 0: none). The bytes are an estimate on every device, also on cpu devices, which allocate nothing
    for a plan: the transform's complex values, in units of 512 (some versions of cuFFT need less). RuntimeError from
    a transform whose plan alone is larger than ``memsize``; ValueError for limits below -1.

    Transforms inside of functions of other modules (``cupyx.scipy.signal.fftconvolve``) do not show.
    """

    __module__ = "cupy.fft._cache"

    def __init__(self, size: int = 16, memsize: int = -1, dev: int = -1) -> None:
        self._limit(size, memsize)
        self._device = devices.current().ordinal if dev == -1 else dev
        self.clear()

    # ---- a mapping from keys to plans ----

    def __getitem__(self, key: tuple) -> Any:
        """The plan, now the latest; KeyError if there is none, None if the cache is off."""
        if not self._enabled:
            return None
        node = self._nodes.get(key)
        if node is None:
            self._misses += 1
            raise KeyError(f"plan not found for key: {key}")
        self._hits += 1
        for cache in self._sharing(node.gpus):
            if key in cache._nodes:
                cache._nodes.move_to_end(key)
        return node.plan

    def get(self, key: tuple, default: Any = None) -> Any:
        try:
            plan = self[key]
        except KeyError:
            return default
        return default if plan is None else plan

    def __setitem__(self, key: tuple, plan: Any) -> None:
        if not self._enabled:
            return
        caches = self._sharing(plan.gpus)
        for cache in caches:  # nothing changes unless it fits everywhere
            if _memory(plan, cache._device) > cache._memsize > 0:
                where = "" if plan.gpus is None else f" for device {cache._device}"
                raise RuntimeError(f"the plan memsize is too large{where}")
        for cache in caches:
            node = Node(key, plan, cache._device)
            cache._forget(key)
            cache._make_room(cache._size - 1, cache._memsize - node.memsize)
            cache._nodes[key] = node
            cache._used += node.memsize

    def __delitem__(self, key: tuple) -> None:
        if not self._enabled:
            return
        node = self._nodes.get(key)
        if node is None:
            self._misses += 1
            raise KeyError(f"plan not found for key: {key}")
        self._hits += 1
        self._remove(node)

    def __iter__(self) -> Iterator[tuple[tuple, Node]]:
        """(key, node) from the latest on, in the order of each step: a plan may become the latest meanwhile."""
        keys = list(self._nodes)
        place = len(keys)
        while place > 0:
            key = keys[place - 1]
            yield key, self._nodes[key]
            keys = list(self._nodes)
            place = keys.index(key) if key in self._nodes else 0

    def __repr__(self) -> str:
        most, bytes_most = ("(unlimited)" if n == -1 else n for n in (self._size, self._memsize))
        lines = [
            _title(self._device),
            f"cache enabled? {self._enabled}",
            f"current / max size   : {len(self._nodes)} / {most} (counts)",
            f"current / max memsize: {self._used} / {bytes_most} (bytes)",
            f"hits / misses: {self._hits} / {self._misses} (counts)",
            "",
            "cached plans (most recently used first):",
            *(repr(node) for node in reversed(self._nodes.values())),
        ]
        return "\n".join(lines) + "\n"

    # ---- limits ----

    def get_size(self) -> int:
        return self._size

    def set_size(self, size: int) -> None:
        self._limit(size, self._memsize)
        self._make_room(size, self._memsize)

    def get_memsize(self) -> int:
        return self._memsize

    def set_memsize(self, memsize: int) -> None:
        self._limit(self._size, memsize)
        self._make_room(self._size, memsize)

    def get_curr_size(self) -> int:
        return len(self._nodes)

    def get_curr_memsize(self) -> int:
        return self._used

    def clear(self) -> None:
        """Forget the plans, and the hits and misses."""
        self._nodes: OrderedDict[tuple, Node] = OrderedDict()  # the latest is last
        self._used = self._hits = self._misses = 0

    def show_info(self) -> None:
        print(self)

    def _limit(self, size: int, memsize: int) -> None:
        if size < -1 or memsize < -1:
            raise ValueError("a limit is a number of plans or bytes, or -1 for any number")
        self._size, self._memsize, self._enabled = size, memsize, size != 0 and memsize != 0

    def _make_room(self, size: int, memsize: int) -> None:
        """Drop what was used longest ago, down to so many plans and bytes, where there is a limit."""
        while self._nodes and (
            (self._size != -1 and len(self._nodes) > size) or (self._memsize != -1 and self._used > memsize)
        ):
            self._remove(next(iter(self._nodes.values())))

    def _remove(self, node: Node) -> None:
        """Forget a plan everywhere: it is of no use with one of its devices missing."""
        self._forget(node.key)
        for cache in self._sharing(node.gpus):
            cache._forget(node.key)

    def _forget(self, key: tuple) -> None:
        node = self._nodes.pop(key, None)
        if node is not None:
            self._used -= node.memsize

    def _sharing(self, gpus: Any) -> list[PlanCache]:
        """The caches of a plan: one for each of its devices."""
        return [self] if gpus is None else [plan_cache(device) for device in gpus]


def _title(device: int) -> str:
    return f"------------------- cuFFT plan cache (device {device}) -------------------"


def _caches() -> dict[int, PlanCache]:
    """This thread's caches by device."""
    try:
        return _local.caches
    except AttributeError:
        _local.caches = {}
        return _local.caches


def plan_cache(device: int) -> PlanCache:
    """This thread's cache of a device; made when it is first asked for."""
    found = _caches().get(device)
    if found is None:
        found = _caches()[device] = PlanCache(dev=device)
    return found


def get_plan_cache() -> PlanCache:
    """This thread's cache of the current device."""
    return plan_cache(devices.current().ordinal)


def show_plan_cache_info() -> None:
    """Print this thread's caches of all devices."""
    print("=============== cuFFT plan cache info (all devices) ===============")
    found = _caches()
    for device in range(len(devices.get().devices)):
        if device in found:
            found[device].show_info()
        else:
            print(f"{_title(device)}\n(uninitialized)\n")
