"""rgpu-smi while sessions come and go, and while a server is dead."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from rgpu.client.control import DaemonClient
from rgpu.config import parse_address
from tests.support.servers import Server
from tests.support.waiting import wait_until

CLIENT = "import sys, rgpu as cp\na = cp.ones(1 << 18); a.get(); print('up', flush=True); sys.stdin.read()"


@pytest.fixture
def servers():
    with Server("cpu:2", "one", "--grace", "1") as one, Server("cpu:1", "two", "--grace", "1") as two:
        yield one, two


def smi(*addresses):
    env = os.environ | {"RGPU_SERVERS": ",".join(addresses)}
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "rgpu.smi", "--json"], env=env, capture_output=True, text=True, timeout=20
    )
    return json.loads(done.stdout), time.monotonic() - begin


def start(server):
    env = os.environ | {"RGPU_SERVERS": server.address}
    return subprocess.Popen(
        [sys.executable, "-c", CLIENT], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )


def end(client, politely=False):
    if politely:
        client.communicate(timeout=10)
    client.kill()
    client.communicate(timeout=10)


def test_snapshots_add_up_while_sessions_come_and_go(servers):
    daemon = DaemonClient(parse_address(servers[0].address))
    running = []
    try:
        for number in range(20):
            running.append(start(servers[0]))
            assert running[-1].stdout.readline() == b"up\n"
            if number % 2:
                end(running.pop(0), politely=number % 4 == 3)
            for device in daemon.snapshot()["devices"]:
                used = sum(session["memory_used"] for session in device["sessions"])
                assert used <= device["memory_used"] <= device["memory_total"]
                assert len({session["worker_pid"] for session in device["sessions"]}) == len(
                    device["sessions"]
                )
            alive = {client.pid for client in running}
            seen = {s["pid"] for device in daemon.snapshot()["devices"] for s in device["sessions"]}
            assert alive <= seen
        while running:
            end(running.pop())
        wait_until(lambda: not any(d["sessions"] for d in daemon.snapshot()["devices"]), timeout=10)
    finally:
        for client in running:
            end(client)
        daemon.close()


def test_a_dead_server_is_a_row_not_a_hang(servers):
    one, two = servers
    picture, _ = smi(one.address, two.address)
    assert len(picture["servers"]) == 2
    os.kill(two.pid, signal.SIGSTOP)  # it takes connections and says nothing
    try:
        picture, took = smi(one.address, two.address)
    finally:
        os.kill(two.pid, signal.SIGCONT)
    assert took < 5
    assert [server["reachable"] for server in picture["servers"]] == [True, False]
    two.kill()
    picture, took = smi(one.address, two.address)
    assert len(picture["servers"]) == 2 and took < 3
