"""Nothing waits that can be predicted: counted by rgpu.stats() and by the clock over a slow line."""

import time

import numpy as np
import pytest

from tests.support.faultproxy import FaultProxy
from tests.support.servers import only_zmq


def chain(cp, a, n):
    """A mixed chain of about n operations whose results are all predictable."""
    x = a
    for i in range(n // 10):
        y = x * 2.0 + 1.0
        y = cp.sqrt(cp.absolute(y))
        y = y.reshape(10, 10).T
        y = y - y.mean(axis=0)
        z = y[1:, :] @ cp.ones((10, 10))
        x = cp.concatenate([z, y[:1]]).ravel() / (i + 1)
    return x


def counted(cp, function):
    before = cp.stats()
    result = function()
    after = cp.stats()
    return result, {key: after[key] - before[key] for key in before if key != "devices"}


def test_a_thousand_chained_operations_wait_once(cp):
    a = cp.arange(100, dtype=float)
    result, used = counted(cp, lambda: chain(cp, a, 1000).get())
    assert used["round_trips"] <= 2
    assert used["commands"] >= 1000
    np.testing.assert_allclose(result, chain(np, np.arange(100, dtype=float), 1000))


def test_after_an_answer_the_first_commands_leave_early(cp):
    """The worker has nothing to do then; what follows leaves in batches that grow."""

    def a_loop(n):
        x = a
        for _ in range(n):
            x = x + 1.0
        return x

    a = cp.arange(10.0)
    a.get()
    x, few = counted(cp, lambda: float(a_loop(8)[0]))
    y, some = counted(cp, lambda: float(a_loop(40)[0]))
    z, many = counted(cp, lambda: float(a_loop(5000)[0]))
    assert (x, y, z) == (8, 40, 5000)
    assert few["batches"] <= 2 <= some["batches"] <= 4  # the pure twin sends each release by itself
    assert many["batches"] <= 20  # 16, 64, 256, and then 1,024 each


def test_issuing_alone_never_waits(cp):
    a = cp.arange(100, dtype=float)
    a.get()
    _, used = counted(cp, lambda: chain(cp, a, 500))
    assert used["round_trips"] == 0


@pytest.fixture
def slow(cp, monkeypatch):
    """Worker links of this pool pass a proxy that adds 30 ms each way."""
    if only_zmq():
        pytest.skip("RGPU_LINKS=zmq: the proxy stands in tcp links")
    from rgpu.client import seat

    proxies = []
    connect = seat.link.connect

    def through_proxy(uris, identity, *_):
        (uri,) = (uri for uri in uris if uri.startswith("tcp://"))
        host, _, port = uri.removeprefix("tcp://").rpartition(":")
        proxies.append(FaultProxy((host, int(port)), latency=0.03))
        return connect("tcp://{}:{}".format(*proxies[-1].address), identity)

    monkeypatch.setattr(seat.link, "connect", through_proxy)
    yield cp
    cp.close()
    for proxy in proxies:
        proxy.close()


def test_a_slow_line_costs_its_round_trips_and_no_more(slow):
    cp = slow
    a = cp.arange(100, dtype=float)
    a.get()  # attach and connect
    begin = time.perf_counter()
    local = chain(np, np.arange(100, dtype=float), 1000)
    native = time.perf_counter() - begin
    begin = time.perf_counter()
    result = chain(cp, a, 1000).get()
    elapsed = time.perf_counter() - begin
    np.testing.assert_allclose(result, local)
    # Two round trips are 120 ms; 1,000 would be a minute. The rest is slack for a busy machine.
    assert elapsed < native + 0.12 + 3.0


def test_counters_are_by_device_too(cp):
    with cp.cuda.Device(3):
        cp.ones(10).get()
    stats = cp.stats()
    row = next(row for row in stats["devices"] if row["device"] == 3)
    assert row["commands"] > 0 and row["bytes_sent"] > 0 and row["bytes_received"] >= 80
    assert stats["commands"] == sum(row["commands"] for row in stats["devices"])
