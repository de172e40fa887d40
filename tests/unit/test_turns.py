"""Turns on a device: shares in proportion, nothing unused, no time saved up, nobody forgotten. The clock is ours."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rgpu.server.turns import ENDLESS, QUANTUM, Turns


class Device:
    """A device whose sessions work as their turns say; ``worked`` seconds each."""

    def __init__(self):
        self.now, self.told = 0.0, []
        self.turns = Turns(lambda: self.now, lambda session, seconds: self.told.append((session, seconds)))
        self.worked = {}

    def pass_turns(self, seconds):
        """Everybody always has more to do."""
        end = self.now + seconds
        while self.now < end:
            session, length = self.told[-1]
            used = length or 1.0
            self.now += used
            self.worked[session] = self.worked.get(session, 0.0) + used
            self.turns.over(session, used, True)


@pytest.fixture
def device():
    return Device()


def test_one_that_is_alone_asks_once(device):
    device.turns.join(b"a", 0.5)
    device.turns.want(b"a")
    device.turns.want(b"a")
    assert device.told == [(b"a", ENDLESS)]


@pytest.mark.parametrize("weights", [(0.75, 0.25), (0.5, 0.3, 0.2), (1.0, 0.01), (0.5, 0.5)])
def test_shares_are_in_proportion(device, weights):
    names = [bytes([65 + n]) for n in range(len(weights))]
    for name, weight in zip(names, weights):
        device.turns.join(name, weight)
        device.turns.want(name)
    device.turns.over(names[0], 0.0, True)  # it had an endless turn while it was alone
    device.pass_turns(400)
    for name, weight in zip(names, weights):
        assert device.worked[name] / sum(device.worked.values()) == pytest.approx(weight / sum(weights), rel=0.05)


def test_an_endless_turn_gets_an_end_when_somebody_comes(device):
    for name in (b"a", b"b"):
        device.turns.join(name, 0.5)
    device.turns.want(b"a")
    device.now = 100.0
    device.turns.want(b"b")
    assert device.told[0] == (b"a", ENDLESS)
    session, seconds = device.told[1]
    assert session == b"a" and QUANTUM <= seconds < 1
    device.now += seconds
    device.turns.over(b"a", 100.0 + seconds, True)  # what it had while nobody wanted it does not count
    assert device.told[2][0] == b"b" and device.told[2][1] < 1


def test_an_idle_one_costs_nothing_and_saves_nothing_up(device):
    for name in (b"a", b"b"):
        device.turns.join(name, 0.5)
    device.turns.want(b"a")
    device.now = 50.0
    device.turns.over(b"a", 50.0, True)
    assert device.told[-1] == (b"a", ENDLESS)  # b wants nothing
    device.turns.want(b"b")
    device.worked.clear()
    device.pass_turns(100)
    assert device.worked[b"a"] == pytest.approx(device.worked[b"b"], rel=0.1)  # not 50 seconds of b first


def test_when_the_holder_leaves_the_next_one_runs(device):
    for name in (b"a", b"b"):
        device.turns.join(name, 0.5)
        device.turns.want(name)
    device.turns.leave(b"a")
    assert device.told[-1] == (b"b", ENDLESS)
    device.turns.over(b"a", 1.0, True)  # late words of one that is gone
    device.turns.want(b"a")
    assert device.told[-1] == (b"b", ENDLESS)


def test_who_claims_to_have_worked_longer_than_the_time_that_passed_is_not_believed(device):
    for name in (b"a", b"b"):
        device.turns.join(name, 0.5)
        device.turns.want(name)
    device.now += 0.02
    device.turns.over(b"a", -5.0, True)
    device.now += 0.02
    device.turns.over(b"b", 1e9, True)
    device.worked.clear()
    device.pass_turns(100)
    assert device.worked[b"a"] == pytest.approx(device.worked[b"b"], rel=0.1)


class AnyOrder(RuleBasedStateMachine):
    """Whatever comes in whatever order: one holder at most, and never nobody while somebody waits."""

    names = st.sampled_from([b"a", b"b", b"c"])

    def __init__(self):
        super().__init__()
        self.now, self.holder, self.waits = 0.0, None, set()
        self.turns = Turns(lambda: self.now, self.give)
        self.members = set()

    def give(self, session, seconds):
        assert session in self.members and seconds >= 0
        assert self.holder in (None, session)
        self.holder = session
        self.waits.discard(session)

    @rule(name=names, weight=st.sampled_from([0.01, 0.25, 0.5, 1.0]))
    def join(self, name, weight):
        self.turns.join(name, weight)
        self.members.add(name)

    @rule(name=names)
    def leave(self, name):
        self.members.discard(name)
        self.waits.discard(name)
        self.holder = None if self.holder == name else self.holder
        self.turns.leave(name)

    @rule(name=names)
    def want(self, name):
        if name in self.members and name != self.holder:
            self.waits.add(name)
        self.turns.want(name)

    @precondition(lambda self: self.holder)
    @rule(seconds=st.floats(0, 2), again=st.booleans())
    def over(self, seconds, again):
        self.now += seconds
        session, self.holder = self.holder, None
        if again:
            self.waits.add(session)
        self.turns.over(session, seconds, again)

    @rule(name=names)
    def over_by_another(self, name):
        if name != self.holder:
            self.turns.over(name, 1.0, True)

    @invariant()
    def nobody_waits_for_nobody(self):
        assert self.holder is not None or not self.waits


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
