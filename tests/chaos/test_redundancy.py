"""Redundant devices: either worker may die at any moment, and the program's numbers are what they would have been.

`pytest tests/chaos/test_redundancy.py --kills 100` kills at a hundred random moments; a seed that fails is printed.
"""

import os
import random
import signal
import threading
import time

import numpy as np
import pytest

from rgpu import errors
from rgpu.wire import ops
from rgpu.wire.functions import BY_NAME
from tests.support.servers import Server, program
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def servers():
    with Server("cpu:2", "one") as one, Server("cpu:2", "two") as two, Server("cpu:2", "three") as three:
        yield one, two, three


@pytest.fixture
def cp(servers):
    import rgpu

    rgpu.connect(*[server.address for server in servers], redundancy=2)
    yield rgpu
    rgpu.close()


def mirror(ordinal=0):
    from rgpu.client import pool

    return pool.get().device(ordinal).stream.mirror


def process_of(half):
    """The worker's process id, by what its server shows."""
    sessions = half.daemon.snapshot()["devices"][half.seat.index]["sessions"]
    return next(s["worker_pid"] for s in sessions if s["id"] == half.seat.session.hex()[:8])


def kill(half):
    os.kill(process_of(half), signal.SIGKILL)


def work(cp, steps, pause=lambda step: None):
    """What a program does: arithmetic, views, changes in place, random numbers, uploads, reads of all kinds. The
    bytes of everything it has seen."""
    cp.random.seed(7)
    rng = cp.random.default_rng(8)
    w, log = cp.random.rand(64, 64), cp.zeros(steps)
    view, seen = w[::2, 1::3], []
    double = cp.ElementwiseKernel("float64 x", "float64 y", "y = 2 * x", "double_of")
    for step in range(steps):
        pause(step)
        w = w @ w
        w /= w.max()
        view += rng.random(view.shape)
        w += double(view).sum() * 1e-3
        log[step] = w.mean()
        if step % 7 == 0:
            big = cp.asarray(np.full((300, 300), step, "f4"))
            seen.append(big.sum().get().tobytes())
        if step % 5 == 0:
            seen.append(w.get().tobytes())
            w[w > 0.5] *= 0.25
            seen.append(cp.nonzero(w > w.mean())[0].get().tobytes())
        if step % 11 == 0:
            seen.append(float(view[0, 0]).hex().encode())
    return [*seen, w.get().tobytes(), log.get().tobytes(), view.get().tobytes()]


STEPS = 60


@pytest.fixture(scope="module")
def expected(servers):
    import rgpu

    rgpu.connect(servers[0].address)
    found = work(rgpu, STEPS)
    rgpu.close()
    return found


def test_the_second_worker_sends_digests_and_nothing_else_changes(cp, expected):
    assert work(cp, STEPS) == expected
    a = cp.ones(1 << 20)
    before = [half.connection.stats["bytes_received"] for half in mirror().halves]
    a.get()
    first, second = (half.connection.stats["bytes_received"] - b for half, b in zip(mirror().halves, before))
    assert first > 8 << 20
    assert second < 1000


def test_either_worker_may_die_at_any_moment(servers, expected, request):
    """T32"""
    import rgpu

    longest = 0.0
    for number in range(request.config.getoption("--kills")):
        seed = random.SystemRandom().getrandbits(32) if number else 1
        dice = random.Random(seed)
        rgpu.connect(*[server.address for server in servers], redundancy=2)
        try:
            rgpu.ones(1).get()  # the device is in use
            which, at = dice.randrange(2), dice.randrange(STEPS)
            victim = process_of(mirror().halves[which])
            times, delay = [time.monotonic()], dice.random() * 0.02

            def pause(step, at=at, victim=victim, delay=delay, times=times):
                times.append(time.monotonic())
                if step == at:
                    threading.Timer(delay, os.kill, (victim, signal.SIGKILL)).start()

            found = work(rgpu, STEPS, pause)
            times.append(time.monotonic())
            stall = max(b - a for a, b in zip(times, times[1:]))
            longest = max(longest, stall)
            assert found == expected, f"seed {seed}: worker {which} killed at step {at}"
            assert stall < 5, f"seed {seed}: {stall:.1f} s"
            wait_until(lambda: mirror().takeovers == 1 and len(mirror().whole) == 2, timeout=20)
            assert rgpu.arange(5).sum().get() == 10  # by the new pair
        finally:
            rgpu.close()
    print(f"longest stall: {longest:.2f} s")


