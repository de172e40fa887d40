"""Element-wise commands that run block by block, all together, give the bytes that they give one by one."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rgpu import _native
from rgpu.errors import ProtocolError
from rgpu.server.backend_cpu import CpuBackend
from rgpu.server.executor import Executor, NoLoop
from rgpu.wire import codec, ops, values
from rgpu.wire.functions import BY_NAME

pytestmark = pytest.mark.skipif(_native.execute is None, reason="the C core is not built here")
ONE = "negative absolute sqrt exp log tanh square reciprocal isnan logical_not floor".split()
TWO = "add subtract multiply divide maximum minimum power less greater_equal logical_and not_equal arctan2".split()
SIZE = 40_000
ODD = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan]


class Worker:
    def __init__(self, compiled, limit=0):
        self.posted = []
        self.executor = Executor(CpuBackend(memory_limit=limit), self.posted.append)
        if not compiled:
            self.executor._loop = NoLoop()

    def run(self, commands):
        self.executor.run([codec.pack([1, list(commands)])])

    def put(self, handle, array):
        self.executor.table.put(handle, array, array.nbytes)

    @property
    def chained(self):
        return self.executor._loop.chained

    def found(self):
        entries = sorted(self.executor.table.entries.items())
        return [(handle, x.dtype, x.shape, x.tobytes()) if isinstance(x, np.ndarray) else (handle, type(x).__name__)
                for handle, x in entries]  # fmt: skip


def arrays(seed):
    """Handles 1 to 6: two of each of float32 and float64, booleans, and one number on the device."""
    rng = np.random.default_rng(seed)
    made = []
    for dtype in "f4", "f4", "f8", "f8":
        x = (rng.standard_normal(SIZE) * 3).astype(dtype)
        x[rng.random(SIZE) < 0.05] = rng.choice(ODD)
        made.append(x.reshape(200, 200))
    return [*made, (rng.random(SIZE) < 0.5).reshape(200, 200), np.array(1.5, "f4")]


def unary(name, out, a):
    return [ops.Unary.tag, BY_NAME[name].id, out, a]


def binary(name, out, a, b):
    return [ops.Binary.tag, BY_NAME[name].id, out, a, b]


def inplace(name, a, b):
    return [ops.Inplace.tag, BY_NAME[name].id, a, b]


numbers = st.sampled_from([0.5, -2.0, 0.1, 3, -1]).map(lambda x: [values.INT, x] if isinstance(x, int) else x)


@st.composite
def programs(draw):
    """Commands over the handles 1 to 6 and over what they make; 7 and 8 are views of 1 that overlap."""
    live, commands, following = [1, 2, 3, 4, 5, 6, 7, 8], [], 20
    floats = st.sampled_from([1, 2, 1, 2, 3, 4, 6, 7, 8])
    latest = 1
    for _ in range(draw(st.integers(2, 14))):
        kind = draw(st.sampled_from(["unary", "binary", "binary", "binary", "inplace", "free", "number"]))
        some = st.sampled_from(live)
        a = latest if latest in live and draw(st.integers(0, 3)) else draw(some)
        if kind == "free":
            gone = draw(st.lists(st.sampled_from([h for h in live if h > 8] or [99]), max_size=3, unique=True))
            commands.append([ops.Free.tag, gone])
            live = [h for h in live if h not in gone]
            continue
        if kind == "inplace":
            other = draw(some | numbers | floats.filter(live.count))
            commands.append(inplace(draw(st.sampled_from(TWO[:6])), a, other))
            continue
        if kind == "unary":
            commands.append(unary(draw(st.sampled_from(ONE)), following, a))
        else:
            other = draw(numbers) if kind == "number" else draw(some)
            pair = (a, other) if draw(st.booleans()) else (other, a)
            commands.append(binary(draw(st.sampled_from(TWO)), following, *pair))
        latest = following
        live.append(following)
        following += 1
    return commands


def outcome(compiled, commands, seed):
    worker = Worker(compiled)
    for handle, array in enumerate(arrays(seed), 1):
        worker.put(handle, array)
    worker.run([
        [ops.View.tag, 7, 1, "<f4", [199, 200], [800, 4], 0],
        [ops.View.tag, 8, 1, "<f4", [199, 200], [800, 4], 800],
    ])  # fmt: skip
    worker.run(commands)
    return worker, worker.found()


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs(), st.integers(0, 1000))
def test_the_same_bytes_as_one_by_one(commands, seed):
    with np.errstate(all="ignore"):
        (one, together), (other, apart) = outcome(True, commands, seed), outcome(False, commands, seed)
    assert together == apart and len(one.posted) == len(other.posted)
    assert one.executor.commands == other.executor.commands


def test_what_runs_together():
    worker, found = outcome(True, [
        binary("multiply", 20, 1, 2), binary("add", 21, 20, 0.5), [ops.Free.tag, [20]], inplace("add", 1, 21),
        [ops.Free.tag, [21]], unary("negative", 22, 1), binary("multiply", 23, 22, 5),
    ], 3)  # fmt: skip
    a, b, _, _, mask, _ = arrays(3)
    a += a * b + np.float32(0.5)
    np.testing.assert_array_equal(worker.executor.table.peek(1), a)
    np.testing.assert_array_equal(worker.executor.table.peek(22), -a)
    np.testing.assert_array_equal(worker.executor.table.peek(23), -a * mask)
    assert worker.chained == 7 and [handle for handle, *_ in found] == [1, 2, 3, 4, 5, 6, 7, 8, 22, 23]


@pytest.mark.parametrize("commands", [
    [binary("add", 20, 1, 2), binary("add", 21, 3, 4)],  # nothing in common
    [binary("add", 20, 1, 2), [ops.Sync.tag, 1], binary("add", 21, 20, 2)],
    [binary("add", 20, 1, 3), binary("add", 21, 20, 2)],  # a cast is NumPy's
    [binary("add", 20, 7, 7), inplace("add", 8, 20)],  # of memory that is read at another place
], ids=["unrelated", "between", "cast", "overlapping"])  # fmt: skip
def test_what_does_not(commands):
    worker, found = outcome(True, commands, 4)
    assert worker.chained == 0
    assert found == outcome(False, commands, 4)[1]


def test_a_change_in_place_that_another_view_sees():
    commands = [binary("add", 20, 7, 1.0), inplace("add", 8, 20), binary("multiply", 21, 7, 8), inplace("add", 7, 8)]
    worker, found = outcome(True, commands, 5)
    assert found == outcome(False, commands, 5)[1]


def test_results_without_room_are_refused_one_by_one():
    """The temporary of a chain needs none; what stays does."""
    worker, array = Worker(True, limit=3 * 160_256), np.ones(40_000, "f4")
    worker.put(1, array)
    worker.run([binary("add", 10, 1, 1), binary("add", 11, 10, 1), binary("add", 12, 11, 1), binary("add", 13, 12, 1)])
    assert worker.chained == 0 and len(worker.posted) == 1
    entries = worker.executor.table.entries
    assert entries[11].sum() == 120_000 and {type(entries[h]).__name__ for h in (12, 13)} == {"Poison"}
    worker.run([[ops.Free.tag, [11, 12, 13]]])
    worker.run([binary("add", 21, 10, 1), binary("add", 22, 21, 1), [ops.Free.tag, [21]], unary("negative", 23, 22),
                [ops.Free.tag, [22]]])  # fmt: skip
    assert worker.chained == 5 and worker.executor.table.peek(23).sum() == -160_000


def test_an_unknown_handle_in_the_middle_is_told_as_ever():
    found = []
    for compiled in True, False:
        worker = Worker(compiled)
        worker.put(1, np.ones(40_000))
        with pytest.raises(ProtocolError, match="unknown handle 77"):
            worker.run([binary("add", 10, 1, 1.0), binary("add", 11, 10, 1.0), binary("add", 12, 11, 77)])
        found.append(worker.found())
    assert found[0] == found[1]
