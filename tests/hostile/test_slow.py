"""Peers that are slow on purpose: they are closed in time, and a control client gets a right answer meanwhile."""

import contextlib
import socket
import time

import numpy as np
import pytest

from rgpu.link.control import ControlClient
from tests.support.servers import Server, only_zmq
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(only_zmq(), reason="RGPU_LINKS=zmq: what is attacked here listens for tcp links")


@pytest.fixture(scope="module")
def server():
    with Server("cpu:1", "patient") as running:
        yield running


@pytest.fixture
def cp(server, monkeypatch):
    import rgpu

    monkeypatch.setenv("RGPU_LINK", "tcp")
    rgpu.connect(server.address)
    yield rgpu
    rgpu.close()


def control(cp):
    begin = time.monotonic()
    a = cp.arange(1000)
    np.testing.assert_array_equal((a + a).get(), 2 * np.arange(1000))
    return time.monotonic() - begin


def endpoints(cp):
    """Where the daemon and the worker of the control client listen."""
    from rgpu.client import pool

    device = pool.get().device(0)
    cp.ones(1).get()
    uri = device.stream.connection.link.uri
    assert uri.startswith("tcp://")
    host, _, port = uri.removeprefix("tcp://").rpartition(":")
    return {"daemon": (device.daemon.address.host, device.daemon.address.port), "worker": (host, int(port))}


def closed(sock):
    """Whether the other end has closed the connection."""
    try:
        return sock.recv(4096) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


#: (who listens, what a stranger says): nothing, the beginning of ZMTP 1.0, of 2.0 and of 3.0
BEGINNINGS = [
    *[("daemon", said) for said in (b"", b"r", b"\x01\x00", b"\xff\x00\x00", b"\xff" + bytes(8) + b"\x7f\x01")],
    *[("worker", said) for said in (b"", b"r", b"rgpu1", b"\xff\x00\x00")],
]


@pytest.mark.parametrize(("whom", "said"), BEGINNINGS)
def test_a_handshake_that_never_ends_is_closed(cp, whom, said):
    """T24"""
    control(cp)
    with contextlib.closing(socket.create_connection(endpoints(cp)[whom], 5)) as stranger:
        begin = time.monotonic()
        stranger.sendall(said)
        stranger.setblocking(False)
        wait_until(lambda: closed(stranger), timeout=8)
        assert time.monotonic() - begin < 6
        control(cp)


GREETING = b"\xff" + bytes(7) + b"\x01\x7f" + b"\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
READY = b"\x05READY" + b"\x0bSocket-Type" + (6).to_bytes(4, "big") + b"DEALER"


def test_a_frame_that_never_ends_is_closed(cp):
    """T24: a byte now and then, in the middle of a frame, where no sign of life fits in between."""
    control(cp)
    with contextlib.closing(socket.create_connection(endpoints(cp)["daemon"], 5)) as stranger:
        stranger.sendall(GREETING + bytes([4, len(READY)]) + READY + b"\x00\xff")
        stranger.setblocking(False)
        begin, said = time.monotonic(), 0
        while not closed(stranger):
            assert time.monotonic() - begin < 10, f"{said} bytes, and nobody minds"
            with contextlib.suppress(OSError):
                said += stranger.send(b"x")
            time.sleep(0.2)
        assert said > 2  # it was not refused at once
        control(cp)


def test_nobody_fills_the_log(tmp_path):
    """Requests that mean nothing are written down now and then only."""
    with open(tmp_path / "log", "wb") as log, Server("cpu:1", "quiet", stderr=log) as server:
        host, _, port = server.address.rpartition(":")
        client = ControlClient(host, int(port))
        for _ in range(300):
            assert b"did not understand" in client.request(b"\x91\x00")
        client.close()
    assert 10 <= (tmp_path / "log").read_bytes().count(b"malformed") <= 100


def test_many_half_open_connections(cp):
    """T21: strangers who say nothing keep nobody out."""
    usual = min(control(cp) for _ in range(5))
    with contextlib.ExitStack() as stack:
        for place in endpoints(cp).values():
            for _ in range(50):
                stack.enter_context(contextlib.closing(socket.create_connection(place, 5)))
        worst = max(control(cp) for _ in range(10))
    assert worst < usual + 2
    control(cp)
