"""Fork after use, spawn, and finalizers at every bad moment: clear errors, clean ends, no noise."""

import time

import pytest

from tests.support.servers import PURE, Server, program

FORK = """
import os, sys, time
import rgpu as cp
a = cp.arange(5.0)
a.get()
begin = time.monotonic()
pid = os.fork()
if pid == 0:
    CHILD
_, status = os.waitpid(pid, 0)
print("child", os.waitstatus_to_exitcode(status), time.monotonic() - begin < 20)
print("parent", float((a + 1).sum()))
"""

USES = {
    "operation": "a + 1",
    "read": "a.get()",
    "new": "cp.ones(3)",
    "device": "cp.cuda.Device(1).use(); cp.ones(3)",
    "synchronize": "cp.cuda.Device().synchronize()",
}


@pytest.mark.parametrize("use", USES)
def test_a_forked_child_is_told_what_to_do(servers, use):
    child = f"""
    from rgpu.errors import ForkError
    try:
        {USES[use]}
        sys.exit(3)
    except ForkError as error:
        sys.exit(0 if "spawn" in str(error) else 4)
"""
    done = program(FORK.replace("    CHILD", child), *servers)
    assert (done.stdout, done.stderr) == ("child 0 True\nparent 15.0\n", "")


def test_children_that_are_forked_before_anything_was_used_are_clients_of_their_own(servers, tmp_path):
    """What works with CuPy: imported above, used in the processes of ``multiprocessing`` only, then in the parent."""
    path = tmp_path / "forked.py"
    path.write_text("""
import multiprocessing
import rgpu as cp
from rgpu.cupyx.distributed import init_process_group
def work(rank, port, results):
    cp.cuda.Device(rank).use()
    comm = init_process_group(2, rank, port=port)
    x = cp.full(1000, rank + 1.0)
    comm.all_reduce(x, x)
    results.put(float(x[7]))
    comm.barrier()
    comm.stop()
if __name__ == "__main__":
    import socket
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    fork = multiprocessing.get_context("fork")
    results = fork.SimpleQueue()
    children = [fork.Process(target=work, args=(rank, port, results)) for rank in range(2)]
    for child in children: child.start()
    print(results.get(), results.get())
    for child in children: child.join()
    print([child.exitcode for child in children], float(cp.ones(3).sum()))
""")
    done = program(str(path), *servers, launcher=())
    assert (done.stdout, done.stderr) == ("3.0 3.0\n[0, 0] 3.0\n", "")


def test_a_forked_child_that_does_not_use_it_ends_cleanly(servers):
    done = program(FORK.replace("CHILD", "del a; sys.exit(0)"), *servers)
    assert (done.stdout, done.stderr) == ("child 0 True\nparent 15.0\n", "")


def test_multiprocessing_spawn(servers, tmp_path):
    path = tmp_path / "spawned.py"
    path.write_text("""
import multiprocessing, os
def work(n):
    import rgpu as cp
    return float(cp.full(10, n).sum())
if __name__ == "__main__":
    import rgpu as cp
    a = cp.ones(3); a.get()
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        print(pool.map(work, [1, 2, 3]))
    print(a.sum())
""")
    done = program(str(path), servers[0], launcher=())
    assert (done.stdout, done.stderr) == ("[10.0, 20.0, 30.0]\n3.0\n", "")


ENDS = {
    "arrays alive": "kept = [cp.ones(10) for _ in range(10_000)]",
    "never read": "for _ in range(5000): a = cp.ones(10) + 1",
    "in a cycle": """
class Node: pass
for _ in range(2000):
    n = Node(); n.me = n; n.array = cp.ones(2)
""",
    "in threads": """
import threading
def drop():
    for _ in range(3000): cp.ones(2)
threads = [threading.Thread(target=drop) for _ in range(4)]
for t in threads: t.start()
for t in threads: t.join()
""",
    "daemon thread at work": """
import threading, time
def work():
    while True: cp.ones(100).get()
threading.Thread(target=work, daemon=True).start()
time.sleep(0.2)
""",
    "after close": "a = cp.ones(3); a.get(); cp.close(); del a",
    "worker busy": "a = cp.ones((3000, 3000)); a.get()\nfor _ in range(8): b = a @ a",
    "sys.exit in a function": "import sys\ndef f():\n    x = cp.ones(3)\n    sys.exit(0)\nf()",
}


