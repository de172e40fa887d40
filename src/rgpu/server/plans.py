"""What a segment does with memory, as seen once: which allocation becomes which array, and how long each one is needed.

Pure bookkeeping. Memory that outlives the segment is taken before it; everything else has a place in one block of
scratch memory, so that a graph may write there again and again.
"""

from __future__ import annotations

from typing import NamedTuple

from rgpu.server.segments import Ref, Segment
from rgpu.server.table import UNIT, charged


class Allocation(NamedTuple):
    """One request, seen at step ``n``, and the address it was given."""

    n: int
    size: int
    address: int


class Birth(NamedTuple):
    """An array that step ``n`` entered under a handle."""

    n: int
    ref: Ref
    handle: int
    address: int
    nbytes: int
    layout: tuple  # shape, dtype, strides


class Make(NamedTuple):
    """After a launch: an array over the ``out``-th memory, ``offset`` bytes from its beginning."""

    ref: Ref
    out: int
    offset: int
    nbytes: int
    layout: tuple


class Plan(NamedTuple):
    """``serves``: by step, what each allocation gets: (size, out, offset in the block (out < 0), last step).
    ``outs``: sizes of what outlives. ``effects``: what the table hears of, a Make or the number of a step to run.
    ``total``: bytes of the block. ``peak``: bytes that arrays count for at most."""

    serves: list[list[tuple[int, int, int, int]]]
    outs: list[int]
    effects: list[Make | int]
    total: int
    peak: int


def arranged(wanted: list[tuple[int, int, int]]) -> tuple[list[int], int]:
    """Offsets in one block for (size, first step, last step) in the order of their beginnings, and the block's size:
    each in the first gap among those that are needed at the same time."""
    placed: list[tuple[int, int, int]] = []  # offset, end, last
    offsets, total = [], 0
    for size, first, last in wanted:
        size = -(-size // UNIT) * UNIT
        placed = sorted(x for x in placed if x[2] >= first)
        at = 0
        for begin, end, _ in placed:
            if begin - at >= size:
                break
            at = max(at, end)
        placed.append((at, at + size, last))
        offsets.append(at)
        total = max(total, at + size)
    return offsets, total


def plan(segment: Segment, numbers: dict[Ref, int], allocations: list[Allocation], births: list[Birth]) -> Plan | str:
    """What happened, as a plan for the next time; or why there can be none."""
    end = len(segment.steps)
    last = [a.n for a in allocations]  # of what no array was made of: its own step
    home: dict[int, int | None] = {}  # handle -> its allocation; None: memory from before
    holders: dict[int, set[int]] = {}
    roots: dict[int, int] = {}
    newborn = {(b.n, b.handle): b for b in births}
    used = peak = 0
    sizes: dict[int, int] = {}
    for n, step in enumerate(segment.steps):
        for ref in step.made:
            handle = numbers[ref]
            born = newborn.get((n, handle))
            if born is None or not born.nbytes or handle in home:
                return "a result that is no array with memory of its own"
            if step.view:
                roots[handle] = root = numbers[step.reads[0]]
                home[handle] = found = home.get(root)
            else:
                found = _allocation(allocations, born)
                if found is None:
                    return "a result whose memory nobody asked for"
                home[handle] = found
                sizes[found] = sizes.get(found, 0) + charged(born.nbytes)
                used += charged(born.nbytes)
                peak = max(peak, used)
            if found is not None:
                holders.setdefault(found, set()).add(handle)
                last[found] = end
        for ref in step.freed:
            found = home.get(numbers[ref])
            if found is not None and numbers[ref] in holders[found]:
                holders[found].discard(numbers[ref])
                if not holders[found]:
                    last[found] = n
                    used -= sizes.get(found, 0)
    kept = [k for k in range(len(allocations)) if last[k] == end]
    scratch = [k for k in range(len(allocations)) if last[k] < end]
    offsets, total = arranged([(allocations[k].size, allocations[k].n, last[k]) for k in scratch])
    place = {k: (out, 0) for out, k in enumerate(kept)} | {k: (-1, at) for k, at in zip(scratch, offsets)}
    serves: list[list[tuple[int, int, int, int]]] = [[] for _ in segment.steps]
    for k, a in enumerate(allocations):
        serves[a.n].append((a.size, *place[k], last[k]))
    alive = _alive(segment, numbers)
    alive |= {roots[handle] for handle in alive if handle in roots}
    effects: list[Make | int] = []
    for n, step in enumerate(segment.steps):
        if step.freed or (step.view and numbers[step.made[0]] in alive):
            effects.append(n)
        elif not step.view:
            for ref in step.made:
                born, found = newborn[n, numbers[ref]], home[numbers[ref]]
                if born.handle in alive and found is not None:
                    offset = born.address - allocations[found].address
                    effects.append(Make(ref, place[found][0], offset, born.nbytes, born.layout))
    return Plan(serves, [allocations[k].size for k in kept], effects, total, peak)


def _allocation(allocations: list[Allocation], born: Birth) -> int | None:
    """The one that an array has its memory of: the latest there, for what was there before is free again."""
    for k in range(len(allocations) - 1, -1, -1):
        a = allocations[k]
        if a.n == born.n and a.address <= born.address and born.address + born.nbytes <= a.address + a.size:
            return k
    return None


def _alive(segment: Segment, numbers: dict[Ref, int]) -> set[int]:
    """Handles that were made and not freed."""
    alive: set[int] = set()
    for step in segment.steps:
        alive.update(numbers[ref] for ref in step.made)
        alive.difference_update(numbers[ref] for ref in step.freed)
    return alive
