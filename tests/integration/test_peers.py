"""Copies between devices: right, ordered, past the client, and with an end when a device dies."""

import contextlib
import os
import re
import signal
import threading
import time
import types

import numpy as np
import pytest

from rgpu import errors
from rgpu.client import peer as client_peer
from rgpu.link import connect, listen, shm
from rgpu.server import peer as server_peer
from rgpu.server.peer import Pair
from rgpu.server.peers import Peers
from rgpu.server.table import Poison
from tests.support.servers import Server, near, program
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


@pytest.mark.filterwarnings("default::rgpu.errors.PerformanceWarning")
@pytest.mark.parametrize(
    "line",
    ["a + b", "a += b", "cp.add(a, b)", "cp.sqrt(b)", "cp.concatenate([a, b])", "b.sum()", "a[...] = b",
     "a[1:] = b[1:]", "cp.copyto(a, b)", "cp.copyto(a, b, where=True)", "cp.where(a, b, 0)",
     "a.fill(cp.complex128(1j))", "(a * 1j).astype('f8')"],
)  # fmt: skip
def test_a_warning_names_the_line_of_the_user(cp, line):
    with cp.cuda.Device(1):
        b = cp.ones(4)
    with cp.cuda.Device(0):
        a = cp.zeros(4)
        with pytest.warns(np.exceptions.ComplexWarning if "1j" in line else errors.PerformanceWarning) as found:
            types.FunctionType(compile(line, "users.py", "exec"), {"cp": cp, "a": a, "b": b})()
    assert {warning.filename for warning in found} == {"users.py"}


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


def test_on_one_host_the_bytes_pass_shared_memory_and_leave_nothing_in_the_file_system(cp):
    before = held_in_memory()
    host = np.random.default_rng(3).integers(0, 256, 40 << 20, np.uint8)
    with cp.cuda.Device(0):
        a = cp.asarray(host)
    for other in (1, 2):  # of the same server, and of another one
        with cp.cuda.Device(other):
            np.testing.assert_array_equal(cp.asarray(a).get(), host)
        assert cp.stats()["devices"][0]["links"][other] == cp.stats()["devices"][other]["links"][0] == near()
    assert held_in_memory() <= before


def held_in_memory():
    """What lies in the system's folder of shared memory, but for the semaphores of other programs on this machine."""
    return {name for name in os.listdir("/dev/shm") if not name.startswith("sem.")}


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


def test_a_link_is_measured_between_the_workers(cp):
    from rgpu.client import pool

    streams = [pool.get().device(number).stream for number in (0, 2)]
    before = traffic(cp)
    found = client_peer.measure(*streams)
    assert found["link"] == near()
    assert 1e-6 < found["rtt"] < 1 and 1e7 < found["bandwidth"] < 1e12
    assert traffic(cp) - before < 4096  # not one byte of it passed the client
    with cp.cuda.Device(2):
        np.testing.assert_array_equal(cp.asarray(cp.ones(5)).get(), 1)


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


@pytest.mark.parametrize("slow", ["a", "ab"])
def test_an_emulated_link_is_one_whichever_ends_have_it(slow):
    """Two hosts, either or both behind an emulation: their workers meet as slowly as was asked for."""
    with contextlib.ExitStack() as stack:
        servers = []
        for host in "ab":
            env = os.environ | {"RGPU_HOST_ID": f"host-{host}"}
            env |= {"RGPU_EMULATED_LINK": "20000us,1000MB/s"} if host in slow else {}
            servers.append(stack.enter_context(Server("cpu:1", host, env=env)))
        text = program("rgpu.smi", *servers, launcher=("-m",), arguments=("topo", "-b")).stdout
    row = text[text.index("Between workers") :].splitlines()[2]
    found = re.search(r"(?:tcp|ucx), (\d+) us", row)  # ucx where the servers offer it, as under RGPU_LINK=ucx
    assert found and int(found[1]) >= 10_000 * len(slow), text  # each end delays what it sends


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


def joined(kind):
    if kind == "shm" and shm.missing():
        pytest.skip(shm.missing())
    listener = listen(f"{kind}://127.0.0.1:0")
    there = Pair(listener.accept(SECRET), SECRET, "there")
    here = Pair(connect(listener.uri, SECRET), SECRET, "here")
    assert here.greet("cpu", 5)
    return here, there


