"""What a client makes of a worker's silence, by a clock of the test's own."""

import types

import pytest

from rgpu.client import seat
from rgpu.errors import ServerLost, ServerUnavailable, SessionExpired

GRACE = 8.0


@pytest.fixture
def made(monkeypatch):
    """A seat whose daemon answers ``answer``, and the clock."""
    clock = types.SimpleNamespace(now=100.0)
    monkeypatch.setattr(seat.time, "monotonic", lambda: clock.now)
    daemon = types.SimpleNamespace(answer="alive")

    def session_state(_, timeout):
        if isinstance(daemon.answer, Exception):
            clock.now += timeout
            raise daemon.answer
        return daemon.answer

    daemon.session_state = session_state
    info = {"index": 0, "kind": "cpu", "memory_total": 1 << 20}
    one = seat.Seat(daemon, info, None, name="device 0")
    one._grace = GRACE
    return one, daemon, clock


def watched(made, since, seconds, step=0.25):
    """The first verdict within so many seconds of regular looks, and when it was given."""
    one, _, clock = made
    end = clock.now + seconds
    while clock.now < end:
        if (verdict := one.fate(since)) is not None:
            return verdict, clock.now - since
        clock.now += step
    return None, clock.now - since


def test_a_worker_that_stays_away_is_lost_after_grace(made):
    verdict, after = watched(made, 100.0, 30)
    assert isinstance(verdict, SessionExpired) and GRACE < after < GRACE + 2


def test_a_standstill_of_ours_is_nobodys_silence(made):
    _, _, clock = made
    assert watched(made, 100.0, 1)[0] is None
    clock.now += 3600
    assert watched(made, 100.0, 3)[0] is None
    assert isinstance(watched(made, 100.0, 30)[0], SessionExpired)


def test_a_link_that_was_up_meanwhile_begins_anew(made):
    assert watched(made, 100.0, 5)[0] is None
    assert watched(made, 105.0, 5)[0] is None


@pytest.mark.parametrize("reason, seconds", [("no answer", GRACE), ("refused", seat.SERVER_LOST_AFTER)])
def test_a_server_that_does_not_answer_either(made, reason, seconds):
    one, daemon, clock = made
    daemon.answer = ServerUnavailable("nobody", reason=reason)
    verdict, after = watched(made, 100.0, 60)
    assert isinstance(verdict, ServerLost) and seconds < after < seconds + 5


def test_looks_far_apart_do_not_wait_for_ever(made):
    verdict, after = watched(made, 100.0, 120, step=6.0)  # as where many servers are asked in turn
    assert isinstance(verdict, SessionExpired) and after < 6 * GRACE
