"""Hostile clients of a real daemon: they lose their session, and nobody else notices."""

import os
import random
import socket
import time

import numpy as np
import pytest

from rgpu.client.control import DaemonClient
from rgpu.config import parse_address
from rgpu.link import connect
from rgpu.session import Connection, Session
from rgpu.wire import ops
from rgpu.wire.codec import pack
from tests.support.servers import Server, only_zmq
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(only_zmq(), reason="RGPU_LINKS=zmq: what is attacked here listens for tcp links")


@pytest.fixture(scope="module")
def server():
    with Server("cpu:2", "target", "--grace", "1.5") as running:
        yield running


@pytest.fixture
def daemon(server):
    client = DaemonClient(parse_address(server.address))
    yield client
    client.close()


@pytest.fixture
def cp(server):
    """An honest client of the same daemon."""
    import rgpu

    rgpu.connect(server.address, link="tcp")
    assert float(rgpu.arange(10.0).sum()) == 45
    yield rgpu
    rgpu.close()


class Attacker:
    """A valid session, and any bytes in it."""

    def __init__(self, daemon):
        self.lease = daemon.attach(1)
        self.connection = Connection(
            Session(self.lease.session, self.lease.epoch), connect(self.lease.endpoints, self.lease.session)
        )

    def send(self, *frames):
        self.connection.post(list(frames), deadline=time.monotonic() + 5)
        self.connection.flush(time.monotonic() + 5)

    def close(self):
        self.connection.abort()


def dead(daemon, session):
    return daemon.session_state(session).startswith("dead")


ATTACKS = {
    "garbage": [b"\xc1garbage"],
    "empty": [b""],
    "an unknown tag": [pack([1, [[250, 1, 2]]])],
    "deep nesting": [b"\x91" * 100_000],
    "a huge count": [b"\xdd\xff\xff\xff\xff"],
    "a wrong handle": [pack([1, [ops.Unary.encode(0, 5, 7)]])],
    "a double handle": [pack([1, [ops.Empty.encode(5, "<f8", [1], None)] * 2])],
    "a view outside": [pack([1, [ops.Empty.encode(5, "<f8", [4], None), ops.View.encode(6, 5, "<f8", [9], [8], 0)]])],
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_malformed_message_costs_the_session(cp, daemon, attack):
    attacker = Attacker(daemon)
    try:
        attacker.send(*ATTACKS[attack])
        wait_until(lambda: dead(daemon, attacker.lease.session), timeout=5)
        assert "protocol error" in daemon.session_state(attacker.lease.session)
    finally:
        attacker.close()
    np.testing.assert_array_equal((cp.ones(3) + 1).get(), 2)


def test_an_absurd_allocation_is_an_error_of_its_own_session(cp, daemon):
    attacker = Attacker(daemon)
    attacker.send(pack([1, [ops.Empty.encode(5, "|u1", [2**62], None), ops.Sync.encode(9)]]))
    answers = []
    end = time.monotonic() + 5
    while len(answers) < 2 and time.monotonic() < end:
        attacker.connection.pump()
        while (frames := attacker.connection.take()) is not None:
            attacker.connection.mark_done(1)
            answers.append(frames)
        attacker.connection.wait(0.05)
    assert len(answers) == 2
    attacker.send(pack([2, [ops.Bye.encode()]]))
    attacker.close()
    assert float(cp.ones(3).sum()) == 3


def flood(port, data, times=20):
    """Raw bytes at a port; how the other side takes it is its business."""
    for _ in range(times):
        with socket.create_connection(("127.0.0.1", port), timeout=2) as sock:
            try:
                sock.sendall(data)
            except OSError:
                pass


RAW = {
    "random": random.Random(4).randbytes(5000),
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "a greeting, then garbage": b"\xff" + b"\0" * 8 + b"\x7f\x03\x00NULL" + b"\0" * 48 + b"\x04\xff" + b"A" * 4000,
    "a huge ZMTP frame": b"\xff"
    + b"\0" * 8
    + b"\x7f\x03\x00NULL"
    + b"\0" * 48
    + b"\x02\xff\xff\xff\xff\xff\xff\xff\xff",
    "nothing": b"",
}


@pytest.mark.parametrize("raw", RAW)
def test_garbage_at_the_ports(cp, daemon, server, raw):
    attacker = Attacker(daemon)  # so that there is a worker's port besides the honest client's
    worker = int(attacker.lease.endpoints[0].rpartition(":")[2])
    from rgpu.client import pool

    honest = int(pool.current_stream().connection.link.uri.rpartition(":")[2])
    for port in (int(server.address.rpartition(":")[2]), worker, honest):
        flood(port, RAW[raw])
        assert daemon.hello().name == "target"
        np.testing.assert_array_equal((cp.ones(3) + 1).get(), 2)
    attacker.close()


def test_another_session_s_identity_does_not_help(cp, daemon):
    """Knowing a worker's port is not enough: without the session's identity nobody is heard."""
    from rgpu.client import pool

    stream = pool.current_stream()
    stranger = Connection(Session(os.urandom(16), 1), connect(stream.connection.link.uri, os.urandom(16)))
    stranger.post([pack([1, [ops.Bye.encode()]])], deadline=time.monotonic() + 2)
    assert not stranger.flush(time.monotonic() + 0.5)
    stranger.abort()
    np.testing.assert_array_equal((cp.ones(3) + 1).get(), 2)
