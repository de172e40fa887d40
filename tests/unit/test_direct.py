"""Element-wise functions by their inner loops give NumPy's bytes, whatever the arrays look like."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rgpu import _core
from rgpu.server.backend_cpu import CpuBackend
from rgpu.server.executor import Executor, NoLoop
from rgpu.wire import codec, ops, values
from rgpu.wire.functions import BY_NAME

pytestmark = pytest.mark.skipif(_core.execute is None, reason="the C core is not built here")
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
    second = dtype if draw(st.integers(0, 4)) else draw(st.sampled_from(DTYPES))
    a, b = draw(laid_out(tuple(shape), dtype)), draw(laid_out(tuple(other), second))
    return (a, b) if draw(st.booleans()) else (b, a)


numbers = st.floats(width=32) | st.sampled_from([0.1, 1e300, 3]) | st.integers(-(2**40), 2**40) | st.integers(-3, 3)


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
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

    arrays = np.arange(6.0).reshape(2, 3), np.asfortranarray(np.ones((2, 3))), np.ones(20_000)
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
        read(7, 3, 0, "<f8", [20_000]),  # large
        ops.Unary.encode(BY_NAME["sqrt"].id, 20, 1),
    ):
        assert both(command)[0] is None
    for body in (b"", b"\x92\x01\x91", codec.pack([1, [ops.Sync.encode(5)] * 2]), b"\x92\x01\x91\x92\x0d"):
        assert executor.answer([body]) is None
    assert executor.answer([]) is None
    executor.watch(True)
    assert executor.answer([codec.pack([1, [ops.Sync.encode(5)]])]) is None
