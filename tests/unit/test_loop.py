"""The loop in Python gives what the executor gives without it, to the byte."""

import itertools

import numpy as np
import pytest

from rgpu.errors import ProtocolError
from rgpu.server.backend_cpu import CpuBackend
from rgpu.server.executor import Executor, NoLoop
from rgpu.server.loop import PureLoop, loop_of
from rgpu.server.table import Poison, PureTable
from rgpu.wire import codec, ops, values
from rgpu.wire.functions import BY_NAME

DTYPES = "? i1 i8 u8 f2 f4 f8 >f8 c16 M8[s]".split()
REDUCTIONS = "sum prod mean max min amax amin any all".split()


class Worker:
    """An executor with the loop, or without it, and what it answered."""

    def __init__(self, loop=True, limit=0):
        self.answers = []
        self.executor = ex = Executor(CpuBackend(memory_limit=limit), self.answers.append)
        self.table = ex.table = ex.backend.table = PureTable(limit)
        ex._get = ex.table.peek
        ex._loop = loop_of(ex.table, ex.backend, list(ex.functions.values())) if loop else NoLoop()
        assert type(ex._loop) is (PureLoop if loop else NoLoop)

    def run(self, *commands):
        before = self.executor.commands
        self.executor.run([codec.pack([1, list(commands)])])
        assert self.executor.commands == before + len(commands)

    def put(self, handle, array):
        self.table.put(handle, array, array.nbytes)

    def found(self, handle):
        x = self.table.peek(handle)
        if isinstance(x, np.ndarray):
            return x.dtype, x.shape, x.flags.c_contiguous, x.flags.owndata, x.tobytes()
        return (x.kind, x.arguments, x.where) if isinstance(x, Poison) else x

    def state(self):
        """All that the session holds and was told; tracebacks are of different ways."""
        table = self.table
        told = [list(ops.Reply.decode(codec.unpack(frames[0])))[:-1] for frames in self.answers]
        return {handle: self.found(handle) for handle in table.entries}, table.used, vars(table)["_owned"], told


def arrays(dtype):
    """Some of each layout."""
    numbers = np.arange(24) % 7 - (3 if np.dtype(dtype).kind in "fic" else 0)
    plain = numbers.astype(dtype) if np.dtype(dtype).kind != "M" else numbers.astype("i8").view(dtype)
    return plain, plain.reshape(4, 6), plain.reshape(4, 6).T, plain[::-2], plain[:0], plain[3].reshape(())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", DTYPES)
def test_reductions(dtype):
    options = [
        {},
        {"axis": 0},
        {"axis": -1},
        {"axis": None},
        {"axis": 5},
        {"keepdims": True},
        {"axis": 0, "keepdims": True},
    ]
    workers = Worker(), Worker(loop=False)
    for worker in workers:
        handles = itertools.count(100).__next__
        for n, x in enumerate(arrays(dtype)):
            worker.put(n + 1, x)
            for name in REDUCTIONS:
                for option in options:
                    worker.run(ops.Call.encode(BY_NAME[name].id, [handles()], [[values.HANDLE, n + 1]], option))
    assert workers[0].state() == workers[1].state()
    assert len(workers[0].table.entries) > 300


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", DTYPES)
def test_operators_and_calls(dtype):
    operands = [
        1,
        2,
        3,
        4,
        5,
        6,
        9,
        99,
        2.5,
        [values.INT, 3],
        [values.INT, 300],
        [values.INT, -1],
        True,
        [values.ELLIPSIS],
    ]
    workers = Worker(), Worker(loop=False)
    for worker in workers:
        handles = itertools.count(100).__next__
        for n, x in enumerate(arrays(dtype)):
            worker.put(n + 1, x.copy(order="K"))
        worker.table.poison(9, Poison((3, 4), "ValueError", ["lost"], ""))
        for a, b, name in itertools.product(range(1, 7), operands, "add equal".split()):
            for command in (
                ops.Binary.encode(BY_NAME[name].id, handles(), a, b),
                ops.Binary.encode(BY_NAME[name].id, handles(), b, a),
                ops.Unary.encode(BY_NAME["negative"].id, handles(), a), ops.Inplace.encode(BY_NAME[name].id, a, b),
                ops.Call.encode(BY_NAME["maximum"].id, [handles()], [[values.HANDLE, a], 1.5], {}),
                ops.Call.encode(BY_NAME["cumsum"].id, [handles()], [[values.HANDLE, a]], {}),
                ops.Call.encode(BY_NAME["clip"].id, [handles()], [[values.HANDLE, a], None, 2], {}),
                ops.Call.encode(BY_NAME["ndarray.fill"].id, [], [[values.HANDLE, a], 1], {}),
            ):  # fmt: skip
                try:
                    worker.run(command)
                except ProtocolError as error:
                    worker.answers.append([codec.pack(ops.Done.encode(1, str(error))), b""])
    assert workers[0].state() == workers[1].state()


