"""Clocks that jump, machines that stand still, and a host that has run out of everything: no session is lost for it."""

import contextlib
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import zmq

from rgpu import errors
from rgpu.client.control import DaemonClient
from rgpu.config import parse_address
from rgpu.link import curve, guests
from rgpu.server import keys
from tests.support.daemons import Daemon, Talk
from tests.support.servers import Server, free_port, program
from tests.support.waiting import wait_until

CLOCK = """
import itertools, time
real, steps = time.time, itertools.cycle((0.0, 3600.0, -3600.0))
shift = [0.0, 0.0]

def jumping():
    if time.monotonic() > shift[1]:
        shift[:] = next(steps), time.monotonic() + 0.3
    return real() + shift[0]

time.time = jumping
"""

WORK = """
import sys, time
import rgpu as cp
a, end, count = cp.zeros(100), time.monotonic() + float(sys.argv[1]), 0
print("ready", flush=True)
while time.monotonic() < end:
    a += 1
    count += 1
    if count % 50 == 0:
        assert float(a[0].get()) == count
        time.sleep(0.01)
print("end", flush=True)
"""


def test_the_time_of_day_may_jump(tmp_path):
    """T34: by an hour, forwards and back, three times a second, in daemon, workers and client. Leases with a time and
    grace run by the clock that does not jump."""
    (tmp_path / "sitecustomize.py").write_text(CLOCK)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    server = Server("cpu:1", "clock", "--grace", "1", "--idle-timeout", "30s", env={**os.environ, "PYTHONPATH": path})
    with server:
        done = program(WORK, server, arguments=("1.5",), PYTHONPATH=path, RGPU_MEMORY="16MiB", timeout=60)
        assert done.stdout == "ready\nend\n" and done.stderr == ""
        shown = program("-m", server, launcher=(), arguments=("rgpu.smi", "--json"), PYTHONPATH=path).stdout
        (seen,) = json.loads(shown)["servers"]
        assert 0 <= seen["uptime"] < 60


@pytest.mark.parametrize("waits", ["client", "server"])
def test_a_machine_that_stands_still(waits):
    """T34: daemon, workers and client are stopped for longer than grace, as a virtual machine is that is moved, and one
    side goes on a little later. Nobody takes the other's silence for an end that he could not have heard."""
    server = Daemon("--grace", "2")
    env = {**os.environ, "RGPU_SERVERS": str(server.address), "RGPU_MEMORY": "16MiB"}
    client = subprocess.Popen(
        [sys.executable, "-c", WORK, "5"], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert client.stdout.readline() == "ready\n"
        sides = [[client.pid], [server.process.pid, *server.workers()]]
        for pid in sum(sides, []):
            os.kill(pid, signal.SIGSTOP)
        time.sleep(3.5)
        for side in reversed(sides) if waits == "client" else sides:
            for pid in side:
                os.kill(pid, signal.SIGCONT)
            time.sleep(0.3)
        out, err = client.communicate(timeout=30)
        assert (out, err, client.returncode) == ("end\n", "", 0)
    finally:
        for pid in (client.pid, server.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        client.kill()
        client.wait(5)
        server.stop()


def test_a_machine_that_stands_still_before_its_client_has_come():
    """T34: the same, in the moment between a session's beginning and its first connection."""
    server, stopped = Daemon("--grace", "3"), []
    try:
        lease = server.client.attach(0)
        stopped += [server.process.pid, *server.workers()]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(4.5)
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
        talk = Talk(lease)
        talk.sync(30)
        talk.bye()
    finally:
        for pid in stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        server.stop()


def few_descriptors():
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))


def test_a_daemon_takes_the_descriptors_that_it_may_have():
    """T35: most systems allow a process 1,024 unless it asks for more, and strangers' connections count."""
    server = Server("cpu:1", "many", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 4096)))
    with server:
        limits = Path(f"/proc/{server.process.pid}/limits").read_text()
        assert re.search(r"Max open files +4096 +4096 ", limits), limits
        strangers = connections(parse_address(server.address), 300)
        assert program("import rgpu as cp; print(int(cp.arange(5).sum()))", server).stdout == "10\n"
        for stranger in strangers:
            stranger.close()


