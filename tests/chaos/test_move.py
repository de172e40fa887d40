"""`rgpu drain` moves running sessions to another server; the programs notice nothing."""

import os
import signal
import threading
import time

import numpy as np
import pytest

from rgpu.client import pool, silver
from rgpu.client.control import DaemonClient
from rgpu.client.mirror import Half
from rgpu.client.queue import next_reply
from rgpu.config import parse_address
from rgpu.errors import SessionLost
from rgpu.wire import ops
from tests.chaos.test_redundancy import STEPS, mirror, process_of, work
from tests.support.servers import Server, program
from tests.support.waiting import wait_until


@pytest.fixture
def servers():
    with Server("cpu:2", "old") as old, Server("cpu:2", "new") as new:
        yield old, new


@pytest.fixture
def old(servers):
    daemon = DaemonClient(parse_address(servers[0].address))
    yield daemon
    daemon.close()


@pytest.fixture
def cp(servers):
    import rgpu

    rgpu.connect(*[server.address for server in servers])
    yield rgpu
    rgpu.close()


def sessions(daemon):
    return [s for device in daemon.snapshot()["devices"] for s in device["sessions"]]


def test_a_program_goes_on_elsewhere(cp, servers, old):
    expected = work(cp, STEPS)
    assert len(sessions(old)) == 1
    done = []

    def pause(step):
        if step == 20:
            run = {"launcher": (), "arguments": ("rgpu.cli", "drain", servers[0].address, "--deadline", "60s")}
            done.append(threading.Thread(target=lambda: done.append(program("-m", **run).stdout)))
            done[0].start()
        time.sleep(0.02)  # some of it happens meanwhile

    assert work(cp, STEPS, pause) == expected
    done[0].join(20)
    assert "is drained" in done[1]
    assert sessions(old) == []
    assert work(cp, 10) == work(cp, 10)
    assert pool.get().device(0).daemon.address.port == int(servers[1].address.rpartition(":")[2])
    cp.connect(servers[1].address)  # the moved session is given back as any other
    assert cp.arange(3).sum().get() == 3


def test_the_state_does_not_pass_the_client(cp, old):
    a = cp.arange(4 << 20, dtype="f8")  # 32 MiB
    b = a[::-2]
    a.get()
    before = cp.stats()["bytes_received"], cp.stats()["bytes_sent"]
    old.drain()
    wait_until(lambda: not sessions(old), timeout=20)
    after = cp.stats()["bytes_received"], cp.stats()["bytes_sent"]
    assert max(y - x for x, y in zip(before, after)) < 1 << 20
    b += 1
    np.testing.assert_array_equal(a[-5:].get(), np.arange((4 << 20) - 5, 4 << 20) + np.array([1, 0, 1, 0, 1]))


def test_devices_copy_to_each_other_all_the_time(cp, old):
    """Before, while and after the one of them moves, and the program reads what it has."""
    here, steps = cp.arange(1 << 16), 0
    drained = threading.Timer(0.2, old.drain)
    drained.start()
    after = 0
    while after < 20:
        with cp.cuda.Device(2):  # on the other server
            there = cp.asarray(here) + 1
        here = cp.asarray(there) + 1
        steps += 2
        if steps % 20 == 0:  # so that there is something to wait for
            assert int(here[0]) == steps
            after += not drained.is_alive() and not sessions(old)
    np.testing.assert_array_equal(here.get(), np.arange(1 << 16) + steps)


def test_half_of_a_redundant_device_moves(servers, old):
    import rgpu

    with Server("cpu:1", "third") as third:
        rgpu.connect(*[server.address for server in (*servers, third)], redundancy=2)
        try:
            expected = work(rgpu, 20)
            old.drain()
            assert work(rgpu, 20) == expected
            wait_until(lambda: not sessions(old), timeout=20)
            assert work(rgpu, 20) == expected
            assert len(mirror().whole) == 2
        finally:
            rgpu.close()


def test_nowhere_to_go(servers, old):
    """What cannot move stays, and works, until the deadline."""
    import rgpu

    rgpu.connect(servers[0].address)
    try:
        a = rgpu.arange(10)
        a.get()
        old.drain()
        time.sleep(1)
        assert int((a + 1).sum()) == 55
        assert len(sessions(old)) == 1
    finally:
        rgpu.close()


