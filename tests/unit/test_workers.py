"""The pool of worker processes: stores, backs off, and survives a host without room."""

import subprocess
import sys

import pytest

from rgpu.server.workers import WorkerPool


class Recorder:
    """The daemon's part: no poll loop, the callbacks are called by hand."""

    def __init__(self):
        self.callbacks, self.gone = {}, []

    def watch(self, fd, callback):
        self.callbacks[fd] = callback

    def unwatch(self, fd):
        self.callbacks.pop(fd, None)

    def worker_ready(self, worker):
        """Nobody waits here."""

    def worker_told(self, worker, memory_used, busy, commands):
        """Nor here."""

    def worker_gone(self, worker):
        self.gone.append(worker.fate())


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def made():
    pools = []

    def make(*command, spares=1):
        recorder, clock = Recorder(), Clock()
        pool = WorkerPool(
            recorder,
            recorder,
            bind="127.0.0.1",
            spares={"cpu": spares},
            threads=1,
            command=command,
            clock=clock,
        )
        pools.append(pool)
        return pool, recorder, clock

    yield make
    for pool in pools:
        pool.close()


def test_failing_starts_are_tried_less_and_less_often(made):
    pool, recorder, clock = made(sys.executable, "-c", "raise SystemExit(3)")
    starts = []
    while clock.now < 20:
        before = len(recorder.callbacks)
        pool.tick()
        if len(recorder.callbacks) > before:
            starts.append(round(clock.now, 1))
            (worker,) = pool._workers
            worker.process.wait(20)
            for callback in list(recorder.callbacks.values()):
                callback()
        clock.now += 0.1
    assert len(recorder.gone) == len(starts) == 5
    assert recorder.gone[0] == "exit code 3"
    assert pool.failures("cpu") == 5
    assert [round(b - a) for a, b in zip(starts, starts[1:])] == [0, 1, 3, 10]


def test_a_host_without_room_for_a_process(made, monkeypatch):
    pool, recorder, clock = made("unused")

    def no_room(*_, **__):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", no_room)
    assert pool.spawn("cpu") is False
    assert not recorder.callbacks
    assert pool.tick() > 0.2
    assert pool.failures("cpu") == 1


def test_a_worker_that_does_not_listen_is_killed(made):
    pool, recorder, clock = made(sys.executable, "-c", "import time; time.sleep(60)")
    pool.spawn("cpu")
    (worker,) = pool._workers
    pool.stop(worker, "enough")
    clock.now = 2.5
    pool.tick()
    worker.process.wait(20)
    callback, _ = recorder.callbacks.values()  # of its channel, and of what it prints
    callback()
    assert recorder.gone == ["signal 9 (SIGKILL)"]