@pytest.mark.parametrize("end", ENDS)
def test_programs_end_quietly(servers, end):
    source = f"""
import time, atexit
import rgpu as cp
def late(): print(time.monotonic() - begin < 2)
{ENDS[end] if "sys.exit" not in end else ""}
begin = time.monotonic()
"""
    if "sys.exit" in end:
        source += ENDS[end]
    done = program(source + "\nprint(time.monotonic())", *servers, check=False)
    ended = time.monotonic()
    assert (done.returncode, done.stderr) == (0, "")
    if done.stdout:
        assert ended - float(done.stdout) < 10  # 0.5 s, and what a busy machine adds


def test_the_end_after_the_servers_death():
    with Server("cpu:1", "mortal") as server:
        source = f"""
import os, signal, time
import rgpu as cp
kept = [cp.ones(10) for _ in range(1000)]
kept[0].get()
os.kill({server.pid}, signal.SIGKILL)
time.sleep(0.5)
del kept
print(time.monotonic())
"""
        done = program(source, server)
        assert done.stderr == "" and time.monotonic() - float(done.stdout) < 2.5


def test_handlers_registered_before_the_first_use_still_have_their_arrays(servers):
    source = """
import atexit
import cupy as cp
atexit.register(lambda: print(float(a.sum())))
a = cp.ones(10)
"""
    done = program(f"import rgpu; rgpu.install()\n{source}", *servers)
    assert (done.stdout, done.stderr) == ("10.0\n", "")


def test_finalizers_that_compute_when_the_interpreter_ends(servers):
    """They find no pool any more, and make none: there are no threads then that could ask servers."""
    source = """
import time
import rgpu as cp
class Late:
    def __init__(self):
        self.me, self.array = self, cp.ones(3)
    def __del__(self, cp=cp, monotonic=time.monotonic):
        begin = monotonic()
        try:
            cp.ones(5).get()
        except Exception as error:
            print(type(error).__name__, monotonic() - begin < 5)
Late()
"""
    done = program(source, *servers)
    assert (done.stdout, done.stderr) == ("SessionLost True\n", "")


@pytest.mark.parametrize("pure", [False, True])
def test_finalizers_at_every_allocation(servers, pure):
    """The collector comes at the k-th object that a call makes, in whichever thread makes it, and finds one whose
    finalizer reads from the device: what it reads and what the program reads is right, or it is told why not."""
    source = """
import gc
import numpy as np
import rgpu as cp
told = "a finalizer that interrupts the sending of a message cannot wait for the device"
class Late:
    def __init__(self):
        self.me = self
    def __del__(self):
        try:
            t = cp.full(8, 3)
            t += 1
            u = t * 2
            t *= 3
            read.append(int((t + u).sum()))
        except RuntimeError as error:
            refused.append(str(error))
def get():
    return a.get().tolist()
def synchronize():
    cp.cuda.Device().synchronize()
    return a.get().tolist()
def upload():
    assert int(cp.asarray(large).sum()) == large.size
    return a.get().tolist()
large = np.full(40_000, 1)
a, n, read, refused = cp.zeros(4, dtype=np.int64), 0, [], []
a.get()
gc.collect()
gc.freeze()
for call in get, synchronize, upload:
    for k in range(1, 100):
        gc.disable()
        gc.collect()
        Late()
        gc.set_threshold(gc.get_count()[0] + k)
        gc.enable()
        a += 1
        b = a * 2
        n += 1
        got = call()
        gc.disable()
        assert got == [n] * 4, (call, k, got, n)
        assert b.get().tolist() == [2 * n] * 4, (call, k)
gc.collect()
assert set(read) == {160} and set(refused) <= {told}, (set(read), set(refused))
print(len(read) + len(refused), len(read) > len(refused))
"""
    done = program(source, *servers, timeout=60, **(PURE if pure else {}))
    assert (done.stdout, done.stderr) == ("297 True\n", "")
