"""The order of those who wait for devices: first in, first out for each user, and users by weighted fair share.

A user's share is the larger of the parts of all memory and all compute that the user holds (dominant resource
fairness), divided by the user's weight: whoever holds least is next. Nobody passes another who waits for the
same devices, so large requests do not starve. Pure; the clock is the caller's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from typing import Any, TypeVar

T = TypeVar("T")

SMALL = 1 / 64  # what a device counts for its user who asked for no share of it


@dataclass(frozen=True)
class Waiting:
    """One request in the queue. ``order`` grows with each arrival, ``item`` is the asker's own."""

    ticket: bytes
    user: str
    order: int
    item: Any = None


def worth(parts: Mapping[int, int], totals: Sequence[int], compute: float) -> float:
    """The devices' worth of a lease: of each part, the larger of memory and compute."""
    return sum(
        max(memory / max(1, totals[device]), compute, SMALL) for device, memory in parts.items() if device < len(totals)
    )


def in_order(waiting: Iterable[Waiting], held: Mapping[str, float], weight: Callable[[str], float]) -> list[Waiting]:
    """Who is next, from the first to the last. ``held``: the dominant share each user holds now.

    Each one that is placed counts as one more device of its user, so that users alternate by weight.
    """
    lines: dict[str, deque[Waiting]] = {}
    for one in sorted(waiting, key=lambda w: w.order):
        lines.setdefault(one.user, deque()).append(one)
    owed = {user: held.get(user, 0.0) for user in lines}
    turns = [(owed[user] / weight(user), line[0].order, user) for user, line in lines.items()]
    heapify(turns)
    result = []
    while turns:
        _, _, user = turns[0]
        line = lines[user]
        result.append(line.popleft())
        owed[user] += 1.0
        if line:
            heapreplace(turns, (owed[user] / weight(user), line[0].order, user))
        else:
            heappop(turns)
    return result


def grant_in_order(
    ordered: Iterable[Waiting], wanted: Callable[[Waiting], set[T]], grant: Callable[[Waiting], bool]
) -> list[Waiting]:
    """Try ``grant`` on each in turn, but on nobody whose devices somebody ahead still waits for. Who was granted."""
    taken: set[T] = set()
    granted = []
    for one in ordered:
        mine = wanted(one)
        if not mine & taken and grant(one):
            granted.append(one)
        else:
            taken |= mine
    return granted