@pytest.mark.parametrize("dtype", "i4 >f8 c16 M8[s]".split())
def test_views(dtype):
    kinds = [np.dtype(dtype).str, "|u1", "<f8", "<c16", "|V3", "x"]
    forms = [
        ([], []),
        ([4], [8]),
        ([4], [-8]),
        ([2, 3], [0, 4]),
        ([0, 2], [8, 8]),
        ([1], [2**40]),
        ([50], [0]),
        ([3], [2**62]),
        ([2], []),
    ]
    workers = Worker(), Worker(loop=False)
    for worker in workers:
        handles = itertools.count(100).__next__
        for n, x in enumerate(arrays(dtype)):
            worker.put(n + 1, x.copy(order="K"))
        for root, kind, (shape, strides), offset in itertools.product(
            [1, 2, 3, 5, 6, 77], kinds, forms, [0, 24, 1, -8]
        ):
            try:
                worker.run(ops.View.encode(out := handles(), root, kind, shape, strides, offset))
                worker.run(ops.View.encode(handles(), out, kind, shape, strides, 0))
            except ProtocolError as error:
                worker.answers.append([codec.pack(ops.Done.encode(1, str(error))), b""])
            x = worker.table.peek(out)
            assert x is None or not x.size or np.shares_memory(x, worker.table.peek(root))
    assert workers[0].state() == workers[1].state()
    assert len(workers[0].table.entries) > 20


def test_what_is_freed_counts_no_more():
    worker = Worker(limit=1 << 16)
    for n in range(1, 5):
        worker.put(n, np.zeros(100 * n))
    before = worker.table.used
    worker.run(ops.Free.encode([2, 3, 77, 2]))
    assert before - worker.table.used == 2048 + 2560 and list(worker.table.entries) == [1, 4]
    worker.run(ops.View.encode(9, 4, "<f8", [2], [8], 0), ops.Free.encode([4]))
    assert worker.table.used == 1024 + 3584, "a view of it lives"
    worker.run(ops.Free.encode([9, 1]))
    assert worker.table.used == worker.table.account.used == 0 and not worker.table.entries


def test_the_limit_holds():
    worker = Worker(limit=4096)
    worker.put(1, np.zeros(200))
    worker.run(*[ops.Unary.encode(BY_NAME["negative"].id, n, 1) for n in (2, 3, 4)])
    assert worker.table.used <= 4096 and [type(worker.table.peek(n)) for n in (2, 3, 4)] == [np.ndarray, Poison, Poison]
    assert worker.table.peek(4).kind == "OutOfMemoryError"


def test_a_change_in_place_waits_for_what_is_read():
    """And so does a call, which may change anything."""
    settled = []
    worker = Worker()
    worker.executor._settle = lambda: settled.append(1)
    worker.put(1, np.zeros(4))
    commands = [
        ops.Inplace.encode(BY_NAME["add"].id, 1, [values.INT, 1]),
        ops.Call.encode(BY_NAME["ndarray.fill"].id, [], [[values.HANDLE, 1], 2.0], {}),
    ]
    for n, command in enumerate(commands):
        worker.executor._loop.lent = True
        worker.run(command)
        assert len(settled) == n + 1 and not worker.executor._loop.lent
        worker.run(command)
        assert len(settled) == n + 1


def test_while_it_is_watched_all_goes_through_the_handlers():
    worker, seen = Worker(), []
    worker.put(1, np.zeros(4))
    handlers = worker.executor.handlers
    gate, method = handlers[ops.Unary.tag]
    handlers[ops.Unary.tag] = gate, lambda *fields: seen.append(fields) or method(*fields)
    command = BY_NAME["negative"].id
    worker.run(ops.Unary.encode(command, 2, 1))
    worker.executor.watch(True)
    worker.run(ops.Unary.encode(command, 3, 1))
    worker.executor.watch(False)
    worker.run(ops.Unary.encode(command, 4, 1))
    assert seen == [(command, 3, 1)] and 4 in worker.table.entries
