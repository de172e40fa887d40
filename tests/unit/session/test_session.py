"""The session alone: what leaves when, what is refused, what is repeated after a reconnect."""

import contextlib
import random

import pytest

from rgpu.session.header import ACK, DATA, HEADER, PROBE, PROBE_ACK
from rgpu.session.session import PureSession, Session

SID = b"0123456789abcdef"


class Clock:
    now = 50.0

    def __call__(self):
        return self.now


@pytest.fixture(params=sorted({Session, PureSession}, key=str), ids=lambda kind: kind.__module__)
def pair(request):
    clock, kind = Clock(), request.param
    return clock, kind(SID, 3, clock=clock), kind(SID, 3, clock=clock)


def kinds(messages):
    return [(HEADER.unpack(m[0])[1], HEADER.unpack(m[0])[4]) for m in messages]


def test_data_is_delivered_once_and_never_copied(pair):
    _, a, b = pair
    big = memoryview(bytearray(100_000))
    message = a.send([b"head", big])
    assert message[2] is big
    assert b.receive(message)[1] is big
    assert b.receive(message) is None
    assert b.counters["duplicates"] == 1


def test_window_counts_until_done(pair):
    clock, a, b = pair
    for _ in range(256):
        assert a.can_send(1)
        b.receive(a.send([b"x"]))
    assert not a.can_send(1) and a.unfinished == (256, 256)
    for m in b.outgoing(clock.now):
        a.receive(m)
    assert a.unacked == (0, 0) and not a.can_send(1)
    b.mark_done(256)
    for m in b.outgoing(clock.now):
        a.receive(m)
    assert a.unfinished == (0, 0) and a.can_send(1 << 40)


def test_reconnect_resends_only_what_is_missing(pair):
    clock, a, b = pair
    messages = [a.send([b"%d" % i]) for i in range(10)]
    for m in messages[:6]:
        b.receive(m)  # the other four are lost with the connection
    a.link_down()
    assert a.send([b"10"]) is None and a.outgoing(clock.now) == []
    a.link_up()
    assert a.send([b"11"]) is None
    probe = a.outgoing(clock.now)
    assert kinds(probe) == [(PROBE, 1)]
    b.receive(probe[0])
    answer = b.outgoing(clock.now)
    assert kinds(answer) == [(PROBE_ACK, 1)]
    a.receive(answer[0])
    again = a.outgoing(clock.now)
    assert kinds(again) == [(DATA, i) for i in range(6, 12)]
    assert [b.receive(m)[0] for m in again] == [b"%d" % i for i in range(6, 12)]
    a.receive(answer[0])
    assert a.outgoing(clock.now) == [] and a.counters["resent"] == 4 and b.counters["duplicates"] == 0


def test_silence_is_probed_with_backoff_and_never_flooded(pair):
    clock, a, b = pair
    b.receive(a.send([b"long work"]))
    sent = []
    for _ in range(600):
        clock.now += 0.1
        sent += a.outgoing(clock.now)
    assert {kind for kind, _ in kinds(sent)} == {PROBE} and 6 <= len(sent) <= 12


def test_an_old_answer_repeats_nothing(pair):
    clock, a, b = pair
    a.send([b"lost"])
    a.link_up()
    b.receive(a.outgoing(clock.now)[0])
    old = b.outgoing(clock.now)[0]
    a.link_up()
    second = a.outgoing(clock.now)
    a.receive(old)
    assert a.outgoing(clock.now) == []
    b.receive(second[0])
    a.receive(b.outgoing(clock.now)[0])
    assert kinds(a.outgoing(clock.now)) == [(DATA, 0)]


def test_acknowledgements_wait_for_company(pair):
    clock, a, b = pair
    b.receive(a.send([b"x"]))
    assert b.outgoing(clock.now) == [] and b.due() == pytest.approx(clock.now + 0.01)
    assert kinds(b.outgoing(clock.now + 0.011)) == [(ACK, 0)]
    b.receive(a.send([bytes(9 << 20)]))
    assert kinds(b.outgoing(clock.now)) == [(ACK, 0)], "a share of the window is told at once"


