"""What goes wrong while two ends of a stream link meet, and lines on which a message takes longer than a silence."""

import contextlib
import os
import socket
import time

import pytest

from rgpu.link import connect, listen, seal, shm, ucx
from rgpu.session import Connection, Session
from tests.support.faultproxy import FaultProxy
from tests.support.waiting import wait_until

ME = b"i" * 16
SEAL = seal.Seal(b"s" * seal.SECRET)
pytestmark = pytest.mark.timeout(100)


def at(kind):
    if why := {"shm": shm, "ucx": ucx}[kind].missing() if kind != "tcp" else "":
        pytest.skip(why)
    return f"{kind}://" if kind == "shm" else f"{kind}://127.0.0.1:0"


@contextlib.contextmanager
def both(listener, **how):
    client, worker = connect(listener.uri, ME, **how), listener.accept(ME)
    try:
        yield client, worker
    finally:
        client.abort()
        worker.abort()


def descriptors():
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("side", [seal.CLIENT, seal.WORKER])
@pytest.mark.parametrize("kind", ["tcp", "ucx"])
def test_an_end_that_cannot_seal_is_not_used_and_leaves_nothing_open(kind, side, monkeypatch):
    """Where there is no memory for a cipher, say: its data must not go out as they are."""
    if why := seal.missing():
        pytest.skip(why)
    sealed, failures, open_now = seal.Meeting.sealed, [], []

    def sealing(meeting, pipe, which):
        if which != side or len(failures) >= 4:
            return sealed(meeting, pipe, which)
        failures.append(pipe.fileno())
        open_now.append(descriptors())
        raise ConnectionError("no memory")

    monkeypatch.setattr(seal.Meeting, "sealed", sealing)
    with both(listen(at(kind), seal=SEAL), seal=SEAL) as (client, worker):
        ups = {client: 0, worker: 0}

        def tend():
            for end in ups:
                end.recv()
                if "up" in end.events():
                    ups[end] += 1
                    assert len(failures) == 4 or side == (seal.WORKER if end is client else seal.CLIENT)
            return len(failures) == 4 and all(ups.values())

        wait_until(tend, 30)
        assert open_now[3] <= open_now[1] + 2, "each failed attempt leaves descriptors open"
        wait_until(lambda: (client.events(), client.send([b"x"]), worker.events(), worker.recv() == [b"x"])[3])


def test_a_door_with_a_full_queue_is_tried_again_and_not_looked_at_all_the_time():
    """Of a worker that has not looked for long: a unix socket then says EAGAIN, and will never be connected."""
    listener = listen(at("shm"))
    name, queue, problem = "\0" + listener.uri.rpartition("/")[2], [], 0
    try:
        while not problem:
            queue.append(socket.socket(socket.AF_UNIX))
            queue[-1].setblocking(False)
            problem = queue[-1].connect_ex(name)
        with both(listener) as (client, worker):
            looks, select = [], client._selector.select
            client._selector.select = lambda seconds: (looks.append(seconds), select(seconds))[1]
            assert not client.wait(0.5)
            assert len(looks) < 30
            for sock in queue:
                sock.close()
            wait_until(lambda: (worker.events(), "up" in client.events())[1])
    finally:
        for sock in queue:
            sock.close()


@pytest.mark.parametrize("way", ["up", "down"])
def test_a_message_that_takes_seconds_on_its_line_arrives(way):
    """The end that sends hears nothing of the other meanwhile but that it is there."""
    listener = listen("tcp://127.0.0.1:0")
    host, _, port = listener.uri.removeprefix("tcp://").rpartition(":")
    with FaultProxy((host, int(port)), bandwidth=3e5) as proxy:
        client = Connection(Session(ME, 1), connect(proxy.uri, ME))
        worker = Connection(Session(ME, 1), listener.accept(ME))
        ends = (client, worker) if way == "up" else (worker, client)
        try:
            wait_until(lambda: (client.pump(), worker.pump(), client.down_since is worker.down_since is None)[2])
            ends[0].post([b"head", bytes(3 << 19)])
            end, got = time.monotonic() + 60, None
            while got is None:
                assert time.monotonic() < end, f"not in time, {client.reconnects} reconnects"
                ends[0].pump()
                ends[1].wait(0.01)
                ends[1].pump()
                got = ends[1].take()
            assert [len(frame) for frame in got] == [4, 3 << 19]
        finally:
            client.abort()
            worker.abort()
