"""The executor against what no client sends: only ProtocolError or an answered error, in bounded time."""

import contextlib
import os
import resource
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rgpu.errors import ProtocolError
from rgpu.server.backend_cpu import CpuBackend
from rgpu.server.executor import Executor, Goodbye, NoLoop
from rgpu.server.loop import PureLoop, loop_of
from rgpu.server.table import PureTable
from rgpu.wire import codec, limits, ops, values
from rgpu.wire.functions import BY_NAME
from tests.support import strategies

LIMIT = 1 << 20  # bytes of device memory: what is asked for must not cost the tester


@pytest.fixture(scope="module", autouse=True)
def bounded_memory():
    """A wild allocation fails at once, instead of taking the machine with it."""
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def give_pure_loop(executor):
    """As where the C core is not."""
    table = executor.table = executor.backend.table = PureTable(executor.backend.limit)
    executor._get = table.peek
    executor._loop = loop_of(table, executor.backend, list(executor.functions.values()))
    assert type(executor._loop) is PureLoop


class Bench:
    """An executor with a few arrays under the handles 1 to 6, and what it answered."""

    def __init__(self, compiled=True):
        self.answers = []
        self.executor = Executor(CpuBackend(memory_limit=LIMIT), self.answers.append)
        if not compiled:
            self.executor._loop = NoLoop()
        elif compiled == "in Python":
            give_pure_loop(self.executor)
        self.run(
            ops.Put.encode(1, "<f8", [3, 4], np.arange(12.0).tobytes()),
            ops.Put.encode(2, "<i4", [5], np.arange(5, dtype="i4").tobytes()),
            ops.Put.encode(3, "|b1", [], b"\1"),
            ops.View.encode(4, 1, "<f8", [4, 3], [8, 32], 0),
            ops.Empty.encode(5, "<f4", [0, 3], None),
            ops.Unary.encode(BY_NAME["sqrt"].id, 6, 1),
        )

    def run(self, *commands, payload=()):
        self.executor.run([codec.pack([1, list(commands)]), *payload])

    def state(self):
        """What the session holds: arrays by their layout (some functions draw random numbers), else the class."""
        entries = sorted(self.executor.table.entries.items())
        return self.executor.table.used, [
            (handle, type(x).__name__, *((x.dtype, x.shape, x.strides) if isinstance(x, np.ndarray) else ()))
            for handle, x in entries
        ]

    def replies(self):
        return [ops.Reply.decode(codec.unpack(frames[0])) for frames in self.answers]


def survives(*commands, payload=()):
    bench = Bench()
    began = time.perf_counter()
    with contextlib.suppress(ProtocolError, Goodbye), np.errstate(all="ignore"):
        bench.run(*commands, payload=payload)
    took = time.perf_counter() - began
    assert took < 2.0, f"{took:.1f} s"
    bench.replies()  # every answer is one that the client's gate takes
    assert bench.executor.table.used <= LIMIT


def packable(message):
    try:
        codec.pack(message)
    except (OverflowError, ValueError, TypeError):
        return False
    return True


EXAMPLES = int(os.environ.get("RGPU_HOSTILE_EXAMPLES", "1500"))  # fewer where each takes long (scripts/check)
RUNS = settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))


@pytest.mark.filterwarnings("ignore")
@RUNS
@given(st.lists(strategies.commands(), min_size=1, max_size=4).filter(packable), st.binary(max_size=64))
def test_well_formed_commands(commands, payload):
    survives(*commands, payload=[payload])


@pytest.mark.filterwarnings("ignore")
@RUNS
@given(strategies.mutated(strategies.commands()).filter(packable))
def test_mutated_commands(command):
    survives(command)


def outcome(commands, compiled):
    bench, refusal = Bench(compiled), None
    try:
        with np.errstate(all="ignore"):
            bench.run(*commands)
    except (ProtocolError, Goodbye) as error:
        refusal = type(error)
    replies = [(type(x).__name__, getattr(x, "kind", ""), getattr(x, "handles", ())) for x in bench.replies()]
    return refusal, bench.state(), replies


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize(
    "handle, dtype, shape", [(1, "<f8", [3, 4]), (2, "<i4", [5]), (3, "|b1", []), (4, "<f8", [4, 3])]
)
def test_small_reads_are_the_same_from_the_loop_and_from_the_executor(handle, dtype, shape, order):
    answers = []
    for compiled in (True, False):
        bench = Bench(compiled)
        bench.run(ops.Read.encode(2**40, handle, order, dtype, shape))
        answers.append([[bytes(frame) for frame in frames] for frames in bench.answers])
    assert answers[0] == answers[1] and len(answers[0]) == 1