@pytest.fixture(params=["tcp", "shm"])
def pair(request):
    here, there = joined(request.param)
    yield here, there
    here.close()
    there.close()


@pytest.mark.parametrize("kind", ["tcp", "shm"])
def test_nobody_looks_in_vain(kind, monkeypatch):
    """Windows full both ways at once: whoever waits is woken, and does not go on because it looks now and then."""
    monkeypatch.setattr(server_peer, "LOOK", 60.0)
    ends = joined(kind)
    data = np.random.default_rng(2).integers(0, 256, 96 << 20, np.uint8)
    places = [memoryview(bytearray(len(data))) for _ in ends]

    def exchange(me):
        for round_ in range(3):
            ends[me].send(round_ + 1, memoryview(data))
            ends[me].receive(round_ + 1, places[me])
            ends[me].settle()

    threads = [threading.Thread(target=exchange, args=(me,), daemon=True) for me in (0, 1)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40)
    assert time.monotonic() - began < 40
    assert all(bytes(place) == data.tobytes() for place in places)
    for end in ends:
        end.connection.fail(errors.SessionLost("over"))
        end.close()


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


class _Card:
    """A device whose memory its neighbours can read, as far as this test lets them."""

    kind = "card"
    allowance = None

    def __init__(self, memory):
        self.memory = memory
        self.lends, self.opens = True, True
        self.redeemed = 0

    def ticket(self, array):
        if not self.lends:
            return None
        self.memory[b"%d" % id(array)] = array
        return b"%d" % id(array)

    def redeem(self, target, ticket, nbytes):
        if self.opens:
            self.redeemed += 1
            target[:] = self.memory[ticket]
        return self.opens

    def lend(self, array):
        return memoryview(array)

    place = lend

    def landed(self, array, place):
        pass


@pytest.fixture
def cards():
    memory = {}
    ends = [Peers(_Card(memory), lambda kinds, keys, seal: listen("tcp://127.0.0.1:0")) for _ in range(2)]
    places, host = ends[0].listen(1, SECRET, "the other", "")
    assert ends[1].connect(1, SECRET, places, "the other", host) == "tcp"
    wait_until(lambda: ends[1].pairs[1].takes_tickets("card") and ends[0].pairs[1].takes_tickets("card"), timeout=5)
    yield ends
    for end in ends:
        end.close(0.0)


def test_a_ticket_in_place_of_bytes(cards):
    here, there = cards
    source, target = np.arange(1000, dtype=np.uint8), np.zeros(1000, np.uint8)
    here.send(1, 7, lambda: source)
    pair = here.pairs[1]
    assert pair._lent  # the source must stay until it was read
    there.receive(1, 7, lambda: target)
    here.settle()
    np.testing.assert_array_equal(target, source)
    assert there.backend.redeemed == 1 and not pair._lent and not there.pairs[1]._arrivals
    here.send(1, 8, lambda: source)

    def broken():
        raise ValueError("no such array")

    with pytest.raises(ValueError, match="no such array"):  # nobody wants it any more: it is given back
        there.receive(1, 8, broken)
    here.settle()
    assert not pair._lent and not there.pairs[1]._arrivals


def test_a_ticket_that_does_not_open_is_followed_by_the_bytes(cards):
    here, there = cards
    there.backend.opens = False
    for token in (1, 2):
        source, target = np.full(3 << 20, token, np.uint8), np.zeros(3 << 20, np.uint8)
        here.send(1, token, lambda source=source: source)
        there.receive(1, token, lambda target=target: target)
        np.testing.assert_array_equal(target, source)
    assert not here.pairs[1].takes_tickets("card")  # no second attempt
    here.settle()


def test_the_death_of_the_reader_ends_what_was_lent(cards):
    here, there = cards
    here.send(1, 7, lambda: np.zeros(10, np.uint8))
    there.pairs[1].connection.abort()
    began = time.monotonic()
    here.settle()
    assert time.monotonic() - began < 10 and not here.pairs[1].usable
