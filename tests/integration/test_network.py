"""Sessions over a line that hurts: resets, stalls, cuts, tiny segments; and counters that tell the truth."""

import threading
import time

import numpy as np
import pytest

from rgpu import errors
from tests.support.faultproxy import FaultProxy
from tests.support.servers import Server


@pytest.fixture(scope="module")
def server():
    with Server("cpu:1", "far", "--grace", "3", "--links", "tcp") as running:
        yield running


@pytest.fixture
def line(server, monkeypatch):
    """(the face, the proxy that the worker's link passes)."""
    import rgpu
    from rgpu.client import seat

    proxies = []
    connect = seat.link.connect

    def through_proxy(uris, identity, *_):
        (uri,) = (uri for uri in uris if uri.startswith("tcp://"))
        host, _, port = uri.removeprefix("tcp://").rpartition(":")
        proxies.append(FaultProxy((host, int(port))))
        return connect("tcp://{}:{}".format(*proxies[-1].address), identity)

    monkeypatch.setattr(seat.link, "connect", through_proxy)
    rgpu.connect(server.address)
    rgpu.ones(1).get()  # lease and connect
    yield rgpu, proxies[0]
    rgpu.close()
    for proxy in proxies:
        proxy.close()


def test_a_storm_of_resets_loses_and_doubles_nothing(line):
    cp, proxy = line
    counter = cp.zeros(1, np.int64)
    over = threading.Event()

    def storm():
        for _ in range(15):
            proxy.reset()
            if over.wait(0.05):
                return

    thread = threading.Thread(target=storm)
    thread.start()
    done = 0
    while done < 2000 or (proxy.resets < 2 and done < 200_000):
        counter += 1
        done += 1
        if done % 100 == 1:
            assert int(counter.get()[0]) == done
    assert int(counter.get()[0]) == done
    over.set()
    thread.join()
    assert proxy.resets >= 2


def test_large_data_over_resets(line):
    cp, proxy = line
    host = np.random.default_rng(1).random(3 << 20)
    over = threading.Event()

    def storm():
        while not over.wait(0.2):
            proxy.reset()

    thread = threading.Thread(target=storm)
    thread.start()
    try:
        for _ in range(2):
            np.testing.assert_array_equal((cp.asarray(host) + 1).get(), host + 1)
    finally:
        over.set()
        thread.join()


def test_a_stall_shorter_than_grace_costs_time_only(line):
    cp, proxy = line
    a = cp.arange(10.0)
    a.get()
    proxy.stall()
    threading.Timer(1.5, proxy.resume).start()
    begin = time.monotonic()
    np.testing.assert_array_equal((a + 1).get(), np.arange(10.0) + 1)
    assert 1 < time.monotonic() - begin < 10


def test_cut_for_good_is_an_error_in_time(line):
    cp, proxy = line
    a = cp.arange(10.0)
    a.get()
    proxy.cut()
    begin = time.monotonic()
    with pytest.raises(errors.SessionLost, match="device 0"):
        (a + 1).get()
    assert time.monotonic() - begin < 12


def test_one_byte_at_a_time(line):
    cp, proxy = line
    proxy.slice_bytes = 1
    host = np.arange(300.0)
    a = cp.asarray(host)
    for _ in range(20):
        a = a * 1.5 + 1
        host = host * 1.5 + 1
    np.testing.assert_array_equal(a.get(), host)


def test_bytes_are_those_of_the_socket(line):
    cp, proxy = line

    def used():
        stats = cp.stats()
        return stats["bytes_sent"] + stats["bytes_received"]

    before, forwarded = used(), proxy.forwarded
    host = np.arange(1 << 19, dtype=float)
    for _ in range(4):
        (cp.asarray(host) + 1).get()
    for _ in range(2000):
        cp.ones(3)
    cp.cuda.Device().synchronize()
    counted, moved = used() - before, proxy.forwarded - forwarded
    assert counted <= moved <= counted * 1.02 + 4096


def test_round_trips_are_the_times_somebody_waited(line):
    cp, _ = line
    a = cp.arange(10.0)

    def trips(function):
        before = cp.stats()["round_trips"]
        function()
        return cp.stats()["round_trips"] - before

    assert trips(lambda: [a + i for i in range(1500)]) == 0
    assert trips(lambda: a.get()) == 1
    assert trips(lambda: float(a.sum())) == 1
    assert trips(lambda: cp.cuda.Device().synchronize()) == 1
    assert trips(lambda: cp.nonzero(a)) == 1
    assert trips(lambda: cp.asarray(np.ones(1 << 16))) == 0