def test_one_after_the_other(cp):
    """The first dies, a new one is silvered, then the second dies: the state was copied, all of it."""
    a = cp.arange(1 << 19, dtype="f8").reshape(512, -1)
    view = a[1::2, ::-3]
    cp.random.seed(3)
    pool, stream = cp.cuda.MemoryPool(), cp.cuda.Stream()
    with pytest.raises(ValueError, match="bytes"):
        _poisoned = cp.asarray([1, 2, 3]).view("S5000000")
    with stream:
        b = a * 2
    state = cp.random.RandomState(5)
    expected = a.get()
    for index in (0, 1, 0):
        before = mirror().takeovers
        kill(mirror().halves[index])
        a += 1
        expected += 1
        wait_until(lambda before=before: mirror().takeovers == before + 1 and len(mirror().whole) == 2, timeout=20)
        view[0] = -1  # the same memory on the new worker as well
        expected[1::2, ::-3][0] = -1
        np.testing.assert_array_equal(a.get(), expected)
    np.testing.assert_array_equal(b[:3].get(), np.arange(1 << 19).reshape(512, -1)[:3] * 2)
    assert state.rand(3).shape == (3,)
    float(cp.random.rand(1000).sum())  # both have the same random state
    with stream:
        assert float((b + 1)[0, 0]) == 1
    del pool


def test_a_degraded_device_says_so_and_goes_on(servers):
    """Nowhere to go: two servers, one of them dies. rgpu-smi shows one of two."""
    import rgpu

    with Server("cpu:1", "brittle") as brittle:
        rgpu.connect(servers[0].address, brittle.address, redundancy=2)
        try:
            a = rgpu.arange(1000)
            a.get()
            (session,) = _sessions(servers[0])
            wait_until(lambda: _sessions(servers[0])[0]["redundancy"] == [2, 2], timeout=5)
            begin = time.monotonic()
            brittle.kill()
            a += 1
            assert a.get()[-1] == 1000
            assert time.monotonic() - begin < 5
            wait_until(lambda: _sessions(servers[0])[0]["redundancy"] == [1, 2], timeout=5)
            shown = program("-m", servers[0], launcher=(), arguments=("rgpu.smi",)).stdout
            assert "1 of 2 workers (degraded)" in shown
            wait_until(lambda: "no other server" in rgpu.stats()["devices"][0]["degraded"], timeout=10)
        finally:
            rgpu.close()


def _sessions(server):
    from rgpu.client.control import DaemonClient
    from rgpu.config import parse_address

    daemon = DaemonClient(parse_address(server.address))
    try:
        return [s for d in daemon.snapshot()["devices"] for s in d["sessions"] if s["pid"] == os.getpid()]
    finally:
        daemon.close()


def test_a_difference_is_told_and_not_delivered(cp):
    """T33: one element of one worker is changed behind the program's back."""
    a = cp.arange(10.0)
    a.get()
    raw = 1 << 60
    mirror().halves[1].post_past(
        [
            ops.View.encode(raw, a._handle, "<f8", [1], [8], 24),
            ops.Inplace.encode(BY_NAME["add"].id, raw, 1.0),
        ]
    )
    out = np.full(10, -1.0)
    with pytest.raises(errors.Divergence, match=r"device 0 .*SHA-256 \w+, .* has SHA-256 \w+"):
        a.get(out=out)
    with pytest.raises(errors.Divergence):
        (a * 2).get()
    np.testing.assert_array_equal(cp.ones(3).get(), 1)  # what does not depend on it is right


def test_errors_are_raised_once(cp):
    state = cp.random.RandomState(1)
    bad = state.choice(3, 2, True, cp.asarray([2.0, 2.0, 2.0]))
    with pytest.raises(ValueError, match="do not sum to 1"):
        (bad + 1).get()
    assert float(cp.ones((3, 3)).sum()) == 9
    cp.cuda.Device(0).synchronize()


def test_memory_that_nobody_has_written_is_equal(cp):
    for _ in range(5):
        cp.asarray(np.random.rand(100_000)).get()
        cp.empty(100_000).get()


def test_one_server_is_not_enough(servers):
    import rgpu

    with pytest.raises(errors.NoSuchDevice, match="two servers"):
        rgpu.connect(servers[0].address, redundancy=2)


def test_rgpu_run_ha(servers):
    source = "import cupy as cp, rgpu; a = cp.arange(5); print(a.sum(), rgpu.stats()['devices'][0]['redundancy'])"
    for options in (["--ha"], ["--ha", "-n", "1", "-m", "64MiB"]):
        done = program(
            "-m", *servers, launcher=(), arguments=("rgpu.cli", "run", *options, "--", "python", "-c", source)
        )
        assert done.stdout.split() == ["10", "2"]
