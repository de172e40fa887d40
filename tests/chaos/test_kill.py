"""kill -9 of a worker, a daemon, a client, in the middle of work: a clear error, nothing left running."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from rgpu import errors
from tests.support.servers import Server, gone, program
from tests.support.waiting import wait_until


@pytest.fixture
def server():
    with Server("cpu:2", "victim", "--grace", "1.5", "--prestart", "1") as running:
        yield running


@pytest.fixture
def cp(server):
    import rgpu

    rgpu.connect(server.address)
    yield rgpu
    rgpu.close()


def worker_of(cp, ordinal=0):
    """Process id of the worker behind a device of this process."""
    from rgpu.client import pool

    device = pool.get().device(ordinal)
    sessions = device.daemon.snapshot()["devices"][device.index]["sessions"]
    return next(session["worker_pid"] for session in sessions if session["pid"] == os.getpid())


def test_worker_killed_in_the_middle(cp, server):
    a = cp.ones((200, 200))
    a.get()
    from rgpu.client import pool

    other = pool.get().device(1)
    with other:
        b = cp.ones(10)
        b.get()
    victim = worker_of(cp)
    for _ in range(500):
        a = a @ a * 1e-3
    os.kill(victim, signal.SIGKILL)
    begin = time.monotonic()
    with pytest.raises(errors.WorkerLost, match="signal 9"):
        a.get()
    assert time.monotonic() - begin < 3
    with pytest.raises(errors.WorkerLost):  # and again, not something else
        a.get()
    with other:
        np.testing.assert_array_equal((b + 1).get(), 2)  # the other session saw nothing
    cp.reset()
    np.testing.assert_array_equal(cp.ones(3).get(), 1)  # a new session on the same device


def test_submitting_to_a_dead_worker_raises_without_reading(cp):
    a = cp.ones(10)
    a.get()
    os.kill(worker_of(cp), signal.SIGKILL)

    def refused():
        try:
            for _ in range(2000):
                a + 1
        except errors.WorkerLost:
            return True

    wait_until(refused, timeout=5)


def test_daemon_killed(cp, server):
    a = cp.ones(10)
    a.get()
    victim = worker_of(cp)
    server.kill()
    wait_until(lambda: gone(victim), timeout=5)
    begin = time.monotonic()
    with pytest.raises(errors.ServerLost):
        (a + 1).get()
    assert time.monotonic() - begin < 6


CLIENT = """
import sys, time
import rgpu as cp
a = cp.ones(1 << 20)
print("ready", flush=True)
while True:
    a = a + 1
    a.get()
"""


def test_client_killed_frees_its_worker(server):
    env = {key: value for key, value in os.environ.items() if not key.startswith("RGPU_SERVERS")}
    env = {**env, "RGPU_SERVERS": server.address}
    client = subprocess.Popen([sys.executable, "-c", CLIENT], env=env, stdout=subprocess.PIPE)
    try:
        assert client.stdout.readline() == b"ready\n"
        from rgpu.client.control import DaemonClient
        from rgpu.config import parse_address

        daemon = DaemonClient(parse_address(server.address))
        (session,) = [s for device in daemon.snapshot()["devices"] for s in device["sessions"]]
        client.send_signal(signal.SIGKILL)
        client.wait(5)
        wait_until(lambda: gone(session["worker_pid"]), timeout=8)
        wait_until(lambda: not any(device["sessions"] for device in daemon.snapshot()["devices"]), timeout=5)
        daemon.close()
    finally:
        client.kill()
        client.wait(5)
        client.stdout.close()


def test_polite_exit_frees_at_once(server):
    begin = time.monotonic()
    program("import rgpu as cp; print(cp.ones(3).sum())", server)
    from rgpu.client.control import DaemonClient
    from rgpu.config import parse_address

    daemon = DaemonClient(parse_address(server.address))
    wait_until(lambda: not any(device["sessions"] for device in daemon.snapshot()["devices"]), timeout=1.5)
    daemon.close()
    assert time.monotonic() - begin < 20


def test_keyboard_interrupt_ends_a_wait(server):
    source = """
import os, signal, threading, time
import rgpu as cp
a = cp.ones((1500, 1500))
a.get()
threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
for _ in range(200):
    a = a @ a * 1e-4
begin = time.monotonic()
try:
    a.get()
except KeyboardInterrupt:
    print("interrupted", time.monotonic() - begin < 5)
"""
    assert "interrupted True" in program(source, server).stdout


def test_what_nobody_can_confirm_is_listed(cp):
    """Commands that were under way when their worker died are named, by the program's own lines."""
    a = cp.ones((300, 300))
    a.get()
    victim = worker_of(cp)
    os.kill(victim, signal.SIGSTOP)  # nothing is executed from here on
    for _ in range(7):
        a = a @ a * 1e-3  # these lines
    from rgpu.client import pool

    pool.current_stream().flush()
    os.kill(victim, signal.SIGKILL)
    with pytest.raises(errors.WorkerLost) as caught:
        a.get()
    unknown = caught.value.__cause__
    assert isinstance(unknown, errors.OutcomeUnknown)
    assert len([line for line in unknown.commands if "# these lines" in line]) == 14
    assert "14 x" in str(unknown) and "test_kill.py" in str(unknown)
    with pytest.raises(errors.WorkerLost) as again:  # whoever asks later is told as well
        a + 1
        a.get()
    assert again.value.__cause__.commands == unknown.commands
