"""T22: what a session holds is counted to the byte. Random allocations, frees, views and writes against a model of the
books: what the model says fits is there, what it says does not is an OutOfMemoryError, and the session goes on.

``RGPU_QUOTA_STEPS`` says how many steps (100,000 for the whole of it); a seed that fails is printed.
"""

import os
import random
from collections import Counter

import numpy as np
import pytest

from rgpu.errors import ProtocolError
from rgpu.server.backend_cpu import CpuBackend
from rgpu.server.executor import Executor, NoLoop
from rgpu.server.table import Poison, PureTable
from rgpu.wire import codec, ops
from rgpu.wire.functions import BY_NAME

STEPS = int(os.environ.get("RGPU_QUOTA_STEPS", "6000"))
UNIT = 512
LIMIT = 40 * UNIT


def whole(nbytes):
    return -(-nbytes // UNIT) * UNIT


class Model:
    """handle -> bytes it is charged with (views and errors: 0), the root of each view, and what was freed and lives on
    in views."""

    def __init__(self, limit):
        self.limit, self.used, self.held, self.root, self.lasting = limit, 0, {}, {}, {}
        self.views = Counter()

    def take(self, handle, nbytes):
        """Whether it fits; if not, its handle stands for an error, which costs nothing."""
        fits = self.used + whole(nbytes) <= self.limit
        self.held[handle] = whole(nbytes) if fits else 0
        self.used += self.held[handle]
        return fits

    def view(self, handle, root):
        self.held[handle], self.root[handle] = 0, root
        self.views[root] += 1

    def free(self, handle):
        nbytes, root = self.held.pop(handle, 0), self.root.pop(handle, None)
        if self.views[handle]:
            self.lasting[handle] = nbytes
        else:
            self.used -= nbytes
        if root is not None:
            self.views[root] -= 1
            if not self.views[root]:
                self.used -= self.lasting.pop(root, 0)


class Bench:
    """An executor of one kind beside the model; every step is one message of one command."""

    def __init__(self, compiled, seed):
        self.answers, self.dice, self.model, self.next = [], random.Random(seed), Model(LIMIT), 1
        backend = CpuBackend(memory_limit=LIMIT)
        self.executor = Executor(backend, self.answers.append)
        if not compiled:
            self.executor._loop = NoLoop()
        self.roots = {}  # handles of arrays that are there -> their bytes

    def run(self, command):
        self.answers.clear()
        self.executor.run([codec.pack([1, [command]])])
        replies = [ops.Reply.decode(codec.unpack(frames[0])) for frames in self.answers]
        return [reply.kind for reply in replies if isinstance(reply, ops.Failed.Record)]

    def fresh(self):
        self.next += 1
        return self.next

    def step(self):
        dice, model = self.dice, self.model
        what = dice.random()
        if what < 0.45 or not self.roots:
            self.allocate(self.fresh(), self.size(), dice.random())
        elif what < 0.75:
            handles = dice.sample(list(model.held), min(len(model.held), dice.randrange(1, 20)))
            assert self.run(ops.Free.encode([*handles, 2**40])) == []
            for handle in handles:
                model.free(handle)
                self.roots.pop(handle, None)
        elif what < 0.85:
            root = dice.choice(list(self.roots))
            view = self.fresh()
            nbytes = self.roots[root]
            assert self.run(ops.View.encode(view, root, "|u1", [nbytes], [1], 0)) == []
            model.view(view, root)
        elif what < 0.95:
            root, out = dice.choice(list(self.roots)), self.fresh()
            failed = self.run(ops.Unary.encode(BY_NAME["negative"].id, out, root))
            self.expect(out, self.roots[root], failed)
        else:  # what is over the limit by itself
            self.allocate(self.fresh(), LIMIT + dice.choice((1, UNIT, 2**40, 2**62)), 0.0)

    def size(self):
        """Often around what is left, to the byte."""
        dice, left = self.dice, self.model.limit - self.model.used
        if dice.random() < 0.4:
            return max(1, left + dice.choice((-UNIT, -1, 0, 1, UNIT)))
        return dice.randrange(1, 6 * UNIT)

    def allocate(self, handle, nbytes, how):
        if how < 0.7:
            failed = self.run(ops.Empty.encode(handle, "|u1", [nbytes], None))
        else:
            failed = self.run(ops.Put.encode(handle, "|u1", [nbytes], bytes(nbytes)))
        self.expect(handle, nbytes, failed)

    def expect(self, handle, nbytes, failed):
        if self.model.take(handle, nbytes):
            assert failed == []
            self.roots[handle] = nbytes
        else:
            assert failed == ["OutOfMemoryError"]

    def check(self):
        table = self.executor.table
        assert table.used == self.model.used <= LIMIT
        assert len(table) == len(self.model.held)


@pytest.mark.timeout(max(120, STEPS // 50))
@pytest.mark.parametrize("compiled", [True, False])
def test_the_books_are_exact(compiled):
    seed = random.SystemRandom().getrandbits(32)
    bench = Bench(compiled, seed)
    try:
        for _ in range(STEPS // 2):
            bench.step()
            bench.check()
        bench.run(ops.Free.encode(list(bench.model.held)))
        assert bench.executor.table.used == 0 and not bench.executor.table.entries
    except BaseException:
        print(f"Bench({compiled}, {seed})")
        raise


TABLES = [lambda: PureTable(LIMIT), lambda: Executor(CpuBackend(memory_limit=LIMIT), list).table]


@pytest.mark.parametrize("table", TABLES)
def test_the_edges(table):
    """Exactly the limit fits, one byte more does not; what is freed is there again; an error keeps nothing."""
    table = table()
    table.put(1, np.empty(LIMIT, np.uint8), LIMIT)
    with pytest.raises(MemoryError):
        table.put(2, np.empty(1, np.uint8), 1)
    assert table.used == LIMIT and len(table) == 1
    table.free(1)
    table.put(2, np.empty(LIMIT - UNIT + 1, np.uint8), LIMIT - UNIT + 1)
    assert table.used == LIMIT
    table.free(2)
    table.free(2)
    assert table.used == 0


@pytest.mark.parametrize("table", TABLES)
def test_memory_that_lives_on_in_a_view_counts_on(table):
    """Else a session could hold any number of arrays, a byte of each kept as a view."""
    table, array = table(), np.empty(LIMIT, np.uint8)
    table.put(1, array, LIMIT)
    table.put_view(2, array[:1], 1)
    table.put_view(3, array[1:], 1)
    table.free(1)
    assert table.used == LIMIT and len(table) == 2 and table.peek(1) is None
    for again in (lambda: table.get(1), lambda: table.put(1, array)):
        with pytest.raises(ProtocolError):
            again()
    table.free(2)
    assert table.used == LIMIT
    table.free(3)
    assert table.used == 0 and len(table) == 0
    table.put(1, array, LIMIT)
    table.put_view(2, array[:1], 1)
    table.free(1)
    table.poison_memory(2, Poison((1, 0), "ValueError", [], ""))  # what they share is lost: nothing is held
    assert table.used == 0
    table.free(2)
    assert len(table.entries) == len(table) <= 1
