"""Calls that repeat, without the C core: a signature holds all that decides what a call sends."""

import itertools

import numpy as np
import pytest

from rgpu.client import pool, quick, repeat
from rgpu.client.meta import fresh
from rgpu.client.queue import PureQueue, next_handle
from rgpu.wire import codec, ops, values

F8 = np.dtype("f8")


class Array:
    def __init__(self, stream, shape, handle=0):
        self._handle, self._metadata, self._stream = handle or next_handle(), fresh(shape, F8), stream
        self._root, self._offset = None, 0


class Stream(PureQueue):
    armed = direct = True

    def __init__(self):
        super().__init__()
        self.noted, self.sent = None, []

    def flush_batch(self):
        _, commands = codec.unpack(self.take(4096, True))
        self.sent += commands


@pytest.fixture
def stream(monkeypatch):
    made = Stream()
    monkeypatch.setattr(repeat, "array", Array)
    monkeypatch.setattr(pool._thread, "stream", made, raising=False)
    return made


def counted(**how):
    """A function that issues one command which carries its arrays, and in a text everything else but floats. Which
    arrays are one decides its result's layout. How often it was asked is in ``calls``."""
    calls = []

    def wire(x):
        if type(x) is Array:
            return [values.HANDLE, x._handle]
        if type(x) in (tuple, list):
            return [values.TUPLE, *map(wire, x)]
        return x if type(x) is float else f"{type(x).__name__} {x}"

    def slow(*args, **named):
        calls.append(args)
        stream = next(x for x in args if type(x) is Array)._stream
        result = Array(stream, (len({x._handle for x in (*args, *named.values()) if type(x) is Array}),))
        command = (ops.Call.tag, 7, (result._handle,), [*map(wire, args)], {k: wire(x) for k, x in named.items()})
        stream.add(command, None)
        quick.note(stream, command, result._handle)
        return result

    return repeat.repeating(slow, quick.learn, **how), slow, calls


class Named:
    """An object that decides by its identity, though it equals others."""

    def __eq__(self, other):
        return True

    def __hash__(self):
        return 1


def test_what_differs_is_told_apart(stream):
    """Whatever was called before, a call sends what it would send alone."""
    fast, slow, calls = counted()
    a, b, square = Array(stream, (4,)), Array(stream, (4,)), Array(stream, (2, 2))
    rest = [
        (), (1,), (True,), (0,), (False,), (1.0,), (2.5,), (-1.0,), ("1",), (None,), (...,), (2**70,), ((),), ((1,),),
        ((True,),), ((1.0,),), ([1],), (int,), (float,), (bool,), (F8,), (np.dtype("f4"),), (np.dtype(">f8"),),
        ("<f8",), (slice(1),), (slice(0, 1),), (slice(None, 1, 1),), (slice(True),), (slice(1.0),), (1, 1), (1, True),
        (int, 1), (b,), (a,), (square,), ((a, b),), ((b, a),), ((a, a),), (b, b), (b, square),
        (2.0, 3.0), (b, 2.0), (2.0, b),
    ]  # fmt: skip
    forms = [((first, *more), {}) for first in (a, square) for more in rest]
    forms += [((a,), {"axis": x}) for x in (0, False, 0.0, None, "0", (0,), b, a)] + [((a,), {"ddof": 0})]
    forms += [((a,), {"axis": 0, "ddof": 1}), ((a,), {"ddof": 0, "axis": 1})]
    rng = np.random.default_rng(7)
    for place in [*range(len(forms)), *rng.integers(0, len(forms), 1500)]:
        args, named = forms[place]
        got, expected = fast(*args, **named), None
        stream.flush_batch()
        sent = stream.sent.pop()
        expected = slow(*args, **named)
        calls.pop()
        stream.flush_batch()
        alone = stream.sent.pop()
        assert sent[2] == [got._handle] and alone[2] == [expected._handle]
        assert [repr(x) for x in (sent[3], sent[4])] == [repr(x) for x in (alone[3], alone[4])], forms[place]
        assert not stream.sent and got._metadata is expected._metadata
    assert len(calls) < 1000 and any(type(x) is not int for x in fast.known.values())


def test_numbers_of_one_value_and_of_two(stream):
    fast, _, calls = counted(numbers=True)
    a, half = Array(stream, (4,)), 0.5
    for x, y in [(half, half)] * 4 + [(0.25, 0.75)] * 4 + [(half, half), (0.1, 0.9)]:
        fast(a, x, y)
        stream.flush_batch()
        assert stream.sent.pop()[3][1:] == [x, y]
    assert len(calls) < 10


def test_objects_decide_by_identity(stream):
    fast, _, calls = counted(itself=True)
    a, objects = Array(stream, (4,)), [Named(), Named()]
    for _ in range(4):
        for x in objects:
            fast(x, a)
            stream.flush_batch()
            assert stream.sent.pop()[3][0] == f"Named {x}"
    assert len(calls) == 4 and [x.kept for x in fast.known.values()] == objects


def test_other_streams_and_closed_ones_go_the_long_way(stream):
    fast, _, calls = counted()
    a, b = Array(stream, (4,)), Array(Stream(), (4,))
    for _ in range(3):
        fast(a)
    assert len(calls) == 2
    for call in (lambda: fast(a, b), lambda: fast(a, (b,)), lambda: fast(a, out=b), lambda: fast(b)):
        for _ in range(4):
            before = len(calls)
            call()
            assert len(calls) == before + 1
    stream.direct, before = False, len(calls)
    fast(a)
    assert len(calls) == before + 1


def test_signatures_are_bounded(stream):
    fast, _, _ = counted()
    a = Array(stream, (4,))
    for n in itertools.chain(range(repeat._KEPT + 10), range(5)):
        fast(a, n)
    assert len(fast.known) <= repeat._KEPT
    before = len(fast.known)
    for large in (tuple(range(1000)), "x" * 10_000, 1 << 10_000):
        fast(a, large)
    assert len(fast.known) == before
    assert all(len(key) < 100 for key in fast.known)


def test_what_takes_several_commands_is_not_learned(stream):
    def slow(a):
        stream.add((ops.Free.tag, (1,)), None)
        command = (ops.Unary.tag, 1, (result := Array(stream, (3,)))._handle, a._handle)
        stream.add(command, None)
        quick.note(stream, command, result._handle)
        return result

    fast, a = repeat.repeating(slow, quick.learn), Array(stream, (4,))
    for _ in range(5):
        fast(a)
    assert stream.total == 10 and not fast.known
