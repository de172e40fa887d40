"""Whole sessions over each kind of link: data both ways, deaths noticed, nothing left behind."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from rgpu import errors
from rgpu.link import shm, ucx
from tests.support.servers import Server
from tests.support.waiting import wait_until

KINDS = ("tcp", "shm", "ucx", "zmq")


@pytest.fixture(scope="module")
def server():
    with Server("cpu:1", "links", "--links", "tcp,shm,ucx", "--grace", "2") as running:
        yield running


@pytest.fixture(scope="module")
def through_zmq():
    with Server("cpu:1", "zmq", "--links", "zmq") as running:
        yield running


@pytest.fixture(scope="module", params=KINDS)
def cp(request, server, through_zmq):
    for kind, module in (("shm", shm), ("ucx", ucx)):
        if request.param == kind and (why := module.missing()):
            pytest.skip(why)
    import rgpu

    rgpu.connect((through_zmq if request.param == "zmq" else server).address, link=request.param)
    rgpu.ones(1).get()
    yield rgpu
    rgpu.close()


def link():
    from rgpu.client import pool

    return pool.current_stream().connection.link


def test_data_of_every_size_both_ways(cp, request):
    rng = np.random.default_rng(3)
    for size in (0, 1, 1000, 60_000, 70_000, 1 << 20, (5 << 20) + 3):
        host = rng.integers(0, 256, size, np.uint8)
        there = cp.asarray(host)
        kept = host.copy()
        host[:] = 0  # asarray has returned: the source is the program's again
        np.testing.assert_array_equal(there.get(), kept)
    assert link().kind == request.node.callspec.params["cp"]


def test_many_uploads_change_nothing_on_their_way(cp):
    host, total = np.zeros(1 << 18), cp.zeros(1 << 18)
    for i in range(24):
        host[:] = i
        total += cp.asarray(host)
    np.testing.assert_array_equal(total.get(), float(sum(range(24))))


def test_an_upload_in_place_waits_for_what_was_issued_before(cp):
    a = cp.zeros(1 << 18)
    for i in range(8):
        before = a + 1
        a.set(np.full(1 << 18, float(i)))
        assert float(before[-1]) == max(i, 1)
        assert float(a[-1]) == i


def test_rgpu_smi_is_told(cp, request):
    from rgpu.client import pool

    cp.ones(3).get()
    (device,) = pool.get().devices
    kind = request.node.callspec.params["cp"]

    def shown():
        return {s["link"] for d in device.daemon.snapshot()["devices"] for s in d["sessions"]} == {kind}

    wait_until(shown)


def test_a_killed_worker_is_noticed(cp):
    cp.ones(3).get()
    begin = time.monotonic()
    for pid in workers_of(cp):
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(errors.SessionLost):
        while time.monotonic() - begin < 20:
            cp.ones(3).get()
    assert time.monotonic() - begin < 15


def workers_of(cp):
    from rgpu.client import pool

    (device,) = pool.get().devices
    return [s["worker_pid"] for d in device.daemon.snapshot()["devices"] for s in d["sessions"]]


def test_a_link_that_is_not_offered(through_zmq):
    import rgpu

    rgpu.connect(through_zmq.address, link="shm")
    with pytest.raises(errors.ConfigError, match="RGPU_LINK=shm is not possible: the server offers zmq"):
        rgpu.ones(1)
    rgpu.close()


def test_links_that_cannot_be_offered_together_are_refused_at_the_start():
    command = [sys.executable, "-m", "rgpu.server", "--devices", "cpu:1", "--port", "0", "--links", "zmq,shm"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "--links zmq, or any of shm, ucx, tcp" in done.stderr, done.stderr
