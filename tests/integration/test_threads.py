"""Several threads, one pool: shared devices, different current devices, readers beside writers, Ctrl-C."""

import threading
import time

import numpy as np
import pytest

from tests.support.servers import program


def in_threads(*functions, timeout=60):
    """Run them all at once; what the first failed with."""
    failed = []

    def guarded(function):
        try:
            function()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=guarded, args=(f,), daemon=True) for f in functions]
    for thread in threads:
        thread.start()
    end = time.monotonic() + timeout
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    if failed:
        raise failed[0]
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"


def test_eight_threads_of_two_thousand_operations(cp):
    results = {}

    def work(number):
        with cp.cuda.Device(number % 4):
            x = cp.zeros(4)
            step = cp.full(4, float(number))
            for i in range(1000):
                x = x + step
                x += 1
                if i % 250 == 0:
                    x[1:3].get()
            results[number] = x.get()

    in_threads(*[lambda n=n: work(n) for n in range(8)])
    for number, result in results.items():
        np.testing.assert_array_equal(result, 1000.0 * (number + 1))
    assert len(results) == 8


def test_the_current_device_is_each_threads_own(cp):
    barrier = threading.Barrier(4)

    def work(number):
        cp.cuda.Device(number).use()
        for _ in range(50):
            barrier.wait(20)
            assert cp.cuda.Device().id == number
            assert cp.ones(1).device.id == number

    in_threads(*[lambda n=n: work(n) for n in range(4)])


def test_one_array_used_by_many_threads(cp):
    a = cp.arange(1000.0)

    def work():
        for _ in range(100):
            assert float((a * 2).sum()) == 999000.0

    in_threads(*[work] * 6)


def test_a_reader_beside_a_writer(cp):
    big = np.ones(4 << 20)  # 32 MiB a time: the window fills
    small = cp.arange(10.0)
    writing = threading.Event()
    writing.set()
    reads = []

    def write():
        try:
            for _ in range(12):
                assert float(cp.asarray(big)[7]) == 1
        finally:
            writing.clear()

    def read():
        while writing.is_set():
            reads.append(float(small.sum()))

    in_threads(write, read)
    assert reads and set(reads) == {45.0}


def test_what_is_read_is_not_torn_by_what_follows(cp):
    a = cp.zeros(3 << 20)
    seen = []

    def read():
        for _ in range(15):
            seen.append(a.get())

    def change():
        for _ in range(60):
            a.__iadd__(1)
            a[:1].get()

    in_threads(read, change)
    assert all((x == x[0]).all() for x in seen)


def test_close_reaches_every_thread(cp, servers):
    arrived, go_on = threading.Event(), threading.Event()
    result = []

    def work():
        cp.ones(2).get()
        arrived.set()
        go_on.wait(20)
        result.append(float(cp.ones(2).sum()))  # a new pool, not the closed one

    thread = threading.Thread(target=work)
    thread.start()
    arrived.wait(20)
    cp.connect(*[server.address for server in servers])
    go_on.set()
    thread.join(20)
    assert result == [2.0]


INTERRUPTED = """
import random, signal, os, threading, time
import numpy as np, rgpu as cp
a = cp.arange(300_000.0)
truth = np.arange(300_000.0)
a.get()
stop = False
def shoot():
    rng = random.Random(3)
    for _ in range(60):
        time.sleep(rng.uniform(0.002, 0.05))
        os.kill(os.getpid(), signal.SIGINT)
    global stop
    stop = True
thread = threading.Thread(target=shoot)
interrupted = wrong = 0
try: thread.start()
except KeyboardInterrupt: pass
while not stop:
    try:
        for _ in range(50):
            b = a + 1.0
        c = b.get()
        wrong += not (c == truth + 1).all()
    except KeyboardInterrupt:
        interrupted += 1
while thread.is_alive():
    try: thread.join()
    except KeyboardInterrupt: interrupted += 1
print(interrupted > 10, wrong, float((a * 2).sum()) == (truth * 2).sum())
"""


def test_ctrl_c_again_and_again_leaves_the_session_usable(servers):
    done = program(INTERRUPTED, servers[0])
    assert (done.stdout, done.stderr) == ("True 0 True\n", "")


SMALL = """
        for _ in range(50):
            wrong += not (small.get() == 2.0).all()
            stream.sync()
"""
LEFT = """
print(interrupted > 10, wrong, stream.batch == stream.connection.progress[0], stream._plain, stream._sinks,
    stream.connection.stats["reconnects"], float(small.sum()))
"""


def test_ctrl_c_again_and_again_in_small_reads_loses_and_tears_nothing(servers):
    begin, loop = (INTERRUPTED.index(part) for part in ("        for _ in", "    except KeyboardInterrupt:\n  "))
    source = INTERRUPTED[:begin] + SMALL.lstrip("\n") + INTERRUPTED[loop : INTERRUPTED.index("print(")] + LEFT
    made = "a.get()\nfrom rgpu.client import pool\nsmall, stream = cp.ones(4) * 2, pool.current_stream()\n"
    done = program(source.replace("a.get()\n", made, 1), servers[0])
    assert (done.stdout, done.stderr) == ("True 0 True {} {} 0 8.0\n", "")


@pytest.mark.parametrize("size", [10, 20_000_000])
def test_ctrl_c_answers_at_once_while_the_worker_is_busy(servers, size):
    source = f"""
import os, signal, threading, time
import rgpu as cp
a = cp.ones((2000, 2000)); b = cp.ones({size}); a.get(); b.get()
for _ in range(5):
    c = a @ a
threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
begin = time.monotonic()
try:
    (b + c[0, 0]).get()
except KeyboardInterrupt:
    print("interrupted", time.monotonic() - begin < 1.0)
print(float(b.sum()) == {size})
"""
    assert program(source, servers[0]).stdout == "interrupted True\nTrue\n"