def likely():
    """Commands of the forms that the C core's loop runs itself, or nearly."""
    number, handle = st.sampled_from([1, 2, 6, 7, 8, 9, 2**63]), st.integers(7, 14)
    operand = number | st.floats() | st.integers(-300, 300).map(lambda n: [values.INT, n])
    names = "add multiply true_divide power equal logical_and exp negative sum max matmul dot clip where".split()
    fn = st.sampled_from([BY_NAME[name].id for name in names if name in BY_NAME])
    extent = st.lists(st.integers(0, 5), max_size=3)
    stride = st.lists(st.sampled_from([-8, 0, 4, 8, 16, 32]), max_size=3)
    tagged = st.sampled_from([[values.ELLIPSIS], [values.DTYPE, "<f4"], [values.TUPLE, 0, -1], [values.LIST, 1]])
    value = tagged | st.none() | st.booleans() | st.integers(-1, 2) | number.map(lambda h: [values.HANDLE, h])
    said = st.none() | st.booleans() | st.integers(-2, 2)
    named = st.dictionaries(st.sampled_from(["axis", "keepdims", "dtype"]), said)
    forms = {
        ops.Free: (st.lists(number, max_size=2),),
        ops.View: (handle, number, st.sampled_from(["<f8", "<i4", "|u1"]), extent, stride, st.integers(-8, 40)),
        ops.Empty: (handle, st.sampled_from(["<f8", "|S0", "|V3", "x"]), extent, st.none() | stride),
        ops.Unary: (fn, handle, number),
        ops.Binary: (fn, handle, operand, operand),
        ops.Inplace: (fn, number, operand),
        ops.Call: (fn, st.lists(handle, max_size=2), st.lists(value | operand, max_size=3), named),
        ops.Read: (number, number, st.integers(0, 2), st.sampled_from(["<f8", "<f4"]), extent | st.just([2, 3])),
    }
    return st.one_of(*[st.tuples(st.just(op.tag), *fields).map(list) for op, fields in forms.items()])


