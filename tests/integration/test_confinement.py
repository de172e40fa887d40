"""What a worker is kept from: secrets, privileges, other people's files, what others left in memory."""

import os
import platform
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rgpu.errors import ConfigError
from rgpu.server import confine
from tests.support.daemons import Daemon
from tests.support.leaks import children, command_line
from tests.support.servers import gone, program
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def daemon():
    os.environ["AWS_SECRET_ACCESS_KEY"] = "open sesame"
    try:
        running = Daemon()
    finally:
        del os.environ["AWS_SECRET_ACCESS_KEY"]
    yield running
    running.stop()


def status(pid):
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def test_a_worker_has_no_secrets_and_gets_no_privileges(daemon):
    wait_until(daemon.workers)
    (worker, *_) = daemon.workers()
    wait_until(lambda: status(worker)["NoNewPrivs"] == "1")
    wait_until(lambda: status(worker)["Seccomp"] == "2")
    limits = Path(f"/proc/{worker}/limits").read_text()
    (core,) = [line.split()[4:6] for line in limits.splitlines() if line.startswith("Max core")]
    assert core == ["0", "0"]
    for name in ("environ", "cmdline"):
        try:
            assert b"sesame" not in Path(f"/proc/{worker}/{name}").read_bytes()
        except PermissionError:
            assert os.getuid() != 0  # not dumpable: its own user may not look either


def test_another_session_finds_nothing_in_memory(daemon):
    """The pattern that a session leaves in all of its memory is not in what the next one gets."""
    source = "import rgpu as cp; a = cp.full(8 << 20, 0x5EC2E7, 'i8'); print(int(a.sum()))"
    program(source, str(daemon.address))
    found = program("import rgpu as cp; print(int((cp.empty(8 << 20, 'i8') == 0x5EC2E7).sum()))", str(daemon.address))
    assert found.stdout == "0\n"


def test_what_of_the_environment_is_inherited():
    given = {
        "PATH": "/bin", "PYTHONPATH": "lib", "LC_ALL": "C", "CUDA_PATH": "/c", "RGPU_LOG_LEVEL": "debug",
        "RGPU_TOKEN": "t", "RGPU_KEYS": "k", "SSH_AUTH_SOCK": "s", "GITHUB_TOKEN": "x", "LD_PRELOAD": "evil.so",
    }  # fmt: skip
    kept = confine.environment(given)
    assert set(kept) == {"PATH", "PYTHONPATH", "LC_ALL", "CUDA_PATH", "RGPU_LOG_LEVEL"}
    assert kept["PYTHONPATH"] == os.path.abspath("lib")


FORBIDDEN = """
import ctypes, os, subprocess, sys, threading
from rgpu.server import confine
over = threading.Event()
said = []
libc = ctypes.CDLL(None, use_errno=True)

def attempt(*call):
    if libc.syscall(*call) == -1:
        return ctypes.get_errno()

def early():
    over.wait(10)
    said.append(attempt(272, 0x10000000))  # unshare, in a thread that was there before

thread = threading.Thread(target=early)
thread.start()
confine.confine(programs=sys.argv[1] == "programs")
over.set()
thread.join()
for call in ((101, 0, 0, 0, 0), (321, 0, 0, 0), (56, 0x10000000 | 17, 0, 0, 0, 0)):  # ptrace, bpf, clone
    said.append(attempt(*call))
later = threading.Thread(target=lambda: said.append("thread"))
later.start()
later.join()
try:
    said.append(subprocess.run(["true"]).returncode)
except PermissionError:
    said.append("no program")
print(*said)
"""


@pytest.mark.parametrize(("programs", "end"), [("programs", "0"), ("none", "no program")])
def test_calls_that_no_worker_needs_are_refused(programs, end):
    """In every thread, those that were there already as well; EPERM is 1."""
    if platform.machine() != "x86_64":
        pytest.skip("the numbers of system calls here are those of x86-64")
    done = subprocess.run([sys.executable, "-c", FORBIDDEN, programs], capture_output=True, text=True, timeout=60)
    assert done.stdout == f"1 1 1 1 thread {end}\n", done.stderr


