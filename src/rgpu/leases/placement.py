"""Which devices a lease gets: filters, room, and the placement asked for. All of them or none.

Works on what is known of the devices, whether they are one server's or a whole pool's, and keeps no state.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rgpu.errors import NoSuchDevice, ServerBusy
from rgpu.leases.nearness import least_used
from rgpu.leases.terms import Terms, show_bytes

_EPSILON = 1e-9  # shares are sums of decimal fractions
_BUSY = 50  # per cent, from which a device without sessions counts as used by somebody else


@dataclass(frozen=True)
class Room:
    """What one device has left. ``server`` tells devices of one host from others; ``facts`` are for filters;
    ``lendable`` is what may be lent in all, where that is not what the device has."""

    server: str
    memory_total: int
    memory_free: int
    compute_free: float = 1.0
    sessions: int = 0
    utilization: float = 0.0
    open: bool = True  # takes another session
    facts: Mapping[str, Any] = field(default_factory=dict)
    lendable: int = 0

    def takes(self, terms: Terms) -> bool:
        # Who asks for no part may come at any time: what others hold now may be free when it is needed.
        enough = self.memory_free >= terms.memory_of(self.memory_total)
        return self.open and enough and self.compute_free >= terms.compute - _EPSILON

    def could_take(self, terms: Terms) -> bool:
        """Whether it would when empty."""
        return (self.lendable or self.memory_total) >= terms.memory_of(self.memory_total)


def candidates(rooms: Sequence[Room], terms: Terms) -> list[int]:
    """The positions of the devices that could serve these terms if nobody else used them.

    Raises NoSuchDevice when there can never be enough.
    """
    wanted = terms.devices or range(len(rooms))
    if missing := [position for position in wanted if not 0 <= position < len(rooms)]:
        have = "device 0 only" if len(rooms) == 1 else f"devices 0 to {len(rooms) - 1}"
        raise NoSuchDevice(f"there is no device {missing[0]} on this server; it has {have}")
    fitting = [p for p in wanted if all(f.fits(rooms[p].facts) for f in terms.filters)]
    if len(fitting) < terms.count:
        what = f" that fit {', '.join(map(str, terms.filters))}" if terms.filters else ""
        raise NoSuchDevice(f"{terms.count} devices{what} are asked for, and there are {len(fitting)}; see 'rgpu list'")
    able = [p for p in fitting if rooms[p].could_take(terms)]
    if len(able) < terms.count:
        largest = max(rooms[p].lendable or rooms[p].memory_total for p in fitting)
        raise NoSuchDevice(
            f"{show_bytes(terms.memory)} of each of {terms.count} devices are asked for; {len(able)} have so much, "
            f"the largest has {show_bytes(largest)}"
        )
    if terms.placement == "same-host":
        servers = [rooms[p].server for p in able]
        able = [p for p in able if servers.count(rooms[p].server) >= terms.count]
        if not able:
            raise NoSuchDevice(f"no single server has {terms.count} devices that fit")
    return able


def choose(rooms: Sequence[Room], terms: Terms, ties: Sequence[float] = ()) -> list[int]:
    """The positions of the devices to lease, in order; ``ties`` decide between devices that are equally good.

    Raises NoSuchDevice when they can never be given, ServerBusy when they cannot be given now.
    """
    able = candidates(rooms, terms)
    free = [position for position in able if rooms[position].takes(terms)]
    if terms.placement == "same-host":
        servers = {rooms[p].server: [q for q in free if rooms[q].server == rooms[p].server] for p in free}
        enough = [group for group in servers.values() if len(group) >= terms.count]
        free = min(enough, key=len) if enough else []
    if len(free) < terms.count:
        raise ServerBusy(_why_full(rooms, able, terms, len(free)))
    if terms.devices and len(free) == terms.count:
        return free  # in the order in which they were named
    sign = -1 if terms.placement == "binpack" else 1

    def load(position: int) -> tuple:
        room = rooms[position]
        tie = ties[position] if ties else 0.0
        return (sign * room.sessions, sign * room.utilization, -sign * room.memory_free, tie, position)

    if terms.placement == "spread" and terms.count > 1:
        # The least used ones, as ever; which of those that are alike, their way to each other decides.
        return least_used(rooms, free, terms.count, lambda p: (rooms[p].sessions, rooms[p].utilization >= _BUSY), load)
    return sorted(heapq.nsmallest(terms.count, free, key=load))


def _why_full(rooms: Sequence[Room], able: list[int], terms: Terms, free: int) -> str:
    def left(position: int) -> str:
        room = rooms[position]
        if not room.open and room.facts.get("draining"):
            return f"device {position} is of a server that is being drained"
        if not room.open:
            return f"device {position} already serves {room.sessions} sessions, the most it may"
        return f"device {position} has {show_bytes(room.memory_free)} and {room.compute_free:.0%} of its compute left"

    return (
        f"{terms} asked for, and {free or 'none'} can be had now: {'; '.join(map(left, able[:4]))}. "
        "Wait for them (--wait-for), ask for less, or use another server"
    )
