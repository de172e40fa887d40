"""One tenant against the others, with a valid right to be there: it fills whatever can be filled."""

import threading

import pytest

from rgpu.client.control import DaemonClient
from rgpu.config import parse_address
from rgpu.errors import ServerBusy
from rgpu.leases.terms import Terms
from tests.support.servers import Server
from tests.support.waiting import wait_until

SESSIONS, CROWD = 3, 24


@pytest.fixture
def server():
    with Server("cpu:2", "target", "--sessions", str(SESSIONS)) as running:
        yield running


def at_once(server, ask):
    """What so many clients were told who ask in the same moment: what they got, and how many were refused."""
    clients = [DaemonClient(parse_address(server.address), timeout=60) for _ in range(CROWD)]
    got, refused = [], []
    gate = threading.Barrier(CROWD)

    def one(client):
        gate.wait(60)
        try:
            got.append(ask(client))
        except ServerBusy as error:
            refused.append(str(error))

    threads = [threading.Thread(target=one, args=(client,), daemon=True) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert not any(thread.is_alive() for thread in threads) and len(got) + len(refused) == CROWD
    return clients, got, refused


def leave(server, clients, sessions):
    """The control client: when they have gone there is room for others."""
    for session in sessions:
        clients[0].release(session)
    assert float(honest(server)) == 45.0
    for client in clients:
        client.close()


def honest(server):
    import rgpu

    rgpu.connect(server.address)
    try:
        return rgpu.arange(10.0).sum().get()
    finally:
        rgpu.close()


def test_a_burst_of_clients_starts_no_more_workers_than_sessions_are_allowed(server):
    clients, got, refused = at_once(server, lambda client: client.attach(0))
    assert (len(got), len(refused)) == (SESSIONS, CROWD - SESSIONS), refused
    assert all("sessions" in text for text in refused), refused
    leave(server, clients, [lease.session for lease in got])


def test_one_lease_is_no_way_around_it(server):
    asker = DaemonClient(parse_address(server.address))
    lease = asker.request(Terms(devices=(1,)))
    clients, got, refused = at_once(server, lambda client: client.attach(1, lease.lease))
    assert (len(got), len(refused)) == (SESSIONS, CROWD - SESSIONS), refused
    asker.give_back(lease.lease)
    wait_until(lambda: all(asker.session_state(one.session).startswith("dead") for one in got))
    leave(server, clients, [])
    asker.close()
