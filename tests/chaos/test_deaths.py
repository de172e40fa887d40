"""The ways a worker dies, and arrays that are dropped in every way: a clear error, a new session, nothing on stderr."""

import os
import signal
import time

import numpy as np
import pytest

from rgpu import errors
from tests.chaos.test_kill import worker_of
from tests.support.servers import Server, program


@pytest.fixture(scope="module")
def server():
    with Server("cpu:2", "mortal", "--prestart", "2") as running:
        yield running


@pytest.fixture
def cp(server):
    import rgpu

    rgpu.connect(server.address)
    yield rgpu
    rgpu.close()


@pytest.mark.parametrize("death", ["SIGSEGV", "SIGABRT", "SIGBUS", "SIGTERM"])
def test_a_worker_that_dies_is_lost_and_replaced(cp, death):
    """T06: whatever ended it. Another session sees nothing; a new one on the device is there within 5 s."""
    a = cp.arange(1000)
    a.get()
    with cp.cuda.Device(1):
        other = cp.arange(10)
        other.get()
    os.kill(worker_of(cp), getattr(signal, death))
    with pytest.raises(errors.WorkerLost):
        for _ in range(1000):
            (a + 1).get()
    begin = time.monotonic()
    cp.reset()
    np.testing.assert_array_equal((cp.arange(5) * 2).get(), [0, 2, 4, 6, 8])
    assert time.monotonic() - begin < 5
    np.testing.assert_array_equal(other.get(), np.arange(10))


DROPPED = """
import gc, os, signal, sys, threading, time
import rgpu as cp
from rgpu.client import pool
how = sys.argv[1]
arrays = [cp.empty(1) for _ in range(20_000)]
arrays[0].get()
if how == "threads":
    parts = [arrays[k::4] for k in range(4)]
    del arrays
    threads = [threading.Thread(target=part.clear) for part in parts]
    [t.start() for t in threads], [t.join() for t in threads]
    assert cp.arange(3).sum().get() == 3
elif how == "collector":
    rings = [[a] for a in arrays]
    [ring.append(ring) for ring in rings]
    del arrays, rings
    gc.collect()
    assert cp.arange(3).sum().get() == 3
elif how == "after close":
    cp.close()
    del arrays
elif how == "after death":
    device = pool.get().device(0)
    sessions = device.daemon.snapshot()["devices"][0]["sessions"]
    os.kill(next(s["worker_pid"] for s in sessions if s["pid"] == os.getpid()), signal.SIGKILL)
    time.sleep(0.5)
    del arrays
print("end", flush=True)
"""


@pytest.mark.parametrize("how", ["at exit", "threads", "collector", "after close", "after death"])
def test_dropping_arrays_never_raises(server, how):
    """T29"""
    done = program(DROPPED, server, arguments=(how,))
    assert done.stdout == "end\n"
    assert done.stderr == ""
