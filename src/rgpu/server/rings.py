"""How collectives move data: rings, trees and a hierarchy of rings, over nothing but send and receive.

A ``world`` has ``rank``, ``send(peer, array)``, which never waits, and ``receive(peer, array)``; arrays are flat.
Long arrays go in pieces, and each piece is passed on as soon as it is there, so that every link is busy all the
time; nobody sends more than LEAD pieces ahead of what it receives, so that nothing fills up. ``Costs`` decides
between the ways, from what was measured. Knows no sockets, no devices, no streams.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

PIECE = 1 << 20  # bytes that are passed on as one; more delays the next rank, less costs more messages
LEAST = 128 << 10
LEAD = 16  # pieces: more than any link holds under way, far less than a peer may leave waiting

Operator = Callable[..., Any]


class Costs(NamedTuple):
    """Seconds a message and seconds a byte, between ranks of one host and of two."""

    alpha_near: float = 60e-6
    beta_near: float = 1 / 2e9
    alpha_far: float = 120e-6
    beta_far: float = 1 / 1e9


def pieces(start: int, stop: int, itemsize: int) -> Iterator[tuple[int, int]]:
    """A range of elements in parts of LEAST to PIECE bytes, four at least where it is long enough."""
    nbytes = (stop - start) * itemsize
    step = max(1, min(PIECE, max(LEAST, nbytes // 4)) // itemsize)
    for first in range(start, stop, step):
        yield first, min(first + step, stop)


def shares(size: int, n: int) -> list[int]:
    """Where each of n nearly equal parts begins, and the end."""
    return [size * i // n for i in range(n + 1)]


class _Ring:
    """The neighbours of one rank in a ring of ranks; what is to be sent waits for what is received."""

    def __init__(self, world: Any, ranks: Sequence[int]) -> None:
        self.world, self.n, self.me = world, len(ranks), ranks.index(world.rank)
        self.next, self.previous = ranks[(self.me + 1) % self.n], ranks[(self.me - 1) % self.n]
        self._waiting: deque[np.ndarray] = deque()
        self._ahead = 0  # pieces sent and not made up for by received ones

    def send(self, x: np.ndarray) -> None:
        """In order, now or after another piece was received."""
        self._waiting.append(x)
        while self._waiting and self._ahead < LEAD:
            self._send_one()

    def receive(self, x: np.ndarray) -> None:
        self.world.receive(self.previous, x)
        self._ahead -= 1
        if self._waiting:
            self._send_one()

    def flush(self) -> None:
        while self._waiting:
            self._send_one()

    def _send_one(self) -> None:
        self.world.send(self.next, self._waiting.popleft())
        self._ahead += 1


def _scatter(ring: _Ring, x: np.ndarray, bounds: list[int], op: Operator, go_on: bool) -> None:
    """In place: afterwards the share of this rank's place is complete (and, with ``go_on``, on its way)."""
    n, me = ring.n, ring.me
    first = (me - 1) % n
    for a, b in pieces(bounds[first], bounds[first + 1], x.itemsize):
        ring.send(x[a:b])
    scratch = np.empty(max(1, PIECE // x.itemsize), x.dtype)
    for step in range(1, n):
        share = (me - 1 - step) % n
        for a, b in pieces(bounds[share], bounds[share + 1], x.itemsize):
            other = scratch[: b - a]
            ring.receive(other)
            op(x[a:b], other, out=x[a:b])
            if step < n - 1 or go_on:
                ring.send(x[a:b])
    if not go_on:
        ring.flush()


def _gather(ring: _Ring, x: np.ndarray, bounds: list[int], started: bool) -> None:
    """In place: each rank's share to all."""
    n, me = ring.n, ring.me
    if not started:
        for a, b in pieces(bounds[me], bounds[me + 1], x.itemsize):
            ring.send(x[a:b])
    for step in range(n - 1):
        share = (me - 1 - step) % n
        for a, b in pieces(bounds[share], bounds[share + 1], x.itemsize):
            ring.receive(x[a:b])
            if step < n - 2:
                ring.send(x[a:b])
    ring.flush()


def ring_all_reduce(world: Any, ranks: Sequence[int], x: np.ndarray, op: Operator) -> None:
    """2 (n - 1) / n of the data through each link; the latency of 2 (n - 1) messages."""
    if len(ranks) > 1:
        ring, bounds = _Ring(world, ranks), shares(x.size, len(ranks))
        _scatter(ring, x, bounds, op, go_on=True)
        _gather(ring, x, bounds, started=True)


def doubling_all_reduce(world: Any, ranks: Sequence[int], x: np.ndarray, op: Operator) -> None:
    """A tree, all of whose nodes are busy: log2(n) messages of all the data. For small data."""
    n, me = len(ranks), ranks.index(world.rank)
    power = 1 << (n.bit_length() - 1)
    other = np.empty_like(x)
    if me >= power:  # those beyond a power of two lend their data to a partner, and get the result
        world.send(ranks[me - power], x)
        world.receive(ranks[me - power], x)
        return
    if me + power < n:
        world.receive(ranks[me + power], other)
        op(x, other, out=x)
    distance = 1
    while distance < power:
        pair = _Ring(world, [world.rank, ranks[me ^ distance]])
        for a, b in pieces(0, x.size, x.itemsize):
            pair.send(x[a:b])
        for a, b in pieces(0, x.size, x.itemsize):  # what is received was sent before, so x may change
            pair.receive(other[a:b])
            op(x[a:b], other[a:b], out=x[a:b])
        distance *= 2
    if me + power < n:
        world.send(ranks[me + power], x)


def hierarchical_all_reduce(world: Any, hosts: Sequence[Sequence[int]], x: np.ndarray, op: Operator) -> None:
    """Within each host a share for every rank, these shares between the hosts, and back: what crosses from
    host to host is 2 (h - 1) / h of the data, however many ranks a host has. Hosts of equal size."""
    near = next(ranks for ranks in hosts if world.rank in ranks)
    ring, bounds = _Ring(world, near), shares(x.size, len(near))
    if ring.n > 1:
        _scatter(ring, x, bounds, op, go_on=False)
    place = ring.me
    ring_all_reduce(world, [ranks[place] for ranks in hosts], x[bounds[place] : bounds[place + 1]], op)
    if ring.n > 1:
        _gather(ring, x, bounds, started=False)


def by_host(names: Sequence[str]) -> list[list[int]]:
    """The ranks of each host, in order of the hosts' first ranks."""
    found: dict[str, list[int]] = {}
    for rank, name in enumerate(names):
        found.setdefault(name, []).append(rank)
    return list(found.values())


def expected(costs: Costs, sizes: Sequence[int], nbytes: int) -> dict[str, float]:
    """Seconds that each way of an all-reduce should take on hosts with so many ranks each."""
    n, h, g = sum(sizes), len(sizes), max(sizes)
    if n == 1:
        return {"ring": 0.0}
    alpha, beta = (costs.alpha_far, costs.beta_far) if h > 1 else (costs.alpha_near, costs.beta_near)
    near, far = (g - 1).bit_length(), (h - 1).bit_length()
    found = {
        "ring": 2 * (n - 1) * alpha + 2 * (n - 1) / n * nbytes * beta,
        "tree": near * (costs.alpha_near + nbytes * costs.beta_near)
        + far * (costs.alpha_far + g * nbytes * costs.beta_far),
    }
    if h > 1 and g > 1 and min(sizes) == g:
        found["hierarchy"] = (
            2 * (g - 1) * costs.alpha_near
            + 2 * (g - 1) / g * nbytes * costs.beta_near
            + 2 * (h - 1) * costs.alpha_far
            + 2 * (h - 1) / h * nbytes * costs.beta_far
        )
    return found


def all_reduce(world: Any, names: Sequence[str], costs: Costs, x: np.ndarray, op: Operator) -> str:
    """In place, the way that should be the fastest; which one it was."""
    hosts = by_host(names)
    ways = expected(costs, [len(ranks) for ranks in hosts], x.nbytes)
    way = min(ways, key=ways.__getitem__)
    order = [rank for ranks in hosts for rank in ranks]  # the ring crosses between hosts as seldom as can be
    if way == "hierarchy":
        hierarchical_all_reduce(world, hosts, x, op)
    else:
        (ring_all_reduce if way == "ring" else doubling_all_reduce)(world, order, x, op)
    return way


def broadcast(world: Any, ranks: Sequence[int], root: int, x: np.ndarray, small: bool) -> None:
    """From ``root`` to all: along a chain in pieces, or down a binomial tree when it is ``small``."""
    n = len(ranks)
    start = ranks.index(root)
    line = [ranks[(start + i) % n] for i in range(n)]
    me = line.index(world.rank)
    if small:
        distance = 1 << max(0, (n - 1).bit_length() - 1)
        if me:
            low = me & -me
            world.receive(line[me - low], x)
            distance = low >> 1
        while distance:
            if me + distance < n:
                world.send(line[me + distance], x)
            distance >>= 1
        return
    for a, b in pieces(0, x.size, x.itemsize):
        if me:
            world.receive(line[me - 1], x[a:b])
        if me < n - 1:
            world.send(line[me + 1], x[a:b])


def reduce(world: Any, ranks: Sequence[int], root: int, x: np.ndarray, op: Operator, small: bool) -> None:
    """To ``root``, in its ``x``; elsewhere ``x`` is used up. Along a chain, or up a binomial tree."""
    n = len(ranks)
    start = ranks.index(root)
    line = [ranks[(start + i) % n] for i in range(n)]
    me = line.index(world.rank)
    if small:
        other, distance = np.empty_like(x), 1
        while distance < n:
            if me & distance:
                world.send(line[me - distance], x)
                return
            if me + distance < n:
                world.receive(line[me + distance], other)
                op(x, other, out=x)
            distance <<= 1
        return
    scratch = np.empty(max(1, PIECE // x.itemsize), x.dtype)
    for a, b in pieces(0, x.size, x.itemsize):
        if me < n - 1:
            other = scratch[: b - a]
            world.receive(line[me + 1], other)
            op(x[a:b], other, out=x[a:b])
        if me:
            world.send(line[me - 1], x[a:b])


def reduce_scatter(world: Any, ranks: Sequence[int], x: np.ndarray, op: Operator) -> np.ndarray:
    """Equal shares of ``x`` by rank; returns this rank's, reduced. ``x`` is used up."""
    n = len(ranks)
    count = x.size // n
    parts = x.reshape(n, count)
    if n > 1:
        if list(ranks) != list(range(n)):
            parts = parts[list(ranks)]
        _scatter(_Ring(world, ranks), parts.reshape(-1), shares(x.size, n), op, go_on=False)
    return parts[ranks.index(world.rank)]


def all_gather(world: Any, ranks: Sequence[int], mine: np.ndarray, out: np.ndarray) -> None:
    """``out`` gets every rank's share, in order of rank."""
    n = len(ranks)
    plain = list(ranks) == list(range(n))
    parts = out if plain else np.empty_like(out)
    me = ranks.index(world.rank)
    parts.reshape(n, mine.size)[me] = mine
    if n > 1:
        _gather(_Ring(world, ranks), parts, shares(out.size, n), started=False)
    if not plain:
        out.reshape(n, mine.size)[list(ranks)] = parts.reshape(n, mine.size)