def test_memory_beyond_the_lease_is_refused_by_the_system():
    """A worker under its limit gets MemoryError and lives on."""
    source = (
        "import numpy as np; from rgpu.server import confine; confine.confine_memory(64 << 20)\n"
        "try: np.ones(3 << 30, np.uint8)\n"
        "except MemoryError: print('refused', np.ones(8 << 20).sum())"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60)
    assert done.stdout == "refused 8388608.0\n", done.stderr


@pytest.mark.parametrize("wrong", ["no-such-user-here", "0", "5-4", "0-3"])
def test_a_user_that_cannot_be_is_refused(wrong):
    with pytest.raises(ConfigError, match="--worker-user"):
        confine.Quarters(wrong)


def test_each_person_has_a_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    quarters = confine.Quarters()
    first, second = quarters.folder("alice", None), quarters.folder("bob", None)
    assert first != second and quarters.folder("", None) == ""
    assert stat.S_IMODE(os.stat(first).st_mode) == 0o700


def _others_can_run_this():
    if os.getuid():
        return False
    command = [sys.executable, "-c", "import rgpu.server.worker, numpy, zmq, msgpack"]
    try:
        done = subprocess.run(command, user=65534, group=65534, extra_groups=[], cwd="/", capture_output=True)
    except PermissionError:
        return False
    return done.returncode == 0


def test_each_worker_is_a_user_of_its_own():
    if not _others_can_run_this():
        pytest.skip("needs root, and an interpreter that other users can read")
    server = Daemon("--worker-user", "61000-61002", "--prestart", "1")
    try:
        lease = server.client.attach(0)
        wait_until(lambda: len(server.workers()) == 2)
        users = {status(pid)["Uid"].split()[0] for pid in server.workers()}
        assert len(users) == 2 and users <= {"61000", "61001", "61002"}
        assert all(set(status(pid)["Groups"].split()) <= {""} for pid in server.workers())
        server.client.release(lease.session)
        source = "import rgpu as cp; print(float((cp.arange(10.0) + 1).sum()))"
        assert program(source, str(server.address)).stdout == "55.0\n"
    finally:
        server.stop()


@pytest.mark.skipif(os.getuid() != 0, reason="needs root")
def test_a_folder_is_its_persons_while_a_worker_of_theirs_runs(tmp_path, monkeypatch):
    """Another person's worker with the same user id must not change the kernels in it."""
    monkeypatch.setattr(confine, "CACHES", tmp_path)
    quarters = confine.Quarters("61020-61021")
    first = quarters.move_in()["user"]
    folder = quarters.folder("alice", first)
    assert os.stat(folder).st_uid == first and stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    other = quarters.move_in()["user"]
    quarters.move_out(None, other)
    assert os.stat(folder).st_uid == first  # somebody else's end
    quarters.move_out(None, first)
    assert os.stat(folder).st_uid == 0
    assert quarters.move_in()["user"] == first
    assert os.stat(quarters.folder("bob", first)).st_uid == first and os.stat(folder).st_uid == 0
    quarters.move_out(None, first)


BOMB = r"""
import rgpu as cp
kernel = cp.RawKernel(r'''
#include <unistd.h>
extern "C" __global__ void bomb(int *made) {
    for (int i = 0; i < 3000; i++) {
        int child = fork();
        if (child < 0) break;
        if (!child) for (;;) pause();
        made[0]++;
    }
}''', "bomb")
made = cp.zeros(1, "i4")
kernel((1,), (1,), (made,))
print(int(made[0]), flush=True)
import sys; sys.stdin.read()
"""


