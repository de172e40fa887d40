"""Collectives of several processes, one rank each: results, where they meet, and one that is killed, or its worker."""

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.support.servers import Server, environment, free_port, program


@pytest.fixture(scope="module")
def servers():
    with Server("cpu:2", "hostA") as first, Server("cpu:2", "hostB") as second:
        yield first, second


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
full = sparse.csr_matrix(cp.array([[1.0, 2.0], [3.0, 4.0]]))
comm.all_reduce(full, product := sparse.csr_matrix((2, 2)), "prod")
comm.all_gather(full * (rank + 1), everyone := [], 0)
comm.all_to_all([full, full * 5], crossed := [])
found.append([x.toarray().get().tolist() for x in (product, *everyone, *crossed)])
comm.barrier()
comm.stop()
print(json.dumps(found))
"""


def test_two_processes(servers):
    port = str(free_port())
    with ThreadPoolExecutor(2) as threads:
        jobs = [threads.submit(program, MEMBER, *servers, arguments=(str(rank), port)) for rank in range(2)]
        found = [json.loads(job.result(60).stdout) for job in jobs]
    for rank in range(2):
        total, product, wide, rows, row, complex_, sparse, several = found[rank]
        assert (total, product, complex_) == (3, 6, True)
        assert wide == [(np.arange(4) + 4 * rank).tolist(), (np.arange(4) + 4 * rank + 100).tolist()]
        assert rows == ([[0] * 3, [1] * 3] if rank == 1 else None)
        assert row == (np.arange(4) + 4 * rank).tolist()
        assert sparse == (np.eye(3) * 3).tolist()
        full = np.array([[1, 2], [3, 4]])
        assert several == [x.tolist() for x in (full @ full, full, 2 * full, *[(1, 5)[rank] * full] * 2)]


MEMBER_OF_A_LOST_RANK = """
import json, os, sys, time
import rgpu as cp
from rgpu.client import pool
from rgpu.cupyx.distributed import init_process_group
rank, port = int(sys.argv[-2]), int(sys.argv[-1])
cp.cuda.Device(rank).use()
comm = init_process_group(3, rank, port=port)
x = cp.full(300_000, 1.0)
comm.all_reduce(x, x)
assert x[:2].get().tolist() == [3, 3]
device = pool.current()
sessions = device.daemon.snapshot()["devices"][device.index]["sessions"]
print(next(each["worker_pid"] for each in sessions if each["pid"] == os.getpid()), flush=True)
said, began = "", time.monotonic()
while not said and time.monotonic() - began < 30:
    try:
        comm.all_reduce(x, x, "max")
        last = time.time()
        x[:1].get()
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
ended, usable = time.time(), None
if rank != 1:
    usable = cp.arange(5).sum().get().tolist()
print(json.dumps([ended, said, usable]), flush=True)
os._exit(0)  # the store of rank 0 would wait for who cannot come
"""


def test_a_worker_killed_inside_an_all_reduce_of_several_processes(servers):
    addresses = ",".join(server.address for server in servers)
    port = str(free_port())
    ranks = [
        subprocess.Popen([sys.executable, "-c", MEMBER_OF_A_LOST_RANK, str(rank), port],
                         env={**environment(), "RGPU_SERVERS": addresses}, text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for rank in range(3)
    ]  # fmt: skip
    try:
        pids = [int(process.stdout.readline()) for process in ranks]
        time.sleep(0.3)  # in the middle of many
        killed = time.time()
        os.kill(pids[1], signal.SIGKILL)
        found = [json.loads(process.communicate(timeout=40)[0]) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.communicate()
    for rank, (ended, said, usable) in enumerate(found):
        assert 0 <= ended - killed < 5, (rank, said)
        if rank != 1:
            assert said.startswith("NcclError") and "the worker of rank 1 is gone" in said, said
            assert usable == 10


MEMBER_BESIDE_A_KILLED_PROGRAM = """
import os, sys
import rgpu as cp
from rgpu.cupyx.distributed import init_process_group
rank, port = int(sys.argv[-2]), int(sys.argv[-1])
cp.cuda.Device(rank).use()
comm = init_process_group(3, rank, port=port)
x = cp.ones(300_000)
comm.all_reduce(x, x)
print(float(x[0]), flush=True)
sys.stdin.readline()
try:
    if rank == 0:
        comm.all_reduce(x, x)
        x.get()
    else:
        comm.barrier()
except Exception as error:
    print(type(error).__name__, error)
print(int(cp.arange(5).sum()), flush=True)
sys.stdin.readline()
os._exit(0)  # the store of rank 0 would wait for who cannot come
"""


def test_a_program_killed_while_others_wait_for_its_device():
    """Its session's worker lives on for the server's grace, here a minute. The others hear of it long before."""
    port = str(free_port())
    with Server("cpu:3", "patient", "--grace", "60") as server:
        ranks = [
            subprocess.Popen([sys.executable, "-c", MEMBER_BESIDE_A_KILLED_PROGRAM, str(rank), port],
                             env={**environment(), "RGPU_SERVERS": server.address}, text=True,
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            for rank in range(3)
        ]  # fmt: skip
        try:
            assert [process.stdout.readline() for process in ranks] == ["3.0\n"] * 3
            ranks[1].kill()
            for rank in (0, 2):
                print(file=ranks[rank].stdin, flush=True)
            for rank in (2, 0):  # whose process has the store ends last
                said, usable = ranks[rank].communicate(timeout=50)[0].splitlines()
                assert said.startswith("NcclError NCCL_ERROR_REMOTE_ERROR") and "the client of rank 1 is gone" in said
                assert usable == "10"
        finally:
            for process in ranks:
                process.kill()
                process.communicate()


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
