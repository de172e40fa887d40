"""Element-wise functions by their inner loops give NumPy's bytes, whatever the arrays look like."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rgpu import _native
from rgpu.server.backend_cpu import CpuBackend
from rgpu.server.backend_sim import SimBackend
from rgpu.server.executor import Executor, NoLoop
from rgpu.wire import codec, ops, values
from rgpu.wire.functions import BY_NAME

pytestmark = pytest.mark.skipif(_native.execute is None, reason="the C core is not built here")
ONE = "negative absolute sqrt exp log tanh sin floor rint square reciprocal sign isnan logical_not invert".split()
TWO = (
    "add subtract multiply divide floor_divide remainder power maximum fmin arctan2 hypot equal less greater_equal "
    "not_equal logical_and logical_xor bitwise_or left_shift copysign nextafter"
).split()
DTYPES = ["?", "i4", "i8", "f4", "f8", "i2", ">f8", "c8"]


class Worker:
    def __init__(self, compiled):
        self.executor = Executor(CpuBackend(), lambda frames: None)
        if not compiled:
            self.executor._loop = NoLoop()

    def run(self, *commands):
        self.executor.run([codec.pack([1, list(commands)])])

    def put(self, handle, array):
        self.executor.table.free(handle)
        self.executor.table.put(handle, array, array.nbytes)

    def found(self, handle):
        x = self.executor.table.peek(handle)
        return (x.dtype, x.shape, x.flags.c_contiguous, x.tobytes()) if isinstance(x, np.ndarray) else type(x).__name__


@st.composite
def laid_out(draw, shape, dtype):
    """An array of this shape, with some strides, of ordinary and of odd values."""
    whole = tuple(n * draw(st.sampled_from([1, 1, 2])) for n in shape)
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    turned = draw(st.booleans())
    values_ = np.asarray(rng.standard_normal(whole[::-1] if turned else whole) * draw(st.sampled_from([1, 1e3])))
    odd = [0, -0.0, 1, -1, np.inf, -np.inf, np.nan] if np.dtype(dtype).kind in "fc" else [0, 1, 2, 100]
    values_[rng.random(values_.shape) < 0.1] = rng.choice(odd)
    with np.errstate(all="ignore"):
        x = values_.astype(dtype)
    if turned:
        x = x.T
    x = x[tuple(slice(None, None, -1 if draw(st.integers(0, 3)) == 0 else 1) for _ in shape)]
    return np.asarray(x)[tuple(slice(None, None, w // n) if n else slice(None) for w, n in zip(whole, shape)) or ...]


@st.composite
def pairs(draw):
    shape = draw(st.lists(st.sampled_from([1, 2, 3, 7, 16, 33]), max_size=3))
    other = [n if draw(st.integers(0, 3)) else 1 for n in shape][draw(st.integers(0, len(shape))) :]
    dtype = draw(st.sampled_from(DTYPES))
    second = draw(st.sampled_from([dtype, dtype, dtype, "?", draw(st.sampled_from(DTYPES))]))
    a, b = draw(laid_out(tuple(shape), dtype)), draw(laid_out(tuple(other), second))
    return (a, b) if draw(st.booleans()) else (b, a)


numbers = st.floats(width=32) | st.sampled_from([0.1, 1e300, 3]) | st.integers(-(2**40), 2**40) | st.integers(-3, 3)


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(pairs(), st.sampled_from(TWO), st.sampled_from(ONE), numbers, st.booleans())
def test_the_same_bytes_as_numpy(arrays, two, one, number, left):
    a, b = arrays
    wire = [values.INT, number] if isinstance(number, int) else number
    with_number = [wire, 1] if left else [1, wire]
    outcome = []
    with np.errstate(all="ignore"):
        for worker in (Worker(True), Worker(False)):
            for turn in range(5):  # the first ones are compared with NumPy as they come
                worker.put(1, a)
                worker.put(2, b)
                worker.put(6, np.repeat(a[None], 2, axis=0)[turn % 2] if turn % 2 else a.copy(order="K"))
                worker.run([ops.Free.tag, [3, 4, 5]])
                worker.run([ops.Binary.tag, BY_NAME[two].id, 3, 1, 2], [ops.Unary.tag, BY_NAME[one].id, 4, 1])
                worker.run([ops.Binary.tag, BY_NAME[two].id, 5, *with_number], [ops.Inplace.tag, BY_NAME[two].id, 6, 2])
                outcome.append([worker.found(handle) for handle in (3, 4, 5, 6)])
    assert outcome[:5] == outcome[5:]


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data(), st.sampled_from([2, 3, 10, 16, 31, 32]), st.sampled_from([63, 64, 95, 300, 1000]), st.booleans())
def test_a_short_row_meets_many(data, n, m, left):
    dtype, name = data.draw(st.sampled_from(["f4", "f8", "i4", "i8"])), data.draw(st.sampled_from(TWO[:4]))
    rows, row = data.draw(laid_out((m, n), dtype)), data.draw(laid_out((n,), dtype))
    if data.draw(st.integers(0, 3)):
        rows = np.ascontiguousarray(rows)
    outcome = []
    with np.errstate(all="ignore"):
        for worker in (Worker(True), Worker(False)):
            for a, b in ((rows[:2], row), (rows, row)):  # the first ones are compared with NumPy as they come
                worker.run([ops.Free.tag, list(range(10, 15))])
                for handle, array in ((1, a), (2, b), (3, a.copy())):
                    worker.put(handle, array)
                pair = [2, 1] if left else [1, 2]
                worker.run(*[[ops.Binary.tag, BY_NAME[name].id, 10 + turn, *pair] for turn in range(5)])
                worker.run([ops.Inplace.tag, BY_NAME[name].id, 3, 2])
                outcome.append([worker.found(handle) for handle in (10, 14, 3)])
    assert outcome[:2] == outcome[2:]


def test_booleans_of_odd_bytes_are_ones():
    for compiled in (True, False):
        worker = Worker(compiled)
        worker.put(1, np.array([0, 1, 2, 255], np.uint8))
        worker.put(2, np.array([1.5, -2, 3, 4], np.float32))
        worker.put(4, np.array([0, 1, 1, 1], bool))
        worker.run([ops.View.tag, 3, 1, "|b1", [4], [1], 0])
        worker.run(*[[ops.Binary.tag, BY_NAME["multiply"].id, 20 + n, 2, 4] for n in range(5)])
        worker.run(*[[ops.Binary.tag, BY_NAME["multiply"].id, 10 + n, 2, 3] for n in range(5)])
        worker.run(*[[ops.Inplace.tag, BY_NAME["multiply"].id, 2, 3]])
        for handle in (2, 10, 14):
            assert worker.executor.table.peek(handle).tolist() == [0, -2, 3, 4], compiled


def test_in_place_over_overlapping_memory():
    for compiled in (True, False):
        worker, array = Worker(compiled), np.arange(1000.0)
        add = BY_NAME["add"].id
        worker.put(1, array)
        worker.run(*[[ops.Binary.tag, add, 10 + n, 1, 1] for n in range(5)])
        worker.run([ops.View.tag, 2, 1, "<f8", [999], [8], 8], [ops.View.tag, 3, 1, "<f8", [999], [8], 0])
        worker.run([ops.Inplace.tag, add, 2, 3], [ops.Inplace.tag, add, 1, 1])
        expected = np.arange(1000.0)
        expected[1:] += expected[:-1]
        expected += expected
        assert np.array_equal(array, expected), compiled


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data(), st.lists(st.sampled_from([1, 2, 3, 8, 33, 70]), min_size=3, max_size=3), st.booleans())
def test_products_of_matrices(data, extents, own):
    m, n, p = extents
    kind = st.sampled_from(["f4", "f4", "f8", "f8", "i4", ">f4"])
    dtype = data.draw(kind)
    a = data.draw(laid_out((m, n), dtype))
    b = a.T if own else data.draw(laid_out((n, p), data.draw(st.sampled_from([dtype, dtype, dtype, data.draw(kind)]))))
    outcome = []
    with np.errstate(all="ignore"):
        for worker in (Worker(True), Worker(False)):
            worker.put(1, a)
            worker.put(2, b)
            arguments = [[values.HANDLE, 1], [values.HANDLE, 2]], {}
            for turn in range(5):
                worker.run([ops.Call.tag, BY_NAME["matmul"].id, [3 + turn], *arguments])
                squared = arguments[0][:1] * 2, {}  # which is seldom possible
                worker.run([ops.Call.tag, BY_NAME["matmul"].id, [30 + turn], *squared])
                outcome.append([worker.found(handle + turn) for handle in (3, 30)])
    assert outcome[:5] == outcome[5:]


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data(), st.lists(st.sampled_from([1, 2, 3, 7, 40]), max_size=4))
def test_copies_and_assignments(data, shape):
    kinds = st.sampled_from(["f4", "f8", "i2", "?", "c16", ">f4"])
    dtype, steps = data.draw(kinds), [data.draw(st.sampled_from([1, 1, 2, -1, -3])) for _ in shape]
    other = [n if data.draw(st.integers(0, 3)) else 1 for n in shape][data.draw(st.integers(0, len(shape))) :]
    value = data.draw(laid_out(tuple(other), dtype if data.draw(st.integers(0, 4)) else data.draw(kinds)))
    overlapping, turned = data.draw(st.booleans()) and other == shape, data.draw(st.booleans())
    said = [values.DTYPE, values.encode_dtype(value.dtype)]
    outcome = []
    with np.errstate(all="ignore"):
        for worker in (Worker(True), Worker(False)):
            whole = np.zeros([n * abs(step) for n, step in zip(shape, steps)], dtype)
            target = whole[tuple(slice(None, None, step) for step in steps)]
            worker.put(1, target.transpose(range(len(shape))[::-1]) if turned and shape == shape[::-1] else target)
            worker.put(2, value)
            assign = [ops.Call.tag, BY_NAME["ndarray.setitem"].id, [], [[values.HANDLE, 1], [values.ELLIPSIS]], {}]
            assign[3].append([values.HANDLE, 2])
            worker.run(assign, [ops.Call.tag, BY_NAME["ndarray.copy"].id, [3], [[values.HANDLE, 2], said], {}])
            outcome.append([whole.tobytes(), worker.found(3)])
            if overlapping:
                worker.put(2, worker.executor.table.peek(1)[::-1] if shape else target)
                worker.run(assign)
                outcome[-1].append(whole.tobytes())
    assert outcome[0] == outcome[1]


def test_plain_copies_go_straight():
    worker, array = Worker(True), np.arange(12.0).reshape(3, 4)
    worker.put(1, array.copy())
    worker.put(2, array.T)
    worker.put(4, array[:, 1].copy())
    handles = [[values.HANDLE, handle] for handle in range(5)]
    worker.run([ops.Call.tag, BY_NAME["ndarray.copy"].id, [3], [handles[2], [values.DTYPE, "<f8"]], {}])
    worker.run([ops.Call.tag, BY_NAME["ndarray.setitem"].id, [], [handles[3], [values.ELLIPSIS], handles[4]], {}])
    assert worker.executor._loop.straight == 2
    assert worker.executor.table.peek(3).tolist() == [[1, 5, 9]] * 4


def reduced(worker, name, times, axis, keepdims):
    """What a reduction of array 1 gives so many times: one outcome, if they are all alike."""
    wire = axis if axis is None or isinstance(axis, int) else [values.TUPLE, *axis]
    options = {"axis": wire} | ({"keepdims": keepdims} if keepdims is not None else {})
    worker.run([ops.Free.tag, list(range(10, 10 + times))])
    worker.run(*[[ops.Call.tag, BY_NAME[name].id, [10 + n], [[values.HANDLE, 1]], options] for n in range(times)])
    return {worker.found(10 + n) for n in range(times)}


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data(), st.sampled_from("sum sum prod mean mean max amax min amin any all".split()))
def test_reductions(data, name):
    shape = tuple(data.draw(st.lists(st.sampled_from([1, 2, 2, 3, 7, 16, 33, 40]), min_size=1, max_size=4)))
    dtype = data.draw(st.sampled_from(["f4", "f4", "f8", "f8", "?", "i4", "i8", "f2", ">f4"]))
    array = data.draw(laid_out(shape, dtype))
    if data.draw(st.integers(0, 3)):
        array = np.ascontiguousarray(array)
    one = st.integers(-len(shape), len(shape) - 1) | st.just(len(shape) - 1)
    axis = data.draw(st.none() | one | one | st.just(4) | st.lists(one, max_size=3).map(tuple))
    keepdims = data.draw(st.sampled_from([None, True, False]))
    compiled, pure = Worker(True), Worker(False)
    outcomes = []
    with np.errstate(all="ignore"):
        for same in (array, array[::-1].copy()):  # the first one while it is proven
            for worker, times in ((compiled, 32), (pure, 1)):
                worker.put(1, same)
                outcomes.append(reduced(worker, name, times, axis, keepdims))
    assert outcomes[0] == outcomes[1] and outcomes[2] == outcomes[3]


@pytest.mark.parametrize(
    "name, shape, axis",
    [("sum", (128, 10), 0), ("sum", (20, 3, 40), 1), ("sum", (1000,), None), ("max", (128, 10), 1),
     ("prod", (9, 9), None), ("mean", (8, 3, 2, 3, 2, 16), (2, 4)), ("mean", (5, 200), -1), ("min", (2, 3, 4), (0, 2))],
)  # fmt: skip
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_plain_reductions_and_products_go_straight(name, shape, axis, dtype):
    worker = Worker(True)
    worker.put(1, np.random.default_rng(3).standard_normal(shape).astype(dtype))
    expected = np.asarray(getattr(np, name)(worker.executor.table.peek(1), axis=axis)).tobytes()
    for _ in range(3):
        before = worker.executor._loop.straight
        ((_, _, _, found),) = reduced(worker, name, 20, axis, False)
        assert found == expected
    assert worker.executor._loop.straight == before + 20
    square = np.random.default_rng(3).standard_normal((6, 6)).astype(dtype)
    worker.put(1, square)
    before = worker.executor._loop.straight
    worker.run([ops.Call.tag, BY_NAME["matmul"].id, [9], [[values.HANDLE, 1]] * 2, {}])
    assert worker.executor._loop.straight == before + 1 and worker.found(9)[3] == (square @ square).tobytes()


def test_memory_beyond_the_limit_is_refused_as_ever():
    worker = Worker(True)
    worker.executor.table.limit = 100_000
    worker.put(1, np.ones(5000))
    worker.run(*[[ops.Binary.tag, BY_NAME["add"].id, 10 + n, 1, 1] for n in range(6)])
    assert [worker.found(10 + n) == "Poison" for n in range(6)] == [False, True, True, True, True, True]
    assert worker.executor.table.used <= 100_000


def test_what_takes_a_moment_is_answered_as_any_other_read_is():
    posted = []
    executor = Executor(CpuBackend(), posted.append)

    def both(*commands, payload=()):
        """What the message is answered at once, and what it is answered the long way."""
        frames = [codec.pack([1, list(commands)]), *payload]
        at_once = executor.answer(list(frames))
        posted.clear()
        executor.run(frames)
        return at_once, posted[0] if posted else None

    arrays = np.arange(6.0).reshape(2, 3), np.asfortranarray(np.ones((2, 3))), np.arange(20_000.0), np.ones(200_000)
    for handle, array in enumerate(arrays, 1):
        executor.table.put(handle, array, array.nbytes)
    read = ops.Read.encode
    for command in (read(7, 1, 0, "<f8", [2, 3]), read(1 << 40, 2, 1, "<f8", [2, 3]), ops.Sync.encode(300)):
        at_once, later = both(command)
        assert at_once == later is not None
    before = executor.commands
    assert executor.answer([codec.pack([1, [ops.Sync.encode(5)]])]) is not None and executor.commands == before + 1
    for command in (
        read(7, 1, 0, "<f4", [2, 3]),  # not what the client takes it for
        read(7, 1, 0, "<f8", [3, 2]),
        read(7, 1, 1, "<f8", [2, 3]),  # lies otherwise
        read(7, 4, 0, "<f8", [200_000]),  # of several messages
        ops.Unary.encode(BY_NAME["sqrt"].id, 20, 1),
    ):
        assert both(command)[0] is None
    executor._loop.lent = False
    (head, data), later = both(read(7, 3, 0, "<f8", [20_000]))  # its memory is on its way
    assert [head, bytes(data)] == [later[0], bytes(later[1])] and executor._loop.lent
    assert np.frombuffer(data).base is not None and np.shares_memory(np.frombuffer(data), arrays[2])
    executor.table.free(3)
    del arrays
    assert np.frombuffer(data)[19_999] == 19_999
    for body in (b"", b"\x92\x01\x91", codec.pack([1, [ops.Sync.encode(5)] * 2]), b"\x92\x01\x91\x92\x0d"):
        assert executor.answer([body]) is None
    assert executor.answer([]) is None
    executor.watch(True)
    assert executor.answer([codec.pack([1, [ops.Sync.encode(5)]])]) is None


@pytest.mark.parametrize("case", ["a twin", "sim"])
def test_functions_that_somebody_watches_are_called(case, monkeypatch):
    """One of two workers notices what the other may sum in another order; a simulated device takes its time."""
    monkeypatch.setenv("RGPU_SIM", "launch=1e-3")
    backend = CpuBackend() if case == "a twin" else SimBackend()
    executor = Executor(backend, lambda frames: None)
    executor.table.put(1, np.ones((8, 8)), 512)
    if case == "a twin":
        executor.run([codec.pack([1, [[ops.Twin.tag, False, 0, 2, 2]]])])
    total = BY_NAME["sum"].id
    for n in range(40):
        executor.run([codec.pack([1, [[ops.Call.tag, total, [10 + n], [[values.HANDLE, 1]], {"axis": 0}]]])])
    assert executor._loop.straight == 0 and executor.table.peek(49).sum() == 64
    assert executor.leeway > 0 if case == "a twin" else backend.finished > 0


def test_memory_that_somebody_has_is_nobody_elses():
    """What is freed lends its memory to the next results of its kind, unless anybody still refers to it."""
    worker, n = Worker(True), iter(range(10, 1 << 20)).__next__
    add, negative = BY_NAME["add"].id, BY_NAME["negative"].id
    kinds = [np.full(shape, 3, dtype) for shape in ((), (1,), (64,), (8, 8), (2, 4, 8), (4096,)) for dtype in DTYPES]
    held = []
    for _ in range(40):  # proofs first; then each kind in turn, some of them in each other's place
        for host in kinds:
            source, made, view, after = n(), n(), n(), n()
            worker.put(source, host.copy())
            worker.run(ops.Binary.encode(add, made, source, source), ops.Unary.encode(negative, after, source))
            expected = host + host
            found = worker.executor.table.peek(made)
            match len(held) % 4:
                case 0:
                    held.append((found, expected))
                case 1:
                    held.append((memoryview(found), expected))
                case 2:  # as views of the session's are
                    held.append((found[...], expected))
                case 3:
                    held.append((None, expected))
            del found
            worker.run(ops.Free.encode([source, made, view, after]))
    for kept, expected in held:
        if kept is not None:
            assert np.asarray(kept).tobytes() == expected.tobytes()
    assert len(worker.executor.table) == 0