@pytest.mark.filterwarnings("ignore")
@settings(RUNS, max_examples=EXAMPLES // 3)
@given(st.lists(likely() | strategies.mutated(likely()), min_size=1, max_size=6).filter(packable))
def test_all_executors_do_the_same(commands):
    assert outcome(commands, True) == outcome(commands, False) == outcome(commands, "in Python")


@settings(max_examples=2000)
@given(st.binary(max_size=200))
def test_bytes(data):
    bench = Bench()
    with pytest.raises(ProtocolError):
        bench.executor.run([data])


@settings(max_examples=1000)
@given(strategies.junk.filter(packable))
def test_any_value_as_a_message(message):
    bench = Bench()
    with contextlib.suppress(ProtocolError):
        bench.executor.run([codec.pack(message)])


F8 = "<f8"
DEEP: list = [values.LIST]
for _ in range(40):
    DEEP = [values.LIST, DEEP]
REFUSED = {
    "an unknown tag": [99, 1],
    "no tag": [],
    "a map": {"a": 1},
    "a tag that is text": ["Free", [1]],
    "a true tag": [True],
    "too few fields": [ops.Unary.tag, 1],
    "handle 0": ops.Unary.encode(0, 0, 1),
    "a handle nobody made": ops.Unary.encode(0, 7, 999),
    "a handle twice": ops.Empty.encode(1, F8, [2], None),
    "an unknown function": ops.Unary.encode(65535, 7, 1),
    "view beyond the end": ops.View.encode(7, 1, F8, [13], [8], 0),
    "view before the beginning": ops.View.encode(7, 1, F8, [2], [8], -8),
    "negative stride out of the front": ops.View.encode(7, 1, F8, [4], [-8], 16),
    "offset beyond": ops.View.encode(7, 1, F8, [1], [8], 96),
    "strides that overflow": ops.View.encode(7, 1, F8, [2**32 + 1], [2**32], 0),
    "strides that overflow together": ops.View.encode(7, 1, F8, [2**31 + 1, 2**31 + 1], [2**32, 2**32], 0),
    "wider items": ops.View.encode(7, 1, "<c16", [12], [8], 0),
    "a view of a view": ops.View.encode(7, 4, F8, [12], [8], 0),
    "fewer strides than extents": ops.View.encode(7, 1, F8, [2, 2], [8], 0),
    "an object dtype": ops.Empty.encode(7, "|O", [2], None),
    "an expression as dtype": ops.Empty.encode(7, "(1000000,1000000)f8", [2], None),
    "fields as dtype text": ops.Empty.encode(7, "f8,O", [2], None),
    "a nested object": ops.Empty.encode(7, [0, [["a", "|O", 0]], 8, False], [2], None),
    "a field outside": ops.Empty.encode(7, [0, [["a", F8, 8]], 8, False], [2], None),
    "a field before": ops.Empty.encode(7, [0, [["a", F8, -8]], 8, False], [2], None),
    "a huge subarray": ops.Empty.encode(7, [1, F8, [2**40, 2**40]], [2], None),
    "65 dimensions": ops.Empty.encode(7, F8, [1] * 65, None),
    "a negative extent": ops.Empty.encode(7, F8, [-1], None),
    "strides of an empty array outside": ops.Empty.encode(7, F8, [4], [16]),
    "a payload that is not there": ops.Write.encode(1, 0, 3),
    "a dtype's cousin": ops.Put.encode(7, "float64; import os", [1], b"8" * 8),
    "values: unknown tag": ops.Call.encode(BY_NAME["zeros"].id, [7], [[77]], {}),
    "values: short scalar": ops.Call.encode(BY_NAME["zeros"].id, [7], [[values.SCALAR, F8, b"1"]], {}),
    "values: long scalar": ops.Call.encode(BY_NAME["zeros"].id, [7], [[values.SCALAR, F8, b"1" * 9]], {}),
    "values: array of too few bytes": ops.Call.encode(
        BY_NAME["sort"].id, [7], [[values.ARRAY, F8, [2], b"1" * 8]], {}
    ),
    "values: array with -1": ops.Call.encode(
        BY_NAME["sort"].id, [7], [[values.ARRAY, F8, [-1], b"1" * 8]], {}
    ),
    "values: odd dictionary": ops.Call.encode(BY_NAME["zeros"].id, [7], [[values.DICT, 1]], {}),
    "values: raw map": ops.Call.encode(BY_NAME["zeros"].id, [7], [{"a": 1}], {}),
    "values: deep": ops.Call.encode(BY_NAME["zeros"].id, [7], [DEEP], {}),
    "values: not a number": ops.Call.encode(BY_NAME["zeros"].id, [7], [[values.BIGINT, "1e9"]], {}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    bench = Bench()
    with pytest.raises(ProtocolError):
        bench.run(REFUSED[name])


ANSWERED = {
    "2^62 bytes": ops.Empty.encode(7, "|u1", [2**62], None),
    "a product that overflows": ops.Empty.encode(7, F8, [2**40, 2**40], None),
    "one byte too many": ops.Empty.encode(7, "|u1", [LIMIT + 1], None),
    "write beyond the end": ops.Write.encode(1, 2**63, 0),
    "data that does not fit": ops.Put.encode(7, F8, [3], b"1" * 8),
    "data without items": ops.Put.encode(7, "|V0", [3], b""),
    "zeros without end": ops.Call.encode(BY_NAME["zeros"].id, [7], [[values.TUPLE, 2**50]], {}),
}


@pytest.mark.parametrize("name", ANSWERED)
def test_answered_as_an_error(name):
    bench = Bench()
    bench.run(ANSWERED[name], payload=[b"12345678"])
    (failed,) = bench.replies()
    assert isinstance(failed, ops.Failed.Record)
    bench.run(ops.Sync.encode(5))
    assert isinstance(bench.replies()[-1], ops.Done.Record)


def test_counts_beyond_the_limits():
    bench = Bench()
    for body in (
        [1, [[ops.Bye.tag]] * (limits.BATCH + 1)],
        [1, [[ops.Free.tag, [1] * (limits.HANDLES + 1)]]],
        [-1, []],
    ):
        with pytest.raises(ProtocolError):
            bench.executor.run([codec.pack(body)])
    with pytest.raises(ProtocolError):
        bench.executor.run([b"\x91" * 100_000 + b"\xc0"])  # nested 10^5 deep


def test_poison_keeps_no_memory():
    bench = Bench()
    add = BY_NAME["add"].id
    for i in range(200):
        bench.run(ops.Binary.encode(add, 100 + i, 1, 2))  # shapes that do not fit
        bench.run(ops.Binary.encode(add, 1000 + i, 100 + i, 1))
    errors = [entry for handle, entry in bench.executor.table.entries.items() if handle >= 100]
    assert len(errors) == 400 and all(error.__traceback__ is None for error in errors)
    assert len(bench.replies()) == 200  # dependents are not news


@pytest.mark.parametrize(("dtype", "shape"), [("<f4", [3, 4]), ("<f8", [12]), ("<f8", [3, 5]), ("<i8", [3, 4])])
def test_a_read_of_something_else_is_refused(dtype, shape):
    """A client that predicted wrongly must hear of it: else it waits for bytes that do not come."""
    bench = Bench()
    bench.run(ops.Read.encode(9, 1, 0, dtype, shape))
    (answer,) = bench.replies()
    assert (answer.reply_to, answer.kind) == (9, "PredictionError")
    bench.run(ops.Read.encode(10, 1, 0, "<f8", [3, 4]))
    assert bench.replies()[-1].reply_to == 10
    assert bytes(bench.answers[-1][1]) == np.arange(12.0).tobytes()
