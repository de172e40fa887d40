"""Peers that want memory: what a daemon and a worker hold for them is bounded, and others get answers meanwhile."""

import contextlib
import os
import socket
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from rgpu.errors import ServerUnavailable
from rgpu.wire import ops
from tests.hostile.test_slow import control
from tests.support.daemons import Daemon, Talk
from tests.support.servers import only_zmq
from tests.support.waiting import wait_until

MIB = 1 << 20
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48)
READY = b"\x04\x1c\x05READY\x0bSocket-Type\0\0\0\x06DEALER"


@pytest.fixture(scope="module")
def daemon():
    running = Daemon("--device-memory", "256MiB")
    yield running
    running.stop()


@pytest.fixture
def cp(daemon, monkeypatch):
    import rgpu

    if only_zmq():
        pytest.skip("RGPU_LINKS=zmq: there is no tcp link to attack")
    monkeypatch.setenv("RGPU_LINK", "tcp")
    rgpu.connect(str(daemon.address))
    yield rgpu
    rgpu.close()


def resident(pid):
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def answers(daemon):
    with contextlib.suppress(ServerUnavailable):
        return daemon.client.hello().name == "test"


class Watch(threading.Thread):
    """The most memory that a process has had."""

    def __init__(self, pid):
        super().__init__(daemon=True)
        self.pid, self.base, self.most, self.over = pid, resident(pid), 0, threading.Event()
        self.start()

    def run(self):
        while not self.over.wait(0.02):
            self.most = max(self.most, resident(self.pid))

    def grown(self):
        self.over.set()
        self.join()
        return self.most - self.base


def test_a_request_without_end(cp, daemon):
    """T21: small frames, each announcing another; only their number grows."""
    watch = Watch(daemon.process.pid)
    frame = b"\3" + (60_000).to_bytes(8, "big") + bytes(60_000)
    place = (daemon.address.host, daemon.address.port)
    with contextlib.closing(socket.create_connection(place, 5)) as attacker:
        attacker.sendall(GREETING)
        attacker.recv(64)
        attacker.sendall(READY)
        with pytest.raises(OSError):  # it is cut off
            for _ in range(40):
                for _ in range(500):
                    attacker.sendall(frame)
                time.sleep(0.1)
    grown = watch.grown()
    print(f"the daemon grew by {grown >> 20} MiB")
    assert grown < 600 * MIB  # 128 and what half a second brings
    wait_until(lambda: resident(watch.pid) < watch.base + 150 * MIB)
    assert control(cp) < 5
    wait_until(lambda: answers(daemon), timeout=3)  # it listens again a moment later


def test_a_reader_who_does_not_read(cp, daemon):
    """T23: 2 GiB asked for and not taken. The worker holds a part of it, and others do not wait."""
    usual = min(control(cp) for _ in range(5))
    lease = daemon.client.attach(0)
    talk = Talk(replace(lease, endpoints=[uri for uri in lease.endpoints if uri.startswith("tcp:")]))
    try:
        talk.post(ops.Empty.encode(1, "|u1", [16 * MIB], None))
        talk.sync()
        name = lease.session.hex()[:8]
        watch = Watch(next(s["worker_pid"] for s in daemon.sessions() if s["id"] == name))
        talk.post(*[ops.Read.encode(10 + i, 1, 0, "|u1", [16 * MIB]) for i in range(128)])
        times, end = [], time.monotonic() + 3
        while time.monotonic() < end:
            times.append(control(cp))
        grown = watch.grown()
        print(f"the worker grew by {grown >> 20} MiB; others wait {np.median(times):.4f} s, {usual:.4f} before")
        assert grown < 256 * MIB
        assert np.median(times) < 2 * usual + 0.02
    finally:
        talk.connection.abort()
        daemon.client.release(lease.session)