@pytest.mark.parametrize("keyed", [True, False])
def test_who_connects_most_makes_room(tmp_path, keyed):
    """One who has a key, or no key is asked for, opens more connections than the daemon can have, and keeps them:
    others come in, and who has a session keeps it."""
    options, token, other = (), None, None
    if keyed:
        keys.init(tmp_path / "keys")
        ring = keys.KeyRing(tmp_path / "keys")
        token, other = (ring.create(name, ())[1] for name in ("alice", "bob"))
        options = ("--keys", str(tmp_path / "keys"))
    room = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (192, 192))  # noqa: E731
    context = zmq.Context()
    with Server("cpu:1", "full", *options, preexec_fn=room) as server:
        address = parse_address(server.address)
        alice = DaemonClient(address, 10.0, token=token)
        lease = alice.attach(0)
        talk = Talk(lease)
        talk.sync(30)
        greedy = [context.socket(zmq.DEALER) for _ in range(200)]
        try:
            for sock in greedy:
                sock.linger, sock.reconnect_ivl = 0, 1000
                curve.as_client(sock, other)
                sock.connect(address.uri)
            descriptors = Path(f"/proc/{server.pid}/fd")
            wait_until(lambda: len(list(descriptors.iterdir())) > 130, timeout=10)
            for _ in range(3):
                wait_until(lambda: hello(address, token), timeout=15)
            assert len(list(descriptors.iterdir())) < 192
        finally:
            for sock in greedy:
                sock.close(0)
            context.term()
        talk.sync(10)
        talk.bye()
        wait_until(lambda: len(list(descriptors.iterdir())) < 60, timeout=10)
        alice.close()


def test_a_number_that_is_another_s_by_now():
    """libzmq tells of a descriptor, and when one looks it is a pipe to a worker: that stays open, and nobody's."""
    here, there = socket.socketpair()
    with here, there, socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        for number in (here.fileno(), listener.fileno(), os.open("/dev/null", os.O_RDONLY)):
            guests._hang_up(number, port)
            guests._hang_up(number, 0)
            assert guests._address(number, 0) is None
        os.close(number)
        assert guests._address(here.fileno(), port) is None
        here.sendall(b"x")
        assert there.recv(1) == b"x"
        with socket.create_connection(("127.0.0.1", port)) as stranger, listener.accept()[0] as accepted:
            assert guests._address(accepted.fileno(), port) == ("address", "127.0.0.1")
            guests._hang_up(accepted.fileno(), port)
            assert stranger.recv(1) == b""


def test_a_question_survives_connections_that_break():
    """They may, one after the other: the network's fault, or somebody else needed the room."""
    with Server("cpu:1", "full") as server:
        client = DaemonClient(parse_address(server.address), 10.0)
        request, breaks = client._link.request, iter((True, True, True))

        def broken(body, timeout=None):
            if next(breaks, False):
                client._link.close()
                raise errors.ServerUnavailable("it broke", "closed")
            return request(body, timeout)

        client._link.request = broken
        assert client.hello().name == "full"
        client.close()


def hello(address, token):
    client = DaemonClient(address, 2.0, token=token)
    try:
        return client.hello().name == "full"
    except errors.RgpuError:
        return False
    finally:
        client.close()


def connections(address, count):
    made = []
    with contextlib.suppress(OSError):
        for _ in range(count):
            made.append(socket.create_connection((address.host, address.port), 2))
    return made


def test_no_descriptors_are_left():
    """T35: a daemon that may have 64 of them, and strangers who take all. Who has a session keeps it; when they have
    gone others get one."""
    server = Server("cpu:1", "few", preexec_fn=few_descriptors)
    with server:
        working = subprocess.Popen(
            [sys.executable, "-c", WORK, "3"],
            env={**os.environ, "RGPU_SERVERS": server.address},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert working.stdout.readline() == "ready\n"
            strangers = connections(parse_address(server.address), 100)
            begin = time.monotonic()
            refused = program("import rgpu as cp; cp.ones(3).get()", server, check=False, timeout=40)
            assert time.monotonic() - begin < 35
            assert refused.returncode == 0 or "rgpu" in refused.stderr
            for sock in strangers:
                sock.close()
            assert working.communicate(timeout=30) == ("end\n", "")
            wait_until(lambda: server.process.poll() is None and attaches(server), timeout=15)
        finally:
            working.kill()
            working.wait(5)


def attaches(server):
    daemon = DaemonClient(parse_address(server.address), 2.0)
    try:
        daemon.release(daemon.attach(0).session)
        return True
    except errors.RgpuError:
        return False
    finally:
        daemon.close()


def test_no_ports_are_left():
    """T35: as many ports for workers as there are workers. One more client is refused, in words; the others live."""
    port = free_port()
    options = ("--worker-ports", f"{port}-{port}", "--prestart", "0", "--links", "tcp")
    with Server("cpu:1", "narrow", *options) as server:
        first = DaemonClient(parse_address(server.address))
        lease = first.attach(0)
        talk = Talk(lease)
        talk.sync()
        second = DaemonClient(parse_address(server.address))
        with pytest.raises(errors.RgpuError, match="cannot start a worker|no worker of narrow"):
            second.attach(0)
        talk.sync()
        talk.bye()
        first.release(lease.session)
        first.close()
        second.close()


def test_no_room_for_the_log():
    """T35: the disk that the log is on is full."""
    with open("/dev/full", "w") as full, Server("cpu:1", "mute", "--log-level", "debug", stderr=full) as server:
        done = program("import rgpu as cp; print(cp.ones(3).sum())", server)
        assert done.stdout == "3.0\n" and server.process.poll() is None
