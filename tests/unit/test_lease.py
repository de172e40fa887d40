"""The book of leases and the choice of a device."""

import pytest

from rgpu.errors import NoSuchDevice, ServerBusy
from rgpu.server import broker, lease
from rgpu.server.broker import Load

CLIENT = lease.Client("u", "h", 1, "p")


def test_the_life_of_a_lease():
    now = 5.0
    book = lease.LeaseBook(lambda: now)
    first, second = book.grant(0, CLIENT), book.grant(1, CLIENT)
    assert first.session != second.session
    assert len(first.session) == 16
    assert first.since == 5.0
    assert book.on_device(1) == [second]
    assert book.state(first.session) == "alive"
    assert book.end(first.session, "signal 9") is first
    assert book.end(first.session, "later") is None
    assert book.state(first.session) == "dead: signal 9"
    assert book.state(b"?" * 16) == "unknown"
    assert list(book) == [second]


def test_the_book_forgets_the_oldest_dead_and_no_living(monkeypatch):
    monkeypatch.setattr(lease, "REMEMBERED", 3)
    book = lease.LeaseBook(lambda: 0.0)
    living = book.grant(0, CLIENT)
    dead = [book.grant(0, CLIENT).session for _ in range(5)]
    for session in dead:
        book.end(session, "bye")
    assert [book.state(session) for session in dead] == ["unknown"] * 2 + ["dead: bye"] * 3
    assert book.state(living.session) == "alive"


def test_the_wanted_device_is_given():
    assert broker.choose([Load(0, 1, 0.0), Load(3, 1, 0.0)], 1, 4) == 1


@pytest.mark.parametrize("wanted", [2, -1])
def test_a_device_that_is_not_there(wanted):
    with pytest.raises(NoSuchDevice, match=f"no device {wanted} .* devices 0 to 1"):
        broker.choose([Load(0, 1, 0.0)] * 2, wanted, 4)


def test_a_full_device_and_a_full_server():
    loads = [Load(4, 1, 0.0), Load(1, 1, 0.0)]
    with pytest.raises(ServerBusy, match="device 0 already serves 4"):
        broker.choose(loads, 0, 4)
    assert broker.choose(loads, None, 4) == 1
    with pytest.raises(ServerBusy, match="all 1 devices"):
        broker.choose(loads[:1], None, 4)


def test_the_least_loaded_device_is_chosen():
    assert (
        broker.choose([Load(1, 9, 0.0), Load(0, 1, 90.0), Load(0, 1, 10.0), Load(0, 2, 10.0)], None, 4) == 3
    )
