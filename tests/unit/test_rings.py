"""Collectives' ways of moving data, between threads: every result against NumPy, for every number of ranks."""

import queue
import threading

import numpy as np
import pytest

from rgpu.server import rings


class World:
    """One rank of several in one process; counts what it sends."""

    def __init__(self, rank, mail):
        self.rank, self._mail, self.sent = rank, mail, 0

    def send(self, peer, array):
        self.sent += array.nbytes
        self._mail[self.rank, peer].put(array.copy())

    def receive(self, peer, array):
        array[...] = self._mail[peer, self.rank].get(timeout=20)


def run(n, work):
    """``work(world)`` for every rank, at the same time; what each sent."""
    mail = {(a, b): queue.Queue() for a in range(n) for b in range(n)}
    worlds, errors = [World(rank, mail) for rank in range(n)], []

    def guarded(world):
        try:
            work(world)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(world,)) for world in worlds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    if errors:
        raise errors[0]
    assert all(box.empty() for box in mail.values())
    return [world.sent for world in worlds]


def data(n, size):
    return [np.random.default_rng(rank).integers(-50, 50, size).astype(np.float64) for rank in range(n)]


RANKS = [1, 2, 3, 5, 8]


@pytest.mark.parametrize("n", RANKS)
@pytest.mark.parametrize("size", [0, 1, 5, 40_003])
@pytest.mark.parametrize("way", [rings.ring_all_reduce, rings.doubling_all_reduce])
@pytest.mark.parametrize("op", [np.add, np.maximum])
def test_all_reduce(n, size, way, op):
    arrays = data(n, size)
    expected = op.reduce(arrays)
    run(n, lambda world: way(world, list(range(n)), arrays[world.rank], op))
    for array in arrays:
        np.testing.assert_array_equal(array, expected)


def test_the_ring_sends_no_more_than_it_must():
    n, size = 4, 1 << 20
    arrays = data(n, size)
    sent = run(n, lambda world: rings.ring_all_reduce(world, [2, 0, 3, 1], arrays[world.rank], np.add))
    assert set(sent) == {2 * (n - 1) * size * 8 // n}


@pytest.mark.parametrize("hosts", [[[0, 1], [2, 3]], [[0], [1]], [[0, 2, 4], [1, 3, 5]], [[0, 1, 2, 3]]])
def test_the_hierarchy(hosts):
    n = sum(map(len, hosts))
    arrays = data(n, 40_001)
    expected = np.add.reduce(arrays)
    run(n, lambda world: rings.hierarchical_all_reduce(world, hosts, arrays[world.rank], np.add))
    for array in arrays:
        np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize("n", RANKS)
@pytest.mark.parametrize("small", [True, False])
def test_broadcast_and_reduce(n, small):
    order, root = list(reversed(range(n))), n // 2
    arrays = data(n, 70_000)
    expected = arrays[root].copy()
    run(n, lambda world: rings.broadcast(world, order, root, arrays[world.rank], small))
    for array in arrays:
        np.testing.assert_array_equal(array, expected)
    parts = data(n, 70_000)
    expected = np.add.reduce(parts)
    run(n, lambda world: rings.reduce(world, order, root, parts[world.rank], np.add, small))
    np.testing.assert_array_equal(parts[root], expected)


@pytest.mark.parametrize("order", [[0], [0, 1], [0, 1, 2, 3], [2, 0, 1]])
def test_scatter_and_gather_by_rank(order):
    n = len(order)
    arrays = data(n, 30_000 * n)
    expected = np.add.reduce(arrays).reshape(n, -1)
    results = {}

    def scatter(world):
        results[world.rank] = rings.reduce_scatter(world, order, arrays[world.rank].copy(), np.add)

    run(n, scatter)
    for rank in range(n):
        np.testing.assert_array_equal(results[rank], expected[rank])
    outs = [np.zeros(30_000 * n) for _ in range(n)]
    run(n, lambda world: rings.all_gather(world, order, results[world.rank], outs[world.rank]))
    for out in outs:
        np.testing.assert_array_equal(out.reshape(n, -1), expected)


def test_small_data_takes_the_tree_and_large_the_ring():
    costs = rings.Costs(50e-6, 1e-9, 100e-6, 2e-9)

    def best(sizes, nbytes):
        ways = rings.expected(costs, sizes, nbytes)
        return min(ways, key=ways.get)

    assert best([8], 1000) == "tree" and best([8], 100 << 20) == "ring"
    assert best([4, 4], 100 << 20) == "hierarchy"
    assert "hierarchy" not in rings.expected(costs, [3, 4], 1 << 20)
    assert rings.expected(costs, [4], 1 << 30)["ring"] == pytest.approx(1.5 * (1 << 30) * 1e-9, rel=0.01)