def test_only_the_expected_message_has_a_place(pair):
    _, a, b = pair
    first, second = a.send([b"1"]), a.send([b"2"])
    assert b.expects(first[0]) and not b.expects(second[0])
    b.receive(first)
    assert not b.expects(first[0]) and b.expects(second[0]) and not b.expects(b"junk")


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b""],
        [b"short"],
        [bytes(48)],
        [HEADER.pack(b"rg", DATA, 2, SID, 0, 0, 0), b"stale epoch"],
        [HEADER.pack(b"rg", DATA, 3, b"x" * 16, 0, 0, 0), b"another session"],
        [HEADER.pack(b"rg", 9, 3, SID, 0, 0, 0)],
        [HEADER.pack(b"rg", ACK, 3, SID, 0, 5, 0)],
        [HEADER.pack(b"rg", ACK, 3, SID, 0, 0, 1)],
        [HEADER.pack(b"rg", DATA, 3, SID, 0, 2**64 - 1, 2**64 - 1), b"x"],
    ],
    ids=str,
)
def test_refusals(pair, frames):
    _, a, b = pair
    assert b.receive(frames) is None
    assert b.refused == 1 and b.refusal
    assert b.receive(a.send([b"fine"])) == [b"fine"]


def test_a_peer_that_ignores_the_window_is_not_delivered(pair):
    clock, _, b = pair
    a = Session(SID, 3, clock=clock, window_messages=1000)
    delivered = [b.receive(a.send([b"x"])) for _ in range(300)]
    assert delivered.count(None) == 44


def test_done_cannot_exceed_what_was_delivered(pair):
    _, a, b = pair
    b.receive(a.send([b"x"]))
    with pytest.raises(ValueError, match="2 done"):
        b.mark_done(2)


@pytest.mark.parametrize("seed", range(40))
def test_the_twins_say_and_take_the_same(seed):
    """Two ends whose messages are lost, doubled, late and damaged: at every step the C core's and Python's agree."""
    choose, clock = random.Random(seed), Clock()
    settings = {"clock": clock, "window_messages": choose.choice([1, 4, 64]), "window_bytes": 3000, "rto": 0.5}
    ends = [[kind(SID, 3, **settings) for kind in (Session, PureSession)] for _ in range(2)]
    flying = [[], []]

    def both(end, act):
        first, second = (act(session) for session in ends[end])
        assert first == second
        return first

    for _ in range(400):
        clock.now += choose.choice([0.0, 0.001, 0.02, 0.7])
        end = choose.randrange(2)
        what = choose.choice(["send", "send", "poll", "poll", "hear", "hear", "hear", "done", "link", "probe"])
        if what == "send" and both(end, lambda s: s.can_send(900)):
            frames, hold = [bytes(choose.randrange(900))] * choose.randrange(1, 3), choose.random() < 0.2
            flying[1 - end].append(both(end, lambda s, f=frames, h=hold: s.send(f, hold=h)))
        elif what == "poll":
            flying[1 - end] += both(end, lambda s: s.outgoing(clock.now))
        elif what == "hear" and flying[end]:
            message = flying[end].pop(0 if choose.random() < 0.9 else -1)
            if message is None or choose.random() < 0.1:
                continue
            if choose.random() < 0.05:
                message = [message[0][:40] + choose.randbytes(8), *message[1:]]
            for _ in range(choose.choice([1, 1, 1, 2])):
                both(end, lambda s, m=message: s.expects(m[0]))
                both(end, lambda s, m=message: s.receive(list(m)))
        elif what == "done":
            with contextlib.suppress(ValueError):
                both(end, lambda s: s.mark_done() if not s.idle else None)
        elif what == "link" and choose.random() < 0.3:
            both(end, lambda s: s.link_down())
            flying = [[], []]
            for other in (0, 1):
                both(other, lambda s: s.link_up())
        elif what == "probe":
            both(end, lambda s: s.probe())
        for name in ("unacked", "unfinished", "progress", "counters", "idle", "refusal"):
            both(end, lambda s, name=name: getattr(s, name))
        both(end, lambda s: s.due())
