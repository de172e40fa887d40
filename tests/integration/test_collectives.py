"""Collectives between the devices of two servers: results against NumPy, order, errors, and the death of a rank."""

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from rgpu.cuda import nccl
from rgpu.link import listen, shaped
from rgpu.server import peer, rings
from rgpu.server.collective import Communicator, NcclError
from rgpu.server.meeting import Store
from rgpu.server.peers import Peers
from tests.support.servers import Server
from tests.support.waiting import wait_until

pytestmark = pytest.mark.filterwarnings("ignore::rgpu.errors.PerformanceWarning")
DTYPES = {"i1": 0, "u1": 1, "i4": 2, "u4": 3, "i8": 4, "u8": 5, "f2": 6, "f4": 7, "f8": 8}


@pytest.fixture(scope="module")
def servers():
    with Server("cpu:2", "hostA") as first, Server("cpu:2", "hostB") as second:
        yield first, second


@pytest.fixture(scope="module")
def cp(servers):
    import rgpu

    rgpu.connect(*[server.address for server in servers], check_prediction=True)
    for number in range(4):
        with rgpu.cuda.Device(number):
            rgpu.zeros(1).get()
    yield rgpu
    rgpu.close()


@pytest.fixture(scope="module")
def comms(cp):
    made = nccl.NcclCommunicator.initAll(4)
    assert [comm.rank_id() for comm in made] == [comm.device_id() for comm in made] == [0, 1, 2, 3]
    yield made
    for comm in made:
        comm.destroy()


def on_each(cp, values):
    arrays = []
    for number, value in enumerate(values):
        with cp.cuda.Device(number):
            arrays.append(cp.asarray(value))
    return arrays


def hosts(size, dtype="f8", n=4):
    return [np.random.default_rng(rank).integers(1, 5, size).astype(dtype) for rank in range(n)]


