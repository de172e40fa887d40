"""rgpu list, health, netperf and web: what they say of servers that are there, and of those that are not."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest

from rgpu import errors
from rgpu.commands import health, rawtcp, sharing
from rgpu.wire.version import VERSION, fingerprint
from tests.support.daemons import Daemon
from tests.support.servers import free_port
from tests.support.waiting import wait_until

COMMAND = [sys.executable, "-m", "rgpu.cli"]


@pytest.fixture(scope="module")
def daemon():
    with Daemon("--devices", "cpu:2", "--name", "gpu1", "--device-memory", "1G") as started:
        yield started


def rgpu(*arguments, servers="", timeout=60):
    return subprocess.run(
        [*COMMAND, *arguments],
        env=os.environ | {"RGPU_SERVERS": str(servers)},
        capture_output=True,
        text=True,
        timeout=timeout,
    )


# Every error says which it is


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.QuotaExceeded("no"), 75),
        (errors.NoSuchDevice("none"), 2),
        (errors.AuthenticationError("who?"), 77),
        (errors.VersionMismatch("old"), 76),
        (errors.ServerUnavailable("gone"), 69),
    ],
)
def test_each_has_an_exit_code(error, code, capsys):
    def fail():
        raise error

    assert sharing.saying(fail) == code
    assert capsys.readouterr().err == f"rgpu: {error}\n"


def test_what_went_wrong_is_told_apart(daemon):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        servers = {
            "name": "nosuchhost.invalid:1",
            "refused": f"127.0.0.1:{free_port()}",
            "no-answer": f"127.0.0.1:{silent.getsockname()[1]}",
        }
        os.environ["RGPU_CONNECT_TIMEOUT"] = "5"  # longer than ZeroMQ's own patience: its end is no answer either
        try:
            done = rgpu("list", "--json", servers=",".join([*servers.values(), str(daemon.address)]))
        finally:
            del os.environ["RGPU_CONNECT_TIMEOUT"]
    assert done.returncode == 1
    *dead, alive = json.loads(done.stdout)["servers"]
    assert {server["reason"]: server["address"] for server in dead} == servers
    assert [device["index"] for device in alive["devices"]] == [0, 1]
    assert len(done.stderr.splitlines()) == 3
    smi = subprocess.run(
        [sys.executable, "-m", "rgpu.smi", "--json"],
        env=os.environ | {"RGPU_SERVERS": servers["refused"]},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert json.loads(smi.stdout)["servers"][0]["reason"] == "refused"


def test_full_and_no_such_device():
    from rgpu.errors import NoSuchDevice, ServerBusy

    with Daemon("--sessions", "1") as one:
        with pytest.raises(NoSuchDevice) as missing:
            one.client.attach(7)
        lease = one.client.attach(0)
        with pytest.raises(ServerBusy) as full:
            one.client.attach(0)
        one.client.release(lease.session)
    assert (missing.value.reason, full.value.reason) == ("no-device", "full")


# list


def test_chosen_columns(daemon):
    done = rgpu("list", "--fields", "ordinal,server_name,memory_free,sessions,driver", servers=daemon.address)
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["ORDINAL", "SERVER_NAME", "MEMORY_FREE", "SESSIONS", "DRIVER"],
        ["0", "gpu1", "1024", "MiB", "0", "-"],
        ["1", "gpu1", "1024", "MiB", "0", "-"],
    ]
    wrong = rgpu("list", "--fields", "nonsense", servers=daemon.address)
    assert wrong.returncode == 2 and "'nonsense' is no field; there are ordinal" in wrong.stderr


# health


def test_health(daemon):
    done = rgpu("health", servers=daemon.address)
    assert done.returncode == 0, done.stdout
    assert f"server {daemon.address}" in done.stdout
    assert "OK    gpu1: rgpu " in done.stdout and "0 FAIL" in done.stdout
    dead = rgpu("health", "--json", "-q", servers=f"127.0.0.1:{free_port()}")
    assert dead.returncode == 1
    (failure,) = [one for one in json.loads(dead.stdout)["findings"] if one["state"] == "FAIL"]
    assert "refused the connection" in failure["what"] and failure["remedy"].startswith("start one")


SERVER = {
    "address": "gpu1:47800",
    "name": "gpu1",
    "version": VERSION,
    "fingerprint": fingerprint(),
    "reachable": True,
    "rtt": 0.0001,
    "devices": [{"index": 0, "name": "NVIDIA H200", "kind": "cuda", "memory_total": 1 << 30, "sessions": []}],
    "facts": {"mps": True, "interfaces": [], "open_files": 65536},
}
FAST = {"name": "eth0", "mtu": 1500, "speed": 100_000}


def facts(**more):
    return {"facts": SERVER["facts"] | more}


def device(**more):
    return {"devices": [SERVER["devices"][0] | more]}


@pytest.mark.parametrize(
    ("change", "state", "words"),
    [
        ({}, "OK", "MPS runs"),
        ({"version": "0.0.1"}, "FAIL", "install the same version on both"),
        ({"fingerprint": "other"}, "FAIL", "install the same version on both"),
        ({"rtt": 0.05}, "WARN", "read less often"),
        ({"devices": []}, "FAIL", "it has no devices"),
        ({"draining": True}, "WARN", "no new session is taken"),
        ({}, "WARN", "rgpu token create for each person"),
        ({"address": "127.0.0.1:47800"}, "OK", "only programs of its own host"),
        (facts(keys=True), "OK", "ours fit"),
        (facts(time=0.0), "WARN", "let both hosts use NTP"),
        (facts(mps=False), "WARN", "nvidia-cuda-mps-control -d"),
        (facts(open_files=256), "WARN", "ulimit -n"),
        (facts(interfaces=[FAST]), "WARN", "ip link set eth0 mtu 9000"),
        (facts(interfaces=[FAST | {"mtu": 9000}]), "OK", "eth0: MTU 9000, 100000 Mb/s"),
        (facts(rdma=["mlx5_0"], locked_memory=65536), "WARN", "LimitMEMLOCK=infinity"),
        (facts(rdma=["mlx5_0"], locked_memory=None), "OK", "RDMA: mlx5_0"),
        (facts(shared_memory_free=1 << 20), "WARN", "--shm-size"),
        (device(reading_age=60.0), "FAIL", "dmesg | grep -i xid"),
        (device(ecc_uncorrected_volatile=2), "WARN", "2 uncorrected memory errors"),
        (device(clocks_event_reasons=0x40), "WARN", "look at its cooling"),
    ],
)
def test_what_is_found_on_a_server(change, state, words):
    found = list(health.check_server(SERVER | change))
    (hit,) = [one for one in found if words in f"{one.what} {one.remedy}"]
    assert hit.state == state
    worse = {"OK": set(), "WARN": {"FAIL"}, "FAIL": set()}[state]
    assert not worse & {one.state for one in found}


# netperf


def test_netperf(daemon):
    short = ("--seconds", "0.05", "--size", "1M")
    done = rgpu("netperf", "--json", *short, servers=daemon.address)
    assert done.returncode == 0, done.stderr
    (server,) = json.loads(done.stdout)["servers"]
    for way in ("rgpu", "tcp"):
        assert 0 < server[way]["rtt"] < 10
        assert min(server[way][key] for key in ("up", "down")) > 1e5
    assert server["rgpu"]["operations"] > 100 and server["link"]
    wait_until(lambda: not daemon.sessions())  # the server hears of the end a little after the program has ended
    dead = rgpu("netperf", *short, servers=f"127.0.0.1:{free_port()}")
    assert dead.returncode == 1 and "refused the connection" in dead.stdout


def test_plain_tcp_between_two_hosts():
    peer = subprocess.Popen(
        [sys.executable, "-m", "rgpu.commands.rawtcp", "0"], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
    )
    try:
        port = int(peer.stdout.readline())
        found = rawtcp.measure("127.0.0.1", port, 0.05)
        assert 0 < found["rtt"] < 5 and min(found["up"], found["down"]) > 1e5
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")  # means nothing to it, and hurts nobody
        assert rawtcp.measure("127.0.0.1", port, 0.01)["rtt"] > 0
    finally:
        peer.kill()
        peer.communicate()


# web


def test_the_page_of_a_pool(daemon):
    process = subprocess.Popen(
        [*COMMAND, "web", "--http", "0"],
        env=os.environ | {"RGPU_SERVERS": f"{daemon.address},127.0.0.1:{free_port()}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        url = process.stdout.readline().split()[-1]

        def servers():
            with urllib.request.urlopen(url + "v1/picture", timeout=10) as answer:
                return json.load(answer)["servers"]

        alive, dead = wait_until(servers)
        assert [gpu["pool_index"] for gpu in alive["devices"]] == [0, 1]
        assert (dead["reachable"], dead["reason"]) == (False, "refused")
        with urllib.request.urlopen(url + "metrics", timeout=10) as answer:
            assert f'rgpu_server_up{{server="{dead["address"]}"}} 0'.encode() in answer.read()
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0
        assert process.stderr.read() == ""
    finally:
        process.kill()
        process.communicate()
