"""Which of several equally used devices are best connected with each other, from what their workers have measured.

Workers measure the links to those of other hosts (a communicator at its first use, ``rgpu-smi topo -b``), their servers
remember it and tell it with what they say of each device. Pure; believes nobody: a wrong figure costs speed only.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

MESSAGE = 1 << 20  # bytes of the message whose time is the distance of two hosts
UNKNOWN = 1e-3 + MESSAGE / 1e9  # seconds, of hosts that nobody measured: an ordinary network
HOSTS = 64  # that a server remembers
TOLD = 32  # of them that it tells the registry, which every client reads whole
_TRIED = 16  # hosts to begin at where no single one has enough


class Reach:
    """What the workers of one server measured: other host -> [seconds of a round trip, bytes a second], the latest."""

    def __init__(self) -> None:
        self.hosts: OrderedDict[str, list[float]] = OrderedDict()
        self._outline: dict[str, list[float]] = {}

    def notice(self, told: Any) -> None:
        """Of a worker, which may say anything."""
        for host, figures in told.items() if isinstance(told, dict) else ():
            if _seconds(figures) is not None and isinstance(host, str) and len(host) <= 64:
                self.hosts[host] = [float(figure) for figure in figures]
                self.hosts.move_to_end(host)
        while len(self.hosts) > HOSTS:
            self.hosts.popitem(last=False)

    def outline(self) -> dict[str, list[float]]:
        """For the registry: TOLD hosts with two digits of each figure. What was told stays while it is about right, so
        that measuring again does not make everybody read again."""
        before = [host for host in self._outline if host in self.hosts]
        told = [*before, *(host for host in reversed(self.hosts) if host not in self._outline)][:TOLD]
        self._outline = {host: _about(self.hosts[host], self._outline.get(host)) for host in told}
        return self._outline


def _seconds(figures: Any) -> float | None:
    """Half a round trip and the time of MESSAGE bytes; None for what is no measurement."""
    if not isinstance(figures, (list, tuple)) or len(figures) != 2 or {type(one) for one in figures} - {int, float}:
        return None
    trip, bandwidth = figures
    return trip / 2 + MESSAGE / bandwidth if 0 <= trip < math.inf and 0 < bandwidth < math.inf else None


def _about(figures: Sequence[float], before: list[float] | None) -> list[float]:
    if before is not None and all(0.8 * one <= old <= 1.25 * one for one, old in zip(figures, before)):
        return before
    return [float(f"{figure:.2g}") for figure in figures]


def _host(facts: Mapping[str, Any], server: str) -> str:
    return str(facts.get("host_id") or server)


def _distance(one: Mapping[str, Any], host: str, other: Mapping[str, Any], its: str) -> float:
    """Seconds of a message between two hosts, by what either has measured."""
    told = [_seconds((facts.get("reach") or {}).get(name)) for facts, name in ((one, its), (other, host))]
    return max((seconds for seconds in told if seconds is not None), default=UNKNOWN)


def nearest(rooms: Sequence[Any], taken: Sequence[int], free: Sequence[int], count: int) -> list[int]:
    """``count`` of the positions ``free``, given in the order to prefer otherwise, that with ``taken`` are on few hosts
    close to each other: those of what is taken, one that has all, else one and those nearest to it."""
    by_host: dict[str, list[int]] = {}
    for position in free:
        by_host.setdefault(_host(rooms[position].facts, rooms[position].server), []).append(position)
    begun = [_host(rooms[position].facts, rooms[position].server) for position in taken]
    facts = {host: rooms[here[0]].facts for host, here in by_host.items()}
    facts |= {host: rooms[position].facts for host, position in zip(begun, taken)}

    def from_one(first: str) -> tuple[int, float, list[int]]:
        """(hosts, the farthest, positions) beginning at a host; of equally distant ones those with the most."""
        def away(host: str) -> float:
            return 0.0 if host == first or host in begun else _distance(facts[first], first, facts[host], host)

        found: list[int] = []
        used, farthest = 0, 0.0
        for host in sorted(by_host, key=lambda host: (away(host), host != first, -len(by_host[host]))):
            if len(found) == count:
                break
            found += by_host[host][: count - len(found)]
            used, farthest = used + 1, max(farthest, away(host))
        return used, farthest, found

    if not begun and (whole := next((here for here in by_host.values() if len(here) >= count), None)):
        return whole[:count]
    starts = list(dict.fromkeys(begun)) or heapq.nsmallest(_TRIED, by_host, key=lambda host: -len(by_host[host]))
    return min(map(from_one, starts), key=lambda one: one[:2])[2]


Loads = Callable[[int], tuple]


def least_used(rooms: Sequence[Any], free: Sequence[int], count: int, used: Loads, prefer: Loads) -> list[int]:
    """``count`` of the positions ``free``: whatever is less ``used`` than the last of them must be, and of what is as
    used as that one the best connected; ``prefer`` orders what is alike in both."""
    ordered = sorted(free, key=lambda position: (used(position), prefer(position)))
    level = used(ordered[count - 1])
    taken = [position for position in ordered[:count] if used(position) < level]
    alike = [position for position in ordered if used(position) == level]
    return sorted([*taken, *nearest(rooms, taken, alike, count - len(taken))])