def same(arrays, expected):
    for array in arrays:
        np.testing.assert_array_equal(array.get(), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op, ufunc", [(0, np.add), (1, np.multiply), (2, np.maximum), (3, np.minimum)])
def test_all_reduce(cp, comms, dtype, op, ufunc):
    given = hosts(1001, dtype)
    sources, targets = on_each(cp, given), on_each(cp, [np.zeros(1001, dtype)] * 4)
    for comm, source, target in zip(comms, sources, targets):
        comm.allReduce(source.data.ptr, target.data.ptr, 1001, DTYPES[dtype], op, 0)
    same(targets, ufunc.reduce(given, dtype=dtype))
    for source, host in zip(sources, given):
        np.testing.assert_array_equal(source.get(), host)


def test_large_in_place_without_the_client(cp, comms):
    given = hosts(600_000)
    arrays = on_each(cp, given)
    before = cp.stats()
    nccl.groupStart()
    for comm, array in zip(comms, arrays):
        comm.allReduce(array.data.ptr, array.data.ptr, array.size, nccl.NCCL_FLOAT64, nccl.NCCL_SUM, 0)
    nccl.groupEnd()
    last = [array[-1:].get() for array in arrays]
    after = cp.stats()
    assert after["bytes_sent"] + after["bytes_received"] - before["bytes_sent"] - before["bytes_received"] < 8192
    assert after["round_trips"] - before["round_trips"] == len(last)
    same(arrays, sum(given))


def test_the_others(cp, comms):
    size, given = 3000, hosts(3000)
    f8, stream = nccl.NCCL_FLOAT64, cp.cuda.Stream.null.ptr

    def everywhere(length):
        return on_each(cp, [np.zeros(length)] * 4)

    sources, targets = on_each(cp, given), everywhere(size)
    for comm, source, target in zip(comms, sources, targets):
        comm.reduce(source.data.ptr, target.data.ptr, size, f8, nccl.NCCL_SUM, 2, stream)
    np.testing.assert_array_equal(targets[2].get(), sum(given))
    np.testing.assert_array_equal(targets[1].get(), 0)
    for comm, source, target in zip(comms, sources, targets):
        comm.broadcast(source.data.ptr, target.data.ptr, size, f8, 3, stream)
    same(targets, given[3])
    wide = everywhere(4 * size)
    for comm, source, target in zip(comms, sources, wide):
        comm.allGather(source.data.ptr, target.data.ptr, size, f8, stream)
    same(wide, np.concatenate(given))
    for comm, source, target in zip(comms, wide, targets):
        comm.reduceScatter(source.data.ptr, target.data.ptr, size, f8, nccl.NCCL_AVG, stream)
    for target, host in zip(targets, given):
        np.testing.assert_array_equal(target.get(), host)


@pytest.mark.parametrize("size", [10, 400_000])
def test_a_group_of_sends_and_receives_in_the_wrong_order(cp, comms, size):
    given = hosts(size)
    sources, targets = on_each(cp, given), on_each(cp, [np.zeros(size)] * 4)
    nccl.groupStart()
    for rank, comm in enumerate(comms):
        comm.recv(targets[rank].data.ptr, size, nccl.NCCL_FLOAT64, (rank - 1) % 4, 0)
        comm.send(sources[rank].data.ptr, size, nccl.NCCL_FLOAT64, (rank + 1) % 4, 0)
    nccl.groupEnd()
    for source in sources:
        source[...] = -1  # after the sends
    for rank, target in enumerate(targets):
        np.testing.assert_array_equal(target.get(), given[(rank - 1) % 4])


def test_long_messages_both_ways_go_in_rounds(cp, comms, monkeypatch):
    """A worker takes a part from its peer before it sends the next one: nobody holds more than a part."""
    monkeypatch.setattr(nccl, "_PART", 1 << 20)
    issued = []
    known = nccl.NcclCommunicator._issue

    def told(self, operation, *rest):
        issued.append((self.rank_id(), operation))
        known(self, operation, *rest)

    monkeypatch.setattr(nccl.NcclCommunicator, "_issue", told)
    size = (5 << 20) // 16  # two and a half parts
    given = hosts(size, n=2)
    sources, targets = on_each(cp, given), on_each(cp, [np.zeros(size)] * 2)
    nccl.groupStart()
    for rank, comm in enumerate(comms[:2]):
        comm.recv(targets[rank].data.ptr, size, nccl.NCCL_FLOAT64, 1 - rank, 0)
        comm.send(sources[rank].data.ptr, size, nccl.NCCL_FLOAT64, 1 - rank, 0)
    nccl.groupEnd()
    assert [operation for rank, operation in issued if not rank] == [nccl._SEND, nccl._RECEIVE] * 3
    for rank, target in enumerate(targets):
        np.testing.assert_array_equal(target.get(), given[1 - rank])


def test_split(cp, comms):
    parts = [comm.commSplit(rank % 2, -rank) for rank, comm in enumerate(comms)]
    assert [(part.size(), part.rank_id()) for part in parts] == [(2, 1), (2, 1), (2, 0), (2, 0)]
    arrays = on_each(cp, [np.full(5, 10.0**rank) for rank in range(4)])
    for part, array in zip(parts, arrays):
        part.allReduce(array.data.ptr, array.data.ptr, 5, nccl.NCCL_FLOAT64, nccl.NCCL_SUM, 0)
    assert [array.get()[0] for array in arrays] == [101, 1010, 101, 1010]
    for part in parts:
        part.destroy()


def test_beside_the_commands_of_another_stream(cp, comms):
    """Collectives on non-blocking streams; events order them with what comes before and after."""
    arrays = on_each(cp, [np.zeros(50_000)] * 4)
    beside, reduced = [], []
    for number in range(4):
        with cp.cuda.Device(number):
            beside.append(cp.cuda.Stream(non_blocking=True))
            reduced.append(cp.cuda.Event())
    for turn in range(1, 4):
        for rank, (comm, array) in enumerate(zip(comms, arrays)):
            with cp.cuda.Device(rank):
                array += rank
                event = cp.cuda.Event()
                event.record()
                beside[rank].wait_event(event)
                comm.allReduce(array.data.ptr, array.data.ptr, 50_000, nccl.NCCL_FLOAT64, 0, beside[rank].ptr)
                if turn == 3:
                    with beside[rank]:
                        array *= 10  # on the same stream: after the collective
                reduced[rank].record(beside[rank])
                cp.cuda.Stream.null.wait_event(reduced[rank])
                array -= 1
    expected = 0
    for turn in range(1, 4):
        expected = (4 * expected + 6) * (10 if turn == 3 else 1) - 1
    same(arrays, expected)


def test_what_is_refused(cp, comms):
    with cp.cuda.Device(0):
        a = cp.zeros(4)
    with pytest.raises(nccl.NcclError):
        comms[1].allReduce(a.data.ptr, a.data.ptr, 4, nccl.NCCL_FLOAT64, 0, 0)  # another device's array
    with pytest.raises(nccl.NcclError):
        comms[0].allReduce(a.data.ptr, a.data.ptr, 4, 99, 0, 0)
    with pytest.raises(nccl.NcclError):
        nccl.groupEnd()
    with pytest.raises(nccl.NcclError):
        nccl.NcclCommunicator.initAll([0, 0])
    comms[0].send(a.data.ptr, 4, nccl.NCCL_FLOAT64, 9, 0)  # a rank that is not there
    with pytest.raises(nccl.NcclError, match="INVALID_ARGUMENT"):
        a.get()
    comms[0].check_async_error()  # nobody else is harmed by that
    with cp.cuda.Device(0):
        np.testing.assert_array_equal(cp.ones(2).get(), 1)


# ---- communicators by themselves -------------------------------------------------------------------


class _Device:
    kind = "cpu"
    allowance = None


@pytest.fixture
def members():
    """``members(n)``: communicators of n ranks in this process. ``clients``: whose they are, a letter for each."""
    ends = []

    def make(n, clients=None):
        whose = clients or "a" * n
        peers = [Peers(_Device(), lambda kinds, keys, seal: listen("tcp://127.0.0.1:0")) for _ in range(n)]
        store = Store("tcp://127.0.0.1:0", peers[0].meeting)
        ends.append(store)
        place = [store.endpoint.partition("://")[2]]
        comms = together(range(n), lambda rank: Communicator(peers[rank], n, rank, store.secret, place, whose[rank]))
        ends.extend(comms)
        return comms

    yield make
    for end in reversed(ends):
        end.close()


def together(each, work):
    with ThreadPoolExecutor(len(each)) as threads:
        return [job.result(40) for job in [threads.submit(work, one) for one in each]]


@pytest.mark.parametrize("n, way", [(2, "ring"), (2, "tree"), (3, "ring"), (4, "hierarchy")])
def test_what_is_longer_than_all_windows(members, n, way, monkeypatch):
    """All send at once much more than a peer holds for who has not asked: nobody waits for ever."""
    monkeypatch.setattr(peer, "WINDOW", 2 << 20)
    monkeypatch.setattr(peer, "OUTSTANDING", 2 << 20)
    monkeypatch.setattr(rings, "LEAD", 2)
    monkeypatch.setattr(rings, "expected", lambda costs, sizes, nbytes: {way: 0.0})
    comms = members(n)
    for comm in comms:
        comm.hosts = [f"host{rank * 2 // n}" for rank in range(n)]
        comm.order = list(range(n))
    given = hosts((12 << 20) // 8, n=n)
    sums = [host.copy() for host in given]
    together(comms, lambda comm: comm.run("all_reduce", sums[comm.rank], sums[comm.rank], 0, 0))
    for total in sums:
        np.testing.assert_array_equal(total, sum(given))
    assert [comm.ways[-1] for comm in comms] == [way] * n


def test_the_way_is_chosen_by_what_was_measured(members, monkeypatch):
    """Two hosts with two ranks each and a slow line between: what a neighbour of one's own host costs is not taken
    for what the line costs, although in the ring of all ranks everybody waits for it."""
    monkeypatch.setenv(shaped.SETTING, "2000us,2MB/s")
    monkeypatch.setattr(peer.Pair, "meet", lambda pair, host: None)
    known = Communicator._connect

    def connect(comm, rank):
        pair = known(comm, rank)
        if comm.hosts[rank] != comm.hosts[comm.rank]:
            pair._wire.narrow()
        return pair

    monkeypatch.setattr(Communicator, "_connect", connect)
    comms = members(4)
    for comm in comms:
        comm.hosts, comm.order = ["one", "one", "two", "two"], [0, 1, 2, 3]
    arrays = hosts((1 << 20) // 8)
    together(comms, lambda comm: comm.run("all_reduce", arrays[comm.rank], arrays[comm.rank], 0, 0))
    costs = comms[0].costs()
    assert all(comm.costs() == costs for comm in comms)
    assert costs.beta_far > 0.7 / 2e6 and costs.beta_near < costs.beta_far / 2
    assert {comm.ways[-1] for comm in comms} == {"hierarchy"}
    assert set(comms[0]._peers.reach) == {"two"} and not comms[1]._peers.reach  # what its server will know


def test_who_waits_for_the_device_of_another_client_that_is_gone_is_told(members):
    comms = members(3, clients="abb")
    arrays = hosts(1000, n=3)
    together(comms, lambda comm: comm.run("all_reduce", arrays[comm.rank], arrays[comm.rank], 0, 0))

    def wait(comm):
        with pytest.raises(NcclError, match="the client of rank 0 is gone: it was killed"):
            comm.run("all_reduce", arrays[comm.rank], arrays[comm.rank], 0, 0)

    def act(comm):
        wait(comm) if comm.rank else comm._peers.deserted("it was killed")

    together(comms, act)
    wait_until(lambda: comms[0].error)


@pytest.mark.parametrize("end", ["destroyed", "session"])
def test_who_comes_late_gets_what_a_rank_that_has_ended_has_sent(members, end):
    first, second = members(2)
    given = np.arange(300_000.0)
    first.run("broadcast", given, given, 0, 0)
    ending = threading.Thread(target=lambda: first._peers.close(delivery=60) if end == "session" else first.close())
    ending.start()
    if end == "destroyed":
        ending.join()
    got = np.zeros_like(given)
    second.run("broadcast", None, got, 0, 0)
    np.testing.assert_array_equal(got, given)
    ending.join()
    wait_until(lambda: first.ended or end == "session")


def test_where_all_devices_are_of_one_client_nobody_need_be_told_that_it_is_gone(members):
    """It may come back, and go on."""
    comms = members(2)
    comms[0]._peers._abort(lambda rank: "gone")
    arrays = hosts(1000, n=2)
    expected = sum(arrays)
    together(comms, lambda comm: comm.run("all_reduce", arrays[comm.rank], arrays[comm.rank], 0, 0))
    for array in arrays:
        np.testing.assert_array_equal(array, expected)


def test_other_clients_are_told_of_a_session_that_ends_without_a_goodbye(members):
    comms = members(2, clients="ab")
    comms[1]._peers.close(why="the lease was given back")
    wait_until(lambda: comms[0].error)
    assert comms[0].error == "the session of rank 1 has ended: the lease was given back"


# ---- the end of a rank: last, because it takes the communicator with it ------------------------------------


def pid_of(device):
    sessions = device.daemon.snapshot()["devices"][device.index]["sessions"]
    return next(session["worker_pid"] for session in sessions if session["pid"] == os.getpid())


def test_an_error_before_is_an_error_for_all(cp):
    comms = nccl.NcclCommunicator.initAll(4)
    arrays = on_each(cp, [np.ones((2, 2))] * 4)
    with cp.cuda.Device(1):
        arrays[1] = cp.linalg.tensorinv(cp.zeros((4, 2, 2)), ind=1).reshape(-1)[:4].copy()
    for comm, array in zip(comms, arrays):
        comm.allReduce(array.data.ptr, array.data.ptr, 4, nccl.NCCL_FLOAT64, 0, 0)
    for rank in (0, 2, 3):  # also who met another that had given up already
        with pytest.raises(nccl.NcclError, match="rank 1 has nothing to give"):
            arrays[rank].get()
    with pytest.raises(Exception, match="ingular"):
        arrays[1].get()
    for comm in comms:
        comm.abort()


def test_what_was_issued_on_an_aborted_communicator_is_one_error(cp):
    """Sends poison nothing: each of them would be an error of its own at some later wait."""
    comms = nccl.NcclCommunicator.initAll(2)
    arrays = on_each(cp, [np.ones(8)] * 2)
    comms[1].abort()

    def told():
        try:
            comms[0].check_async_error()
        except nccl.NcclError:
            return True
        return False

    wait_until(told)
    with cp.cuda.Device(0):
        for _ in range(20):
            comms[0].send(arrays[0].data.ptr, 8, nccl.NCCL_FLOAT64, 1, 0)
        with pytest.raises(nccl.NcclError, match="abort"):
            cp.cuda.Device(0).synchronize()
        cp.cuda.Device(0).synchronize()
        assert int(cp.arange(10).sum()) == 45
        comms[0].send(arrays[0].data.ptr, 8, nccl.NCCL_FLOAT64, 1, 0)  # a later one says so again
        with pytest.raises(nccl.NcclError, match="abort"):
            cp.cuda.Device(0).synchronize()
    comms[0].abort()


@pytest.mark.parametrize("victim, used", [(0, True), (2, False)])
def test_the_death_of_a_rank_is_an_error_for_all(cp, victim, used):
    """Also of one that nobody has a connection to yet (not ``used``)."""
    from rgpu.client import pool

    comms = nccl.NcclCommunicator.initAll(4)
    arrays = on_each(cp, [np.ones(200_000)] * 4)

    def reduce(but=None):
        for rank, (comm, array) in enumerate(zip(comms, arrays)):
            if rank != but:
                comm.allReduce(array.data.ptr, array.data.ptr, 200_000, nccl.NCCL_FLOAT64, nccl.NCCL_MAX, 0)

    if used:
        reduce()
    same(arrays, 1)
    for comm in comms:
        comm.check_async_error()  # all have met
    device = pool.get().device(victim)
    pid = pid_of(device)
    for _ in range(300 if used else 0):
        reduce()
    os.kill(pid, signal.SIGKILL)
    began = time.monotonic()
    if not used:
        reduce(but=victim)
    for rank, array in enumerate(arrays):
        if rank != victim:
            with pytest.raises(nccl.NcclError, match=f"the worker of rank {victim} is gone"):
                array.get()
    assert time.monotonic() - began < 5
    wait_until(lambda: device.stream.connection.failure is not None, timeout=5)
    cp.reset()
    again = nccl.NcclCommunicator.initAll(4)
    arrays = on_each(cp, [np.full(10, float(rank)) for rank in range(4)])
    for comm, array in zip(again, arrays):
        comm.allReduce(array.data.ptr, array.data.ptr, 10, nccl.NCCL_FLOAT64, nccl.NCCL_SUM, 0)
    same(arrays, 6)
    for comm in again:
        comm.destroy()
