"""A worker inside a long command, and memory under load: everybody else goes on, nothing grows."""

import time

import numpy as np
import pytest

from rgpu.client.control import DaemonClient
from rgpu.config import parse_address
from tests.support.servers import Server
from tests.support.waiting import wait_until


def resident(pid):
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmRSS"))


@pytest.fixture(scope="module")
def server():
    with Server("cpu:2", "busy", "--device-memory", "512M", "--grace", "2") as running:
        yield running


@pytest.fixture
def cp(server):
    import rgpu

    rgpu.connect(server.address)
    yield rgpu
    rgpu.close()


def session(daemon, index):
    """The only one: another test's may still be inside its last command."""

    def alone():
        found = daemon.snapshot()["devices"][index]["sessions"]
        return found if len(found) == 1 else None

    return wait_until(alone)[0]


@pytest.mark.timeout(480)  # seconds on a quiet machine
def test_one_long_command_hurts_nobody(cp, server):
    """Longer than grace: probes are answered and the daemon hears from the worker all the time."""
    daemon = DaemonClient(parse_address(server.address))
    with cp.cuda.Device(1):
        other = cp.arange(100.0)
        other.get()
    a = cp.ones((2200, 2200))
    a.get()
    begin = time.monotonic()
    slow = cp.linalg.svd(a + cp.arange(2200.0))[1]  # one command of many seconds
    cp.cuda.Device(0)
    from rgpu.client import pool

    pool.get().device(0).stream.flush()
    slowest = 0.0
    while time.monotonic() - begin < 3.5:
        start = time.monotonic()
        with cp.cuda.Device(1):
            assert float(other.sum()) == 4950
        slowest = max(slowest, time.monotonic() - start)
    assert slowest < 1
    assert session(daemon, 0)["utilization"] > 50
    assert pool.get().device(0).stream.connection.down_since is None
    assert float(slow[0]) > 0
    daemon.close()


def test_large_temporaries_do_not_pile_up(cp, server):
    """Each is 64 MiB; the limit is 512 MiB, and the worker's memory stays near it."""
    daemon = DaemonClient(parse_address(server.address))
    a = cp.ones(8 << 20)
    a.get()
    worker = session(daemon, 0)["worker_pid"]
    base = resident(worker)
    for _ in range(40):
        b = a + 1.0
        b = b * 2.0
    assert float(b[0]) == 4
    assert resident(worker) - base < 600 << 20
    del b
    cp.cuda.Device(0).synchronize()
    wait_until(lambda: session(daemon, 0)["memory_used"] <= 65 << 20, timeout=5)
    daemon.close()


def test_uploads_are_bounded_on_both_sides(cp, server):
    import os

    daemon = DaemonClient(parse_address(server.address))
    host = np.ones(4 << 20)  # 32 MiB
    cp.asarray(host).get()
    worker = session(daemon, 0)["worker_pid"]
    base, base_here = resident(worker), resident(os.getpid())
    for _ in range(30):
        cp.asarray(host)
    cp.cuda.Device(0).synchronize()
    assert resident(worker) - base < 300 << 20
    assert resident(os.getpid()) - base_here < 200 << 20
    daemon.close()
