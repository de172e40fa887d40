"""Collectives between the devices of two servers: results against NumPy, order, errors, and the death of a rank."""

import json
import os
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from rgpu.cuda import nccl
from tests.support.servers import Server, program
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


# ---- several processes -------------------------------------------------------------------------------


MEMBER = """
import json, sys, warnings
import numpy as np
import rgpu as cp
from rgpu.cupyx.distributed import init_process_group
from rgpu.cupyx.scipy import sparse
rank, port = int(sys.argv[-2]), int(sys.argv[-1])
cp.cuda.Device(rank).use()
comm = init_process_group(2, rank, port=port)
out = cp.zeros(4)
comm.all_reduce(cp.full(4, rank + 1.0), out)
found = [float(out[0])]
comm.all_reduce(cp.full(4, 2.0 + rank), out, "prod")
found.append(float(out[0]))
matrix = cp.arange(8.0).reshape(2, 4) + 100 * rank
comm.all_to_all(matrix, wide := cp.zeros((2, 4)))
found.append(wide.get().tolist())
comm.gather(cp.full(3, float(rank)), rows := cp.zeros((2, 3)), root=1)
found.append(rows.get().tolist() if rank == 1 else None)
comm.scatter(matrix, row := cp.zeros(4), root=0)
found.append(row.get().tolist())
comm.broadcast(complex_ := cp.full(2, 1j * rank), root=1)
found.append(bool((complex_ == 1j).all()))
warnings.simplefilter("ignore", UserWarning)
mine = sparse.csr_matrix(cp.eye(3) * (rank + 1))
comm.all_reduce(mine, total := sparse.csr_matrix((3, 3)))
found.append(total.toarray().get().tolist())
comm.barrier()
comm.stop()
print(json.dumps(found))
"""


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def test_two_processes(servers):
    port = str(free_port())
    with ThreadPoolExecutor(2) as threads:
        jobs = [
            threads.submit(program, MEMBER, *servers, arguments=(str(rank), port))
            for rank in range(2)
        ]
        found = [json.loads(job.result(60).stdout) for job in jobs]
    for rank in range(2):
        total, product, wide, rows, row, complex_, sparse = found[rank]
        assert (total, product, complex_) == (3, 6, True)
        assert wide == [(np.arange(4) + 4 * rank).tolist(), (np.arange(4) + 4 * rank + 100).tolist()]
        assert rows == ([[0] * 3, [1] * 3] if rank == 1 else None)
        assert row == (np.arange(4) + 4 * rank).tolist()
        assert sparse == (np.eye(3) * 3).tolist()


def test_the_store():
    from rgpu.cupyx.distributed._store import TCPStore, TCPStoreProxy

    port = free_port()
    store = TCPStore(1)
    store.run(port=port)
    proxy = TCPStoreProxy(port=port)
    proxy["a"], proxy["b"] = 1234, b"1\0002"
    assert (proxy["a"], proxy["b"]) == (1234, b"1\0002")
    proxy.barrier()
    for wrong in (lambda: proxy.__setitem__("a", 1.5), lambda: proxy[3], lambda: proxy.__setitem__(3, 1)):
        with pytest.raises(ValueError):
            wrong()
    with pytest.raises(RuntimeError):
        proxy["nothing"]
    store.stop()


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
    for rank in (0, 2, 3):
        with pytest.raises(nccl.NcclError, match="rank 1"):
            arrays[rank].get()
    with pytest.raises(Exception, match="ingular"):
        arrays[1].get()
    for comm in comms:
        comm.abort()


@pytest.mark.parametrize("victim", [0, 2])
def test_the_death_of_a_rank_is_an_error_for_all(cp, victim):
    from rgpu.client import pool

    comms = nccl.NcclCommunicator.initAll(4)
    arrays = on_each(cp, [np.ones(200_000)] * 4)

    def reduce():
        for comm, array in zip(comms, arrays):
            comm.allReduce(array.data.ptr, array.data.ptr, 200_000, nccl.NCCL_FLOAT64, nccl.NCCL_MAX, 0)

    reduce()
    same(arrays, 1)
    device = pool.get().device(victim)
    pid = pid_of(device)
    for _ in range(300):
        reduce()
    os.kill(pid, signal.SIGKILL)
    began = time.monotonic()
    for rank, array in enumerate(arrays):
        if rank != victim:
            with pytest.raises(nccl.NcclError, match="REMOTE_ERROR|aborted"):
                array.get()
    assert time.monotonic() - began < 6  # 5 s, and the reading of three answers on a busy machine
    wait_until(lambda: device.stream.connection.failure is not None, timeout=5)
    cp.reset()
    again = nccl.NcclCommunicator.initAll(4)
    arrays = on_each(cp, [np.full(10, float(rank)) for rank in range(4)])
    for comm, array in zip(again, arrays):
        comm.allReduce(array.data.ptr, array.data.ptr, 10, nccl.NCCL_FLOAT64, nccl.NCCL_SUM, 0)
    same(arrays, 6)
    for comm in again:
        comm.destroy()
