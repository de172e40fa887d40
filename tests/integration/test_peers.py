"""Copies between devices: right, ordered, past the client, and with an end when a device dies."""

import os
import signal
import threading
import time

import numpy as np
import pytest

from rgpu import errors
from rgpu.client import peer as client_peer
from rgpu.link import connect, listen
from rgpu.server.peer import Pair
from rgpu.server.table import Poison
from tests.support.servers import Server
from tests.support.waiting import wait_until

pytestmark = pytest.mark.filterwarnings("ignore::rgpu.errors.PerformanceWarning")


@pytest.fixture(scope="module")
def servers():
    with Server("cpu:2", "hostA") as first, Server("cpu:1", "hostB") as second:
        yield first, second


@pytest.fixture(scope="module")
def cp(servers):
    import rgpu

    rgpu.connect(*[server.address for server in servers], check_prediction=True)
    for number in range(3):
        with rgpu.cuda.Device(number):
            rgpu.zeros(1).get()  # leases it: what a test starts must end with it
    yield rgpu
    rgpu.close()


def traffic(cp):
    stats = cp.stats()
    return stats["bytes_sent"] + stats["bytes_received"]


def test_bytes_do_not_pass_the_client(cp):
    with cp.cuda.Device(0):
        a = cp.arange(1 << 19, dtype=np.float64)
    with cp.cuda.Device(2):
        cp.asarray(a[:1]).get()  # introduces the two
        before, directly = traffic(cp), cp.stats()["direct_bytes"]
        b = cp.asarray(a)
        c = b[-3:].get()
    assert traffic(cp) - before < 4096
    assert cp.stats()["direct_bytes"] - directly == a.nbytes
    np.testing.assert_array_equal(c, np.arange((1 << 19) - 3, 1 << 19))


def test_a_copy_does_not_make_the_client_wait(cp):
    with cp.cuda.Device(0):
        a = cp.ones((300, 300))
    with cp.cuda.Device(1):
        cp.asarray(a)
        before = cp.stats()["round_trips"]
        for _ in range(10):
            b = cp.asarray(a)
            a = cp.asarray(b)
    assert cp.stats()["round_trips"] == before


@pytest.mark.parametrize(
    "view", [lambda x: x, lambda x: x.T, lambda x: x[::2], lambda x: x[:, 1:3], lambda x: x[:0], lambda x: x[1, 2:3]]
)
def test_layouts(cp, view):
    host = np.arange(60, dtype=np.int32).reshape(6, 10)
    with cp.cuda.Device(0):
        a = cp.asarray(host)
    with cp.cuda.Device(2):
        moved = cp.asarray(view(a))
        copied = view(a).copy("F")
        target = cp.zeros((6, 10), np.int32)
        view(target)[...] = view(a)
    assert moved.device.id == copied.device.id == 2
    np.testing.assert_array_equal(moved.get(), view(host))
    np.testing.assert_array_equal(copied.get(), view(host))
    expected = np.zeros((6, 10), np.int32)
    view(expected)[...] = view(host)
    np.testing.assert_array_equal(target.get(), expected)


@pytest.mark.parametrize("dtype", ["?", "f2", "c16", [("a", "i2"), ("b", "f8")]])
def test_dtypes(cp, dtype):
    host = np.zeros(7, dtype)
    host[3:4] = np.ones(1, dtype)
    with cp.cuda.Device(0):
        a = cp.empty(7, dtype)
        a.set(host)
    with cp.cuda.Device(1):
        np.testing.assert_array_equal(a.copy().get(), host)


def test_order_with_what_comes_before_and_after(cp):
    """The source changes right after each copy; the copies are of what it was then."""
    with cp.cuda.Device(0):
        a = cp.zeros(400_000)
    copies = []
    for i in range(6):
        with cp.cuda.Device(0):
            a += 1
        with cp.cuda.Device(1 + i % 2):
            copies.append(cp.asarray(a) * 10)
    with cp.cuda.Device(0):
        a[...] = -1
    for i, copied in enumerate(copies):
        assert set(copied.get()) == {10.0 * (i + 1)}


def test_there_and_back_from_many_threads(cp):
    def work(number):
        for i in range(8):
            with cp.cuda.Device(number % 3):
                a = cp.full(70_000, number * 100 + i)
            with cp.cuda.Device((number + 1) % 3):
                b = cp.asarray(a) + 1
            with cp.cuda.Device(number % 3):
                results[number, i] = set(cp.asarray(b).get())

    results = {}
    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == {(n, i): {n * 100 + i + 1} for n in range(6) for i in range(8)}


def test_memcpy_peer(cp):
    runtime = cp.cuda.runtime
    assert runtime.deviceCanAccessPeer(0, 2) == 1
    with cp.cuda.Device(0):
        a = cp.arange(100, dtype=np.int64)
    with cp.cuda.Device(2):
        b = cp.zeros(100, dtype=np.int64)
        stream = cp.cuda.Stream()
    runtime.memcpyPeer(b.data.ptr + 80, 2, a.data.ptr, 0, 160)
    with cp.cuda.Device(2):
        runtime.memcpyPeerAsync(b.data.ptr, 2, a.data.ptr + 400, 0, 80, stream.ptr)
        stream.synchronize()
    expected = np.zeros(100, np.int64)
    expected[10:30], expected[:10] = np.arange(20), np.arange(50, 60)
    np.testing.assert_array_equal(b.get(), expected)
    with cp.cuda.Device(0), pytest.raises(cp.cuda.runtime.CUDARuntimeError):
        runtime.memcpyPeer(b.data.ptr, 9, a.data.ptr, 0, 8)


