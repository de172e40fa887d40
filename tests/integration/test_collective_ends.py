"""However communicators end, their workers keep no descriptor and no thread of them, nor a place to meet."""

import gc
import os
import signal
import subprocess
import sys

import pytest

from rgpu.cuda import nccl
from rgpu.server.collective import UNUSED
from tests.support.servers import Server, environment
from tests.support.waiting import wait_until

MADE = 50
AT_ONCE = 20  # of which the members are in different sessions
SLACK = 40  # of all descriptors and threads of a worker; a meeting place alone has about ten


@pytest.fixture(scope="module")
def server():
    with Server("cpu:2") as server:
        yield server


@pytest.fixture(scope="module")
def cp(server):
    import rgpu

    rgpu.connect(server.address)
    for number in range(2):
        with rgpu.cuda.Device(number):
            rgpu.zeros(1).get()
    yield rgpu
    rgpu.close()


def worker_of(number):
    from rgpu.client import pool

    device = pool.get().device(number)
    sessions = device.daemon.snapshot()["devices"][device.index]["sessions"]
    return next(session["worker_pid"] for session in sessions if session["pid"] == os.getpid())


def held(pid):
    return len(os.listdir(f"/proc/{pid}/fd")) + len(os.listdir(f"/proc/{pid}/task"))


class Workers:
    """The descriptors and threads of the workers of some devices, since it was made."""

    def __init__(self, *numbers):
        self.before = {pid: held(pid) for pid in map(worker_of, numbers)}

    def are_clean(self):
        return all(held(pid) <= count + SLACK for pid, count in self.before.items())

    def more(self):
        return max(held(pid) - count for pid, count in self.before.items())


def used_pair(cp):
    """Two ranks that are connected, and at rest."""
    comms, arrays = nccl.NcclCommunicator.initAll(2), []
    for number, comm in enumerate(comms):
        with cp.cuda.Device(number):
            arrays.append(cp.ones(3))
        comm.allReduce(arrays[-1].data.ptr, arrays[-1].data.ptr, 3, nccl.NCCL_FLOAT64, nccl.NCCL_SUM, 0)
    assert [array.get().tolist() for array in arrays] == [[2, 2, 2]] * 2
    return comms


def flush(cp):
    """What was freed is told with the next commands."""
    gc.collect()
    for number in range(2):
        with cp.cuda.Device(number):
            cp.zeros(1).get()


def destroyed(cp):
    for comm in used_pair(cp):
        comm.destroy()


def all_aborted(cp):
    for comm in used_pair(cp):
        comm.abort()


def aborted_by_one(cp):
    """The other rank is told, and lets go although its client holds it."""
    comms = used_pair(cp)
    comms[0].abort()
    return comms


def freed(cp):
    used_pair(cp)
    flush(cp)


def parts_freed_later(cp):
    """The whole ends first; its parts still meet where it did."""
    comms, arrays = nccl.NcclCommunicator.initAll(2), []
    parts = [comm.commSplit(0, rank) for rank, comm in enumerate(comms)]
    for comm in comms:
        comm.destroy()
    for number, part in enumerate(parts):
        with cp.cuda.Device(number):
            arrays.append(cp.ones(3))
        part.allReduce(arrays[-1].data.ptr, arrays[-1].data.ptr, 3, nccl.NCCL_FLOAT64, nccl.NCCL_SUM, 0)
    assert [array.get().tolist() for array in arrays] == [[2, 2, 2]] * 2
    for part in parts:
        part.destroy()


@pytest.mark.parametrize("end", [destroyed, all_aborted, aborted_by_one, freed, parts_freed_later])
def test_nothing_is_kept_of_what_has_ended(cp, end):
    workers = Workers(0, 1)
    gc.freeze()  # what a thousand tests have left would be looked through each time
    try:
        kept = [end(cp) for _ in range(MADE)]
    finally:
        gc.unfreeze()
    wait_until(workers.are_clean, 30)
    del kept


def test_few_meeting_places_wait_for_somebody(cp):
    workers, comms = Workers(0), []
    with cp.cuda.Device(0):
        nccl.get_unique_id()
        each = workers.more()
        ids = [nccl.get_unique_id() for _ in range(UNUSED + MADE)]
    wait_until(lambda: workers.more() <= each * UNUSED + SLACK, 30)
    nccl.groupStart()
    for number in range(2):
        with cp.cuda.Device(number):
            comms.append(nccl.NcclCommunicator(2, ids[-1], number))
    nccl.groupEnd()
    for comm in comms:
        comm.check_async_error()
        comm.destroy()


def error_of(comm):
    try:
        comm.check_async_error()
    except nccl.NcclError as error:
        return str(error)
    return ""


OTHER = """
import os, sys
import rgpu as cp
from rgpu.client import pool
from rgpu.cuda import nccl
cp.cuda.Device(1).use()
device = pool.current()
comms = [nccl.NcclCommunicator(2, bytes.fromhex(line.strip()), 1) for line in iter(sys.stdin.readline, "\\n")]
x = cp.ones(3)
for comm in comms:
    comm.allReduce(x.data.ptr, x.data.ptr, 3, nccl.NCCL_FLOAT64, nccl.NCCL_SUM, 0)
x.get()
sessions = device.daemon.snapshot()["devices"][device.index]["sessions"]
print(next(each["worker_pid"] for each in sessions if each["pid"] == os.getpid()), flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("killed", [True, False])
def test_nothing_is_kept_when_the_other_session_ends_or_its_worker_dies(cp, server, killed):
    workers = Workers(0)
    other = subprocess.Popen([sys.executable, "-c", OTHER], env={**environment(), "RGPU_SERVERS": server.address},
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # fmt: skip
    try:
        with cp.cuda.Device(0):
            ids = [nccl.get_unique_id() for _ in range(AT_ONCE)]
            print(*[each.hex() for each in ids], "\n", sep="\n", end="", file=other.stdin, flush=True)
            comms, x = [nccl.NcclCommunicator(2, each, 0) for each in ids], cp.ones(3)
            for comm in comms:
                comm.allReduce(x.data.ptr, x.data.ptr, 3, nccl.NCCL_FLOAT64, nccl.NCCL_SUM, 0)
            pid = int(other.stdout.readline())
            assert x.get().tolist() == [2.0**AT_ONCE] * 3
            assert not workers.are_clean()
            if killed:
                os.kill(pid, signal.SIGKILL)
                wait_until(workers.are_clean, 60)  # although the client holds them
                for comm in comms:
                    assert "gone" in wait_until(lambda comm=comm: error_of(comm), 60)
            else:
                print(file=other.stdin, flush=True)
                other.wait(30)
                for comm in comms:
                    comm.check_async_error()
                    comm.destroy()
                wait_until(workers.are_clean, 60)
    finally:
        other.kill()
        other.communicate()
