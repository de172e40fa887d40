"""When a worker's guard says that its client is gone to whoever waits for its device in a collective."""

import socket
import time
from types import SimpleNamespace

import pytest

from rgpu.server.allowance import Allowance
from rgpu.server.worker import DESERTED_SECONDS, Guard


@pytest.fixture
def guarded():
    """A guard, its connection, and what it has said."""
    ours, theirs = socket.socketpair()
    connection = SimpleNamespace(
        down_since=None, link=SimpleNamespace(silent=False), session=SimpleNamespace(idle=True)
    )
    guard, said = Guard(ours, connection, 60.0, Allowance(lambda message: None, limit=0)), []
    guard._woke = 0.0
    guard.deserted = said.append
    with ours, theirs:
        yield guard, connection, said


def look(guard):
    for _ in range(3):
        guard._look_after_others()


def long_ago():
    return time.monotonic() - DESERTED_SECONDS - 1


def test_a_client_that_hung_up_and_does_not_come_back(guarded):
    guard, connection, said = guarded
    look(guard)
    connection.down_since = time.monotonic() + 60  # just now, however slow this machine is
    look(guard)
    assert not said
    connection.down_since = long_ago()
    look(guard)
    assert len(said) == 1
    connection.down_since = None
    look(guard)
    connection.down_since = long_ago()
    look(guard)
    assert len(said) == 2


def test_a_network_that_is_silent_has_the_whole_grace(guarded):
    guard, connection, said = guarded
    connection.down_since, connection.link.silent = long_ago(), True
    look(guard)
    assert not said


def test_what_the_client_has_left_to_do_is_done_first(guarded):
    guard, connection, said = guarded
    connection.down_since, connection.session.idle = long_ago(), False
    look(guard)
    assert not said
    connection.session.idle = True
    look(guard)
    assert said


def test_a_host_that_stood_still_gives_its_client_time(guarded):
    guard, connection, said = guarded
    connection.down_since, guard._woke = long_ago(), time.monotonic() + 60
    look(guard)
    assert not said