def test_a_lease_is_given_back_when_its_session_has_moved(servers, old):
    import rgpu

    rgpu.connect(*[server.address for server in servers], gpus=1, memory="64MiB", filters=["server=old"])
    try:
        a = rgpu.arange(10)
        a.get()
        held = [lease for device in old.snapshot()["devices"] for lease in device["leases"]]
        assert len(held) == 1
        old.drain()
        wait_until(lambda: not sessions(old), timeout=20)
        wait_until(lambda: not [x for d in old.snapshot()["devices"] for x in d["leases"]], timeout=5)
        assert int(a.sum()) == 45
    finally:
        rgpu.close()


@pytest.mark.parametrize("order", ["one after the other", "at once"])
@pytest.mark.parametrize("redundancy", [1, 2])
def test_both_servers_of_a_program_drain(servers, order, redundancy):
    """Two devices, or both halves of one. With other servers the numbers are right, and the drained ones are left."""
    import rgpu

    with Server("cpu:4", "third") as third, Server("cpu:4", "fourth") as fourth:
        rgpu.connect(*[server.address for server in (*servers, third, fourth)], redundancy=redundancy)
        drained = [DaemonClient(parse_address(server.address)) for server in servers]
        try:
            expected = work(rgpu, 20)
            there = rgpu.cuda.Device(2 if redundancy == 1 else 0)  # on the other server
            with there:
                far = rgpu.arange(1000) + 1
                far.get()

            def pause(step):
                if step == 5:
                    drained[0].drain()
                if step == (5 if order == "at once" else 12):
                    drained[1].drain()
                time.sleep(0.02)

            assert work(rgpu, 20, pause) == expected
            wait_until(lambda: not any(sessions(daemon) for daemon in drained), timeout=30)
            assert work(rgpu, 20) == expected
            with there:
                np.testing.assert_array_equal(far.get(), np.arange(1000) + 1)
            if redundancy == 2:
                wait_until(lambda: len(mirror().whole) == 2, timeout=30)
        finally:
            for daemon in drained:
                daemon.close()
            rgpu.close()


@pytest.mark.parametrize("redundancy", [1, 2])
def test_both_servers_drain_and_there_is_no_other(servers, redundancy):
    """What cannot move works until the deadline, and then says why it is over."""
    import rgpu

    rgpu.connect(*[server.address for server in servers], redundancy=redundancy)
    daemons = [DaemonClient(parse_address(server.address)) for server in servers]
    try:
        a = rgpu.arange(10)
        a.get()
        for daemon in daemons:
            daemon.drain(seconds=3.0)
        assert int((a + 1).sum()) == 55
        wait_until(lambda: not any(sessions(daemon) for daemon in daemons), timeout=30)
        with pytest.raises(SessionLost, match="drain"):
            while True:
                (a + 1).get()
    finally:
        for daemon in daemons:
            daemon.close()
        rgpu.close()


def mirrored(cp):
    """An array, its device's stream, and that with a mirror in it."""
    a = cp.arange(10.0)
    a.get()
    device = pool.get().device(0)
    return a, device.stream, device._mirrored(device.stream)


def test_a_question_from_before_is_asked_after(cp):
    """A thread has given its question a number and waits for the lock, which whoever moves the session has."""
    _, stream, both = mirrored(cp)
    number = next_reply()
    silver.move(both, both.halves[0])
    stream._queue(ops.Sync.encode(number))
    asking = threading.Thread(target=stream._awaited, args=(number,), daemon=True)
    asking.start()
    asking.join(30)
    assert not asking.is_alive()


def test_the_only_one_that_heard_a_question_is_killed(cp, monkeypatch):
    """Its state is elsewhere already, the answer that it owes is not: that is an error and no wait without an end."""
    a, _, both = mirrored(cp)
    source = both.halves[0]
    victim, sync, said = process_of(source), Half.sync, []

    def read():
        try:
            said.append(a.get())
        except SessionLost as error:
            said.append(error)

    reading = threading.Thread(target=read, daemon=True)

    def then_read(half):
        sync(half)
        if half is not source and not reading.ident:
            os.kill(victim, signal.SIGSTOP)
            sent = source.connection.progress[0]
            reading.start()
            wait_until(lambda: source.connection.progress[0] > sent)
            threading.Timer(0.5, os.kill, (victim, signal.SIGKILL)).start()

    monkeypatch.setattr(Half, "sync", then_read)
    try:
        silver.add(both, source)
    except SessionLost:
        pass
    reading.join(30)
    assert not reading.is_alive()
    assert isinstance(said[0], SessionLost)