def test_a_fork_bomb_is_one_sessions_own():
    """A tenant's native code starts processes without end: others go on, and all of them end with its session."""
    if not _others_can_run_this():
        pytest.skip("needs root, and an interpreter that other users can read")

    def theirs():
        return [pid for pid in running() if _user_of(pid) in range(61010, 61013)]

    server = Daemon("--worker-user", "61010-61012", "--prestart", "1", "--allow-native-kernels")
    environment = {**os.environ, "RGPU_SERVERS": str(server.address)}
    attacker = subprocess.Popen(
        [sys.executable, "-c", BOMB], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    try:
        with attacker:
            made = int(attacker.stdout.readline())
            assert 0 < made < confine._PROCESSES
            source = "import rgpu as cp; print(float((cp.arange(10.0) + 1).sum()))"
            assert program(source, str(server.address)).stdout == "55.0\n"
            assert len(theirs()) > made
            attacker.stdin.close()
        wait_until(lambda: len(theirs()) <= len(server.workers()), timeout=60)
        assert program(source, str(server.address)).stdout == "55.0\n"
    finally:
        server.stop()


FORK = r"""
import rgpu as cp
kernel = cp.RawKernel(r'''
#include <unistd.h>
extern "C" __global__ void leave(int *child) {
    int made = fork();
    if (!made) for (;;) pause();
    child[0] = made;
}''', "leave")
child = cp.zeros(1, "i4")
kernel((1,), (1,), (child,))
print(int(child[0]))
"""


def test_a_child_of_native_code_keeps_no_lease():
    """It has its worker's channel to the daemon, which hears no end of it: the end of the process counts."""
    server = Daemon("--prestart", "0", "--allow-native-kernels")
    try:
        child = int(program(FORK, str(server.address)).stdout)
        assert child > 0
        wait_until(lambda: gone(child) and not server.sessions(), timeout=30)
        source = "import rgpu as cp; print(float((cp.arange(10.0) + 1).sum()))"
        assert program(source, str(server.address)).stdout == "55.0\n"
    finally:
        server.stop()


def _user_of(pid):
    """-1: it has ended (a zombie has)."""
    try:
        told = status(pid)
    except OSError:
        return -1
    return -1 if told["State"].startswith("Z") else int(told["Uid"].split()[0])


def running():
    return [entry.name for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def test_what_a_worker_started_ends_with_it(tmp_path):
    """A child that a session's native code leaves behind would run on with the worker's user and cores."""
    script = tmp_path / "worker"
    script.write_text(f'#!/bin/sh\nsleep 71.25 &\nexec {sys.executable} -P -m rgpu.server.worker "$@"\n')
    script.chmod(0o755)
    source = (
        "import sys, time, os, rgpu.config as c; from rgpu.server.workers import WorkerPool\n"
        "class Nobody:\n"
        "    def watch(self, *_): pass\n"
        "    unwatch = worker_ready = worker_told = worker_gone = watch\n"
        "pool = WorkerPool(Nobody(), Nobody(), bind='127.0.0.1', spares={'cpu': 1}, threads=1, command=sys.argv[1:])\n"
        "pool.tick(); time.sleep(1.0); pool.close(); print('closed', flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", source, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout.readline() == "closed\n"
        # A kill is a message: on a busy machine the process ends a little later.
        wait_until(lambda: not any(command_line(pid) == "sleep 71.25" for pid in running()))
        process.stdin.close()
    assert not np.any([command_line(pid).startswith("sleep 71") for pid in children()])


OWN = """
import json, os, socket, sys
import rgpu as cp
from rgpu import config
from rgpu.client import pool
from rgpu.client.control import DaemonClient
from rgpu.errors import RgpuError
from dataclasses import replace

assert cp.arange(10).sum().get() == 45
daemon = pool.get().device(0).daemon
assert daemon.token and daemon.address.own
(path,) = config.runtime_directory().glob("embedded-*.json")
os.environ["XDG_RUNTIME_DIR"] = "/nonexistent"  # somebody who may not look there
os.environ["TMPDIR"] = sys.argv[1]
stranger = DaemonClient(daemon.address.but(own=False), 2.0)
assert stranger.token is None and DaemonClient(daemon.address).token is None
for ask in (stranger.hello, stranger.attach, stranger.snapshot):
    try:
        ask()
        print("let in")
    except RgpuError as error:
        print(type(error).__name__)
print(oct(path.stat().st_mode & 0o777), oct(path.parent.stat().st_mode & 0o777))
print(pool.get().device(0).stream.connection.link.kind)
"""


def test_a_server_of_a_programs_own_is_closed_to_others(tmp_path):
    """Loopback is everybody's on a host that people share: they reach its port, and have no key."""
    tmp_path.chmod(0o700)
    # No link chosen, the best.
    best = "tcp" if os.environ.get("RGPU_PURE") else "shm"
    done = program(OWN, XDG_RUNTIME_DIR=str(tmp_path), arguments=(str(tmp_path),), RGPU_LINK="", RGPU_LINKS="")
    assert done.stdout.split() == [*["AuthenticationError"] * 3, "0o600", "0o700", best]
