"""What repeats on a CUDA device is launched as graphs, over a stand-in for CUDA: the same bits, sizes and errors."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given as given_by_hypothesis
from hypothesis import settings
from hypothesis import strategies as st

from rgpu.client import peer, pool
from rgpu.errors import ProtocolError
from rgpu.server import plans, segments
from rgpu.wire import ops, values
from tests.support.cuda_stand_in import installed
from tests.support.repeating import (
    FN,
    Session,
    array,
    binary,
    call,
    free,
    given,
    inplace,
    new,
    unary,
    view,
)  # fmt: skip


@pytest.fixture(scope="module")
def module():
    with installed() as found:
        yield found


X = np.arange(1.0, 101.0)
#: new+2 = the new x; everything else is temporary
STEP = [
    binary("multiply", new(0), given(0), 0.5),
    unary("sin", new(1), new(0)),
    binary("add", new(2), new(1), given(0)),
    free(new(0), new(1)),
    free(given(0)),
]


def loop(session, times, commands=STEP, start=1):
    """x = step(x), as a training loop has it; the handle of the last x."""
    session.define(commands)
    handle, base = start, 1000
    for _ in range(times):
        session.replay(base, [handle])
        handle, base = base + 2, base + 10
    return handle


def both(module, work, **options):
    """What work(session) leaves, with graphs and without; the session with graphs."""
    plain = Session(module, graphs=False, **options)
    result = work(plain)
    expected = plain.contents(), plain.failures(), result
    session = Session(module, **options)
    result = work(session)
    assert (session.contents(), session.failures(), result) == expected
    return session


def test_a_loop_is_launched_as_graphs_and_computes_the_same(module):
    def work(session):
        session.put(1, X)
        return loop(session, 40)

    session = both(module, work)
    captured, launched, refused, commands = session.graphs.figures()
    assert captured and launched > 25 and not refused
    assert commands == launched * len(STEP)
    assert session.machine.launches == launched + captured  # a proof launches once


# ---- programs of all kinds ------------------------------------------------------------------


class Program:
    """Commands at random, as a client could repeat them: handles 1 to 4 stay, two results go on to the next time."""

    def __init__(self, seed):
        self.random = random = np.random.default_rng(seed)
        self.commands, self.next = [], 0
        self.roots = {1: None, 2: None, 3: None, 4: None, given(0): None, given(1): None}  # live -> root of a view
        self.wrong = random.random() < 0.15
        for _ in range(random.integers(20, 58)):
            random.choice([
                self.element, self.element, self.element, self.scalar, self.pair, self.change, self.reduce, self.made,
                self.assign, self.part, self.look, self.drop, self.drop, self.product,
            ])()  # fmt: skip
        self.carried = [self.fresh(), self.fresh()]
        for handle in self.carried:
            self.commands.append(binary("add", handle, self.any(), self.any()))
        for handle in [h for h in self.roots if type(h) is str and h not in self.carried]:
            if random.random() < 0.97 or handle in (given(0), given(1)):
                self.commands.append(free(handle))

    def fresh(self):
        self.next += 1
        return new(self.next)

    def any(self, owners=False):
        found = [h for h, root in self.roots.items() if not (owners and root)]
        return found[self.random.integers(len(found))]

    def result(self, command, handle, root=None):
        self.commands.append(command)
        self.roots[handle] = root

    def element(self):
        out = self.fresh()
        self.result(unary(self.random.choice(["sin", "negative", "cos", "tanh"]).item(), out, self.any()), out)

    def scalar(self):
        out = self.fresh()
        number = given(2) if self.random.random() < 0.1 else float(self.random.integers(-3, 3)) / 4
        self.result(binary("multiply", out, self.any(), number), out)

    def pair(self):
        out = self.fresh()
        self.result(binary(self.random.choice(["add", "subtract", "maximum"]).item(), out, self.any(), self.any()), out)

    def change(self):
        self.commands.append(inplace("add", self.any(), self.any() if self.random.random() < 0.5 else 0.25))

    def reduce(self):
        total, out = self.fresh(), self.fresh()
        self.commands.append(call("mean", [total], array(self.any())))
        self.result(binary("subtract", out, self.any(), total), out)
        self.commands.append(free(total))

    def made(self):
        out = self.fresh()
        self.result(call("full", [out], [values.TUPLE, 20], 1.5, [values.DTYPE, "<f8"]), out)

    def assign(self):
        index = [values.SLICE, int(self.random.integers(0, 5)), 15, 2]
        value = 0.5 if self.random.random() < 0.7 else array(5)
        self.commands.append(call("ndarray.setitem", [], array(self.any()), index, value))

    def part(self):
        out, small = self.fresh(), self.fresh()
        self.commands.append(call("ndarray.getitem", [small], array(self.any()), [values.SLICE, 3, 13, None]))
        self.commands.append(call("sum", [out], array(small)))
        self.commands += [free(small), inplace("add", self.any(), out), free(out)]

    def look(self):
        out, root = self.fresh(), self.any(owners=True)
        self.result(view(out, root, [20], [-8], 19 * 8), out, root)

    def drop(self):
        live = [h for h in self.roots if type(h) is str]
        handle = live[self.random.integers(len(live))]
        if handle in (given(0), given(1)) and self.random.random() < 0.7:
            return
        if len(live) > 3:
            self.commands.append(free(handle))
            del self.roots[handle]

    def product(self):
        if self.wrong and self.random.random() < 0.3:
            out = self.fresh()
            self.result(call("linalg.cholesky", [out], array(self.any())), out)
        elif self.random.random() < 0.4:
            out, more = self.fresh(), self.fresh()
            self.commands.append(call("matmul", [out], array(self.any()), array(self.any())))
            self.result(binary("add", more, self.any(), out), more)

    def run(self, session):
        for handle in (1, 2, 3, 4, 11, 12):
            session.put(handle, np.sin(np.arange(20.0) * handle))
        session.put(5, np.array(0.125))
        session.define(self.commands)
        carried, seen = [11, 12], []
        for n in range(60):
            base = 1000 * (n + 1)
            session.replay(base, [*carried, 0.5 if n < 40 else n / 16])
            carried = [base + int(handle[2:]) for handle in self.carried]
            if n % 9 == 0:
                seen.append(session.contents())
            session.run(*[[ops.Inplace.tag, FN["multiply"], h, 0.25] for h in (1, 2, 3, 4, *carried)])
        return seen


@pytest.mark.parametrize("seed", range(4))
def test_programs_at_random_are_the_same_to_the_bit(module, seed):
    launched = 0
    for n in range(3):
        session = both(module, Program(100 * seed + n).run)
        launched += session.graphs.launched
    assert launched > 10


# ---- what is special ------------------------------------------------------------------------

MEMORY = [  # x (handle 1) changes in place, y is made and read through a view of it, and goes on
    inplace("multiply", 1, 0.5),
    call("zeros", [new(0)], [values.TUPLE, 100], [values.DTYPE, "<f8"]),
    call("ndarray.setitem", [], array(new(0)), [values.SLICE, 10, 90, 2], 2.5),
    view(new(1), new(0), [50], [16], 0),
    inplace("add", new(1), 1.0),
    free(new(0)),
    view(new(2), 1, [100], [-8], 99 * 8),
    inplace("add", new(2), 0.25),
    call("sum", [new(3)], array(1)),
    inplace("add", 1, new(3)),
    free(new(2), new(3), given(0)),
]


def changes(session, times=30):
    session.put(1, X)
    session.put(2, X[::2])
    session.define(MEMORY)
    handle = 2
    for n in range(times):
        session.replay(1000 + 10 * n, [handle])
        handle = 1000 + 10 * n + 1
        session.run(inplace("multiply", 1, 0.01))


def test_changes_in_place_and_views_of_what_is_freed(module):
    session = both(module, changes)
    assert session.graphs.launched > 15 and not session.graphs.refused


@pytest.mark.parametrize(
    "spoil",
    [
        lambda operations: operations[:-1],
        lambda operations: [],
        lambda operations: operations[1:],
        lambda operations: [*operations, operations[0]],
    ],
    ids=["the last is missing", "nothing", "the first is missing", "one twice"],
)
def test_a_graph_that_does_something_else_is_not_used(module, spoil):
    def work(session):
        session.machine.spoil = spoil
        changes(session)

    session = both(module, work)
    assert session.graphs.figures() == [0, 0, 1, 0]


def test_temporary_memory_that_was_set_elsewhere_is_noticed(module):
    """A graph that relies on what its commands left in scratch memory, where nothing of it writes that."""

    def work(session):
        session.machine.spoil = lambda operations: operations[1:]  # sin reads what multiply should have made
        session.put(1, X)
        loop(session, 20)

    assert both(module, work).graphs.figures() == [0, 0, 1, 0]


def test_what_a_program_collects_is_left_out(module):
    commands = [*STEP[:3], call("mean", [new(3)], array(new(2))), *STEP[3:]]  # losses, kept for ever

    def work(session):
        session.put(1, X)
        loop(session, 60, commands)

    session = both(module, work)
    assert session.graphs.launched > 20
    assert len(session.executor.table) == 61


def test_a_number_that_changes_each_time_is_left_out(module):
    commands = [
        *STEP[:3],
        binary("multiply", new(3), new(2), given(1)),
        inplace("add", 7, new(3)),
        *STEP[3:],
        free(new(3)),
    ]

    def work(session):
        session.put(1, X)
        session.put(7, X)
        session.define(commands)
        handle, base = 1, 1000
        for n in range(60):
            session.replay(base, [handle, 0.9**n])
            handle, base = base + 2, base + 10

    assert both(module, work).graphs.launched > 10


def test_zero_and_minus_zero_are_two_numbers(module):
    commands = [binary("multiply", new(0), 1, given(0)), unary("sin", new(1), new(0)), inplace("add", 2, new(1)),
                binary("add", new(2), new(0), -0.0), free(new(1), new(0), given(1))]  # fmt: skip

    def work(session):
        session.put(1, X)
        session.put(2, X)
        session.define(commands)
        before, seen = 77, []
        for n in range(24):
            session.replay(1000 + 10 * n, [-0.0 if n % 3 == 2 else 0.0, before])
            before = 1000 + 10 * n + 2
            seen.append(session.array(before).tobytes())
        return seen

    assert both(module, work).graphs.launched > 5


def test_errors_are_told_by_their_places(module):
    def work(session):
        session.put(1, X)
        handle, base = loop(session, 20), 5000
        session.put(3, X[:7])
        session.put(4, X)
        failing = [*STEP[:2], binary("add", new(2), new(1), given(1)), *STEP[3:]]
        session.define(failing, 1)
        for n in range(30):
            session.put(base + 5, X[:7] if n % 7 == 5 else X)
            session.replay(base, [handle, base + 5], 1)
            if n % 7 == 5:
                session.replay(base + 100, [base + 2, base + 5], 1)  # of a lost value
                session.run(free(base + 2, base + 102))
                session.put(base + 2, X)
            session.run(free(base + 5))
            handle, base = base + 2, base + 1000

    session = both(module, work)
    assert len(session.failures()) == 4 and session.graphs.launched > 15


def test_a_handle_that_is_nowhere_ends_the_session_as_ever(module):
    for graphs in (True, False):
        session = Session(module, graphs)
        session.put(1, X)
        loop(session, 20)
        with pytest.raises(ProtocolError, match="unknown handle 99"):
            session.replay(9000, [99])


def test_what_cannot_be_captured_is_found_and_left_out(module):
    commands = [*STEP[:3], unary("cos", new(3), new(2)), unary("tanh", new(4), new(3)), inplace("add", 7, new(4)),
                inplace("add", 7, 0.5), free(new(3), new(4)), *STEP[3:]]  # fmt: skip

    def work(session):
        session.machine.refused = {"cos"}
        session.put(1, X)
        session.put(7, X)
        loop(session, 40, commands)

    session = both(module, work)
    assert session.graphs.refused == 1 and session.graphs.launched > 40  # the commands before it, and those behind


def test_products_of_matrices_run_between_graphs(module):
    commands = [*STEP[:3], call("matmul", [new(3)], array(new(2)), array(new(2))), inplace("add", 7, new(3)),
                unary("sin", new(4), 7), binary("add", new(5), new(4), 7), free(new(3), new(4), new(5)),
                *STEP[3:]]  # fmt: skip

    def work(session):
        session.put(1, X)
        session.put(7, X)
        loop(session, 40, commands)

    session = both(module, work)
    assert session.graphs.launched > 40 and not session.graphs.refused


def test_memory_that_graphs_hold_is_the_programs(module):
    def work(session):
        session.put(1, X)
        loop(session, 30)
        big = (12 << 20) // 8
        session.run(call("zeros", [50], [values.TUPLE, big], [values.DTYPE, "<f8"]))  # all but what is in use
        session.run(free(50))

    session = both(module, work, limit=(12 << 20) + 2048)
    assert session.failures() == [] and session.graphs._drops == 1 and session.graphs.launched > 15


def test_given_back_memory_is_free_and_the_loop_goes_on(module):
    session = Session(module)
    session.put(1, X)
    handle = loop(session, 30)
    launched = session.graphs.launched
    session.backend.release()
    assert session.backend.pools.held <= 1024  # x, and what it was made of
    session.define(STEP)
    for n in range(30):
        session.replay(9000 + 10 * n, [handle])
        handle = 9000 + 10 * n + 2
    assert session.graphs.launched > launched + 15


def test_what_was_lent_has_arrived_before_a_launch_changes_it(module):
    session = Session(module)
    session.put(1, X)
    handle, settled = loop(session, 20), []
    session.executor._settle = lambda: settled.append(session.machine.launches)
    session.executor._loop.lent, before = True, session.machine.launches
    session.replay(9000, [handle])
    assert settled == [before] and session.machine.launches == before + 1


def test_where_memory_is_short_too_often_there_are_no_graphs(module):
    session = Session(module)
    session.put(1, X)
    handle = loop(session, 20)
    for n in range(1, 4):
        assert session.graphs.drop() and (n < 3) == (not session.graphs.off)
        for k in range(10):
            session.replay(10_000 * n + 10 * k, [handle])
            handle = 10_000 * n + 10 * k + 2
    assert not session.graphs.drop()


def test_other_streams_and_twins_and_failing_launches_have_none(module):
    def streams(session):
        session.put(1, X)
        loop(session, 20)
        session.run(call("stream.create", [60], True, 0))
        launched = session.graphs and session.graphs.launched
        session.replay(9000, [1190 + 2])
        assert not session.graphs or session.graphs.launched == launched

    def twins(session):
        session.run(ops.Twin.encode(False, 0, 2, 2))
        session.put(1, X)
        loop(session, 20)
        assert not session.graphs or session.graphs.figures() == [0, 0, 0, 0]

    def failing(session):
        session.put(1, X)
        handle = loop(session, 20)
        if session.graphs:
            session.graphs.device.launch = lambda graph: 1 / 0
        for n in range(5):
            session.replay(9000 + 10 * n, [handle])
            handle = 9000 + 10 * n + 2
        assert not session.graphs or session.graphs.off

    for work in (streams, twins, failing):
        both(module, work)


@pytest.mark.parametrize("preamble", ["", "__device__ int n;"], ids=["plain", "with a state of its own"])
def test_kernels_of_the_client(module, preamble):
    commands = [
        call("kernel.elementwise.launch", [], array(30), [values.TUPLE, array(1), array(1)],
             [values.TUPLE, array(2)], -1),
        call("kernel.elementwise.launch", [new(0)], array(30), [values.TUPLE, array(2), array(1)],
             [values.TUPLE, [values.TUPLE, [values.DTYPE, "<f8"], [values.TUPLE, 100]]], -1),
        inplace("add", 2, new(0)),
        inplace("multiply", 2, 0.25),
        free(new(0)),
    ]  # fmt: skip

    def work(session):
        session.put(1, X)
        session.put(2, X)
        session.run(call("kernel.elementwise", [30], "T x, T y", "T z", "z = x * 0.5 + y", "k", True, preamble, "", "",
                         [values.TUPLE]))  # fmt: skip
        session.define(commands)
        for n in range(30):
            session.replay(1000 + 10 * n)

    assert (both(module, work).graphs.launched > 15) == (not preamble)


def test_another_template_of_the_same_number_has_its_own_graphs(module):
    other = [*STEP[:2], binary("subtract", new(2), new(1), given(0)), *STEP[3:]]

    def work(session):
        session.put(1, X)
        handle = loop(session, 20)
        session.define(other)
        for n in range(20):
            session.replay(9000 + 10 * n, [handle])
            handle = 9000 + 10 * n + 2

    assert both(module, work).graphs.launched > 25


def test_a_switch_and_figures(module, monkeypatch):
    session = Session(module)
    session.put(1, X)
    loop(session, 20)
    assert session.backend.resolve("session.graphs")() == session.graphs.figures() != [0, 0, 0, 0]
    monkeypatch.setenv("RGPU_GRAPHS", "0")
    without = Session(module)
    assert without.graphs is None and without.backend.resolve("session.graphs")() == [0, 0, 0, 0]


# ---- what there is to decide ----------------------------------------------------------------


def test_what_is_for_a_graph():
    wide = [unary("sin", 10, 1), unary("cos", 11, 10), binary("add", 12, 10, 11)]
    outside = [
        call("matmul", [20], array(1), array(1)),
        call("copyto", [], array(1), array(2), where=array(3)),
        call("sum", [20], array(1), out=array(3)),
        call("ndarray.getitem", [20], array(1), array(2)),
        call("ndarray.fill", [], array(1), array(2)),
        call("where", [20], array(1)),
        call("add", [20], array(1), [values.ARRAY, "<f8", [1], bytes(8)]),
        ops.Sync.encode(1),
        ops.Put.encode(20, "<f8", [1], bytes(8)),
        [new(0), 1, 2],
        [ops.Unary.tag, 1],
    ]
    for command in outside:
        found, reasons = segments.cut([*wide, list(command), *wide], {})
        assert [(s.first, s.last) for s in found] == [(0, 3), (4, 7)] and reasons.keys() == {3}, command
    found, reasons = segments.cut([*wide, *wide[:2]], {1: "as it was found"})
    assert [(s.first, s.last) for s in found] == [(2, 5)] and reasons[1] == "as it was found" and 0 in reasons


@settings(max_examples=200, deadline=None)
@given_by_hypothesis(st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 9), st.integers(0, 9)), max_size=30))
def test_scratch_memory_is_nobody_elses_while_it_is_needed(wanted):
    wanted = sorted(((size, first, max(first, last)) for size, first, last in wanted), key=lambda x: x[1])
    offsets, total = plans.arranged(wanted)
    for k, (size, first, last) in enumerate(wanted):
        assert offsets[k] % 512 == 0 and offsets[k] + size <= total
        for j in range(k):
            apart = offsets[j] + wanted[j][0] <= offsets[k] or offsets[k] + size <= offsets[j]
            assert apart or wanted[j][2] < first
    assert total <= sum(-(-size // 512) * 512 for size, _, _ in wanted)


def test_the_client_asks_a_cuda_device_that_something_was_repeated_on(monkeypatch):
    asked = []
    stream = SimpleNamespace(replayed=5, connection=SimpleNamespace(failure=None))
    monkeypatch.setattr(peer, "ask", lambda stream, name: asked.append(name) or [1, 20, 0, 100])
    wanted = {"captured": 1, "launched": 20, "refused": 0, "commands": 100}
    assert pool._graphs("cuda", stream) == {"graphs": wanted} and asked == ["session.graphs"]
    assert pool._graphs("cpu", stream) == pool._graphs("cuda", None) == {}
    stream.replayed = 0
    assert pool._graphs("cuda", stream) == {} and len(asked) == 1