def test_an_error_travels_with_the_copy(cp):
    with cp.cuda.Device(0):
        broken = cp.linalg.cholesky(cp.asarray([[1.0, 2.0], [3.0, -4.0]]))
        fine = cp.ones(3)
    with cp.cuda.Device(1):
        copied = cp.asarray(broken) + 1
        with pytest.raises(Exception, match="definite|Cholesky|infs|nan|LinAlg") as raised:
            if np.isnan(copied.get()).any():
                raise ValueError("nan, as CuPy says nothing of it")
        assert not isinstance(raised.value, errors.PeerLost)
        np.testing.assert_array_equal(cp.asarray(fine).get(), 1)  # the way is still there


def test_through_the_client_where_there_is_no_way(cp, monkeypatch):
    monkeypatch.setattr(client_peer, "_introduce", lambda *_: False)
    monkeypatch.setattr(client_peer, "_pairs", {})
    before = cp.stats()
    with cp.cuda.Device(0):
        a = cp.arange(1000.0)
    with cp.cuda.Device(2):
        b = cp.asarray(a)
        np.testing.assert_array_equal(b.get(), np.arange(1000))
    stats = cp.stats()
    assert stats["relayed_bytes"] - before["relayed_bytes"] == a.nbytes
    assert stats["direct_bytes"] == before["direct_bytes"]
    assert "cannot reach" in stats["devices"][0]["notes"][0]


# ---- the end of a peer -------------------------------------------------------------------------------


def pid_of(device):
    sessions = device.daemon.snapshot()["devices"][device.index]["sessions"]
    return next(session["worker_pid"] for session in sessions if session["pid"] == os.getpid())


def test_the_death_of_the_sender_is_an_error_and_the_pool_usable_after(cp):
    from rgpu.client import pool

    sender = pool.get().device(0)
    with cp.cuda.Device(0):
        a = cp.ones((1500, 1500))
    with cp.cuda.Device(2):
        cp.asarray(a[:2]).get()
    victim = pid_of(sender)
    with cp.cuda.Device(0):
        for _ in range(200):
            a = a @ a * 1e-4  # a minute's work: the copy waits for it
    with cp.cuda.Device(2):
        b = cp.asarray(a)
        sum_ = b.sum()
        sender.stream.flush()
        os.kill(victim, signal.SIGKILL)
        began = time.monotonic()
        with pytest.raises(errors.PeerLost, match="gone"):
            sum_.get()
        assert time.monotonic() - began < 5
        np.testing.assert_array_equal(cp.ones(3).get(), 1)  # the receiver's session goes on
    wait_until(lambda: sender.stream.connection.failure is not None, timeout=5)
    cp.reset()
    with cp.cuda.Device(0):
        a = cp.arange(5)
    with cp.cuda.Device(2):
        np.testing.assert_array_equal(cp.asarray(a).get(), np.arange(5))


# ---- pairs by themselves -------------------------------------------------------------------------------

SECRET = bytes(range(16))


@pytest.fixture
def pair():
    listener = listen("tcp://127.0.0.1:0")
    there = Pair(listener.accept(SECRET), SECRET, "there")
    here = Pair(connect(listener.uri, SECRET), SECRET, "here")
    assert here.greet("cpu", 5)
    yield here, there
    here.close()
    there.close()


def test_who_does_not_know_the_secret_is_not_heard():
    listener = listen("tcp://127.0.0.1:0")
    there = Pair(listener.accept(SECRET), SECRET, "there")
    stranger = Pair(connect(listener.uri, bytes(16)), bytes(16), "stranger")
    assert not stranger.greet("cpu", 0.5)
    assert there.greeting is None
    stranger.close()
    there.close()


def test_bytes_wait_for_who_asks_and_memory_is_bounded(pair):
    here, there = pair
    data = np.random.default_rng(1).integers(0, 256, 80 << 20, np.uint8)
    here.send(7, memoryview(data))
    wait_until(lambda: there.connection.session.unfinished is not None and here._queue, timeout=10)
    held = sum(len(chunk) for _, chunk in there._arrivals[7].held) if 7 in there._arrivals else 0
    assert held <= 33 << 20 and here._queue  # the rest stays with the sender
    place = memoryview(bytearray(len(data)))
    there.receive(7, place)
    assert bytes(place) == data.tobytes()
    here.settle()
    assert not here._queue and not there._arrivals


def test_a_refused_token_raises_and_others_arrive(pair):
    here, there = pair
    here.refuse(1, "ValueError", ["no"], "")
    here.send(2, memoryview(b"abc"))
    here.send(3, memoryview(b"too long"))
    here.send(4, memoryview(b"x" * (3 << 20)))
    here.send(5, memoryview(b"end"))
    with pytest.raises(Poison):
        there.receive(1, memoryview(bytearray(2)))
    place = memoryview(bytearray(3))
    there.receive(2, place)
    assert bytes(place) == b"abc"
    with pytest.raises(ValueError, match="8 bytes came for an array of 3"):
        there.receive(3, place)
    there.drop(4)
    there.receive(5, place)
    assert bytes(place) == b"end"
