"""Repetitions: what leaves as one is written out on the other side as exactly what was issued."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rgpu import _native
from rgpu.client import queue
from rgpu.errors import ProtocolError
from rgpu.server.backend_cpu import CpuBackend
from rgpu.server.executor import Executor, NoLoop
from rgpu.server.replay import Templates
from rgpu.wire import codec, limits, ops, values
from rgpu.wire.functions import BY_NAME

compiled = pytest.mark.skipif(_native.issue is None, reason="what repeats is recognized by the C core alone")
ADD, EXP = BY_NAME["add"].id, BY_NAME["exp"].id


class Line:
    """A queue, and what its messages say when they are written out."""

    def __init__(self):
        self.queue = queue.Queue()
        self.queue.replay = True
        self.templates = Templates()
        self.issued, self.arrived, self.items = [], [], []

    def issue(self, command):
        self.issued.append(list(command))
        self.queue.add(tuple(command), None)

    def flush(self, whole):
        if whole:
            self.queue.gather()
        body = self.queue.take(limits.BATCH, whole)
        if not body:
            return
        number, items = codec.unpack(body)
        found = []
        for item in items:
            ops.Command.decode(item)
            if item[0] == ops.Template.tag:
                self.templates.define(*item[1:])
            else:
                found += self.templates.expand(*item[1:]) if item[0] == ops.Replay.tag else [item]
        assert len(found) == len(self.queue.places(number))  # an error is told by its place in what was written out
        self.arrived += found
        self.items += items


# A step's commands as functions of (first new handle of this step, of the step before, its number).
numbers = st.integers(1, 2**40)
forms = st.one_of(
    st.builds(lambda k: lambda new, old, n: [ops.Unary.tag, EXP, new + k, old + k], st.integers(0, 20)),
    st.builds(lambda k, x: lambda new, old, n: [ops.Binary.tag, ADD, new + k, x, old], st.integers(0, 20), numbers),
    st.builds(lambda x: lambda new, old, n: [ops.Inplace.tag, ADD, x + 1, x * n + 0.5], st.integers(0, 9)),
    st.builds(lambda x: lambda new, old, n: [ops.Call.tag, 300, [new], [[values.HANDLE, old]], {"axis": x}], numbers),
    st.builds(lambda k: lambda new, old, n: [ops.Free.tag, [old + k, old + k + 1]], st.integers(0, 20)),
    st.builds(lambda x: lambda new, old, n: [ops.Put.tag, new, "<f8", [1], bytes([n % 251] * 8)], numbers),
)


@compiled
@settings(max_examples=150, deadline=None)
@given(
    st.lists(forms, min_size=1, max_size=40),
    st.integers(2, 60),
    st.lists(st.sampled_from(["wait", "full", "none"]), min_size=1, max_size=3),
    st.booleans(),
)
def test_what_is_written_out_is_what_was_issued(step, times, flushes, odd):
    line, old = Line(), 1
    for n in range(times):
        new = queue.next_handle()
        for _ in range(30):
            queue.next_handle()
        for form in step:
            line.issue(form(new, old, n))
        if odd and n % 7 == 5:
            line.issue([ops.Empty.tag, new + 25, "<f4", [3], None])
        how = flushes[n % len(flushes)]
        if how == "wait":
            line.issue([ops.Sync.tag, n])
        if how != "none":
            line.flush(how == "wait")
        old = new
    line.flush(True)
    assert line.arrived == line.issued
    assert line.queue.unsent == 0


def training(line, n, old, read):
    new = queue.next_handle()
    for k in range(50):
        line.issue([ops.Binary.tag, ADD, new + k, old + k, new if k else 5])
        queue.next_handle()
    line.issue([ops.Inplace.tag, ADD, 7, 0.5 ** (n + 1)])
    if read:
        line.issue([ops.Read.tag, n, new, 0, "<f8", []])
    return new


@compiled
@pytest.mark.parametrize("read", [True, False])
def test_a_loop_leaves_as_repetitions(read):
    line, old = Line(), 100
    for n in range(400):
        old = training(line, n, old, read)
        if read:
            line.flush(True)
        elif line.queue.unsent >= 1024:
            line.flush(False)
    line.flush(True)
    assert line.arrived == line.issued
    assert line.queue.replayed > 0.9 * len(line.issued)
    sizes = [len(codec.pack(item)) for item in line.items]
    assert sum(sizes) < 0.1 * sum(len(codec.pack(command)) for command in line.issued)


@compiled
def test_the_beginning_of_a_repetition_stays_in_a_full_queue():
    line, old = Line(), 100
    for n in range(30):
        old = training(line, n, old, False)
    for k in range(20):  # the beginning of the next repetition, which stays in the queue
        line.issue([ops.Binary.tag, ADD, queue.next_handle(), old + k, 5])
    line.flush(False)
    assert 20 <= line.queue.unsent < 20 + 51
    line.flush(True)
    assert line.arrived == line.issued


def test_nothing_repeats_unless_it_is_asked_for():
    line = Line()
    line.queue.replay = False
    for n in range(50):
        training(line, n, 100, True)
        line.flush(True)
    assert line.queue.replayed == 0 and line.arrived == line.issued == line.items


# ---- the worker's side ----------------------------------------------------------------------


class Worker:
    def __init__(self, loop):
        self.answers = []
        self.executor = Executor(CpuBackend(memory_limit=1 << 20), self.answers.append)
        if not loop:
            self.executor._loop = NoLoop()
        self.run(ops.Put.encode(1, "<f8", [3], np.arange(3.0).tobytes()))

    def run(self, *commands):
        before = self.executor.commands
        self.executor.run([codec.pack([9, list(commands)])])
        return self.executor.commands - before

    def array(self, handle):
        return self.executor.table.get(handle).tolist()

    def failures(self):
        found = [ops.Reply.decode(codec.unpack(frames[0])) for frames in self.answers]
        return [(x.batch, x.index, x.kind, x.handles) for x in found if isinstance(x, ops.Failed.Record)]


@pytest.fixture(params=["loop", "no loop"])
def worker(request):
    return Worker(request.param == "loop")


def template(commands, holes, number=0):
    """A Template of commands in which each string '?k' stands for hole k."""
    data, pieces, kinds = b"", [], []
    rest = b"".join(codec.pack(command) for command in commands)
    for name, kind in holes:
        before, _, rest = rest.partition(codec.pack(name))
        data, pieces, kinds = data + before, [*pieces, len(before)], [*kinds, kind]
    return ops.Template.encode(number, len(commands), data + rest, [*pieces, len(rest)], kinds)


STEP = template(
    [[ops.Binary.tag, ADD, "?a", 1, "?b"], [ops.Inplace.tag, ADD, "?c", 1]], [("?a", 0), ("?b", None), ("?c", 0)]
)


def test_a_repetition_runs_and_counts_as_its_commands(worker):
    assert worker.run(STEP) == 0
    assert worker.run(ops.Replay.encode(0, 10, [1.5]), [ops.Unary.tag, EXP, 20, 10]) == 3
    assert worker.run(ops.Replay.encode(0, 11, [[values.INT, 2]] and [1])) == 2
    assert worker.array(10) == [1.5, 3.5, 5.5]
    assert worker.array(11) == [0.0, 3.0, 6.0]  # the operand 1 is a handle
    assert np.allclose(worker.array(20), np.exp([1.5, 3.5, 5.5]))


def test_an_error_is_told_by_its_place_when_written_out(worker):
    worker.run(STEP)
    worker.run(ops.Put.encode(5, "<f8", [4], bytes(32)))
    worker.run(
        [ops.Free.tag, [77]],
        ops.Replay.encode(0, 10, [5]),
        ops.Replay.encode(0, 11, [2.0]),
        [ops.Unary.tag, EXP, 12, 10],
    )
    assert worker.failures() == [(9, 1, "ValueError", [10])]  # what uses it fails without a word
    assert worker.array(11) == [2.0, 4.0, 6.0]


AGAIN = ops.Replay.encode(0, 1, [])
_UNARY = [ops.Unary.tag, EXP, 9, 1]
BAD = {
    "unknown": [ops.Replay.encode(3, 1, [])],
    "too few values": [STEP, ops.Replay.encode(0, 10, [])],
    "too many values": [STEP, ops.Replay.encode(0, 10, [1.0, 2.0])],
    "a list as a value": [STEP, (ops.Replay.tag, 0, 10, [[1]])],
    "a number beyond": [ops.Template.encode(limits.TEMPLATES, 1, b"\xc0", [1], [])],
    "no commands": [ops.Template.encode(0, 0, b"", [0], [])],
    "pieces that do not fit": [ops.Template.encode(0, 1, b"\xc0", [2], [])],
    "a piece too few": [ops.Template.encode(0, 1, b"\xc0", [1], [0])],
    "commands that end early": [ops.Template.encode(0, 2, codec.pack(_UNARY), [6], []), AGAIN],
    "more than its commands": [(*template([_UNARY], [])[:2], 2, *template([_UNARY], [])[3:]), AGAIN],
    "itself": [template([[ops.Replay.tag, 0, 1, []]], []), AGAIN],
    "itself in disguise": [ops.Template.encode(0, 1, b"\xdc\x00\x04\x11\x00\x01\x90", [7], []), AGAIN],
    "a template": [template([list(STEP)], []), AGAIN],
    "a command twice": [STEP, ops.Replay.encode(0, 10, [1.0]), ops.Replay.encode(0, 10, [1.0])],
    "an end within": [template([[ops.Bye.tag, 3]], []), AGAIN],
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_refused(worker, name):
    with pytest.raises(ProtocolError):
        worker.run(*BAD[name])


def test_a_message_of_repetitions_has_an_end(worker):
    worker.run(template([[ops.Free.tag, [99]]] * 4000, []))
    assert worker.run(*[ops.Replay.encode(0, 1, [])] * 16) == 64_000
    with pytest.raises(ProtocolError, match="65536"):
        worker.run(*[ops.Replay.encode(0, 1, [])] * 17)
