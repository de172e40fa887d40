"""What a session can leave on a server's disks and in its log, and where its native code may write at all."""

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rgpu.server import confine, disk, keys, landlock, readable
from rgpu.server.host import compilers
from rgpu.server.kernels_cpu import build
from rgpu.server.output import BURST, RATE
from rgpu.wire.codec import pack
from tests.integration.test_keys import Protected
from tests.support.daemons import Daemon, Talk
from tests.support.servers import Server, program
from tests.support.waiting import wait_until

CONTROL = "import rgpu as cp; print(float((cp.arange(10.0) + 1).sum()))"


def control(*servers, **settings):
    assert program(CONTROL, *servers, **settings).stdout == "55.0\n"


needs_landlock = pytest.mark.skipif(landlock.version() < 3, reason="this kernel has no Landlock that knows truncate()")

WRITER = """
import os, signal, subprocess, sys
from rgpu.server import confine
mine, other, victim = sys.argv[1:]
confine.confine(write=[mine])

def attempt(what):
    try:
        what()
        return "done"
    except PermissionError:
        return "refused"

said = [
    attempt(lambda: open(f"{mine}/new", "w").write("x")),
    attempt(lambda: os.rename(f"{mine}/new", f"{mine}/newer")),
    attempt(lambda: os.truncate(f"{mine}/newer", 0)),
    attempt(lambda: os.unlink(f"{mine}/newer")),
    attempt(lambda: open("/dev/null", "w").write("x")),
    attempt(lambda: open(f"{other}/here").read()),
    attempt(lambda: open(f"{other}/new", "w")),
    attempt(lambda: open(f"{other}/here", "a")),
    attempt(lambda: os.truncate(f"{other}/here", 0)),
    attempt(lambda: os.unlink(f"{other}/here")),
    attempt(lambda: os.mkdir("/dev/shm/rgpu-test-left")),
    attempt(lambda: os.kill(int(victim), signal.SIGTERM)),
    subprocess.run(["touch", f"{other}/new"], stderr=subprocess.DEVNULL).returncode,
]
print(*said)
"""


@needs_landlock
def test_files_are_written_in_ones_own_folder_only(tmp_path):
    mine, other = tmp_path / "mine", tmp_path / "other"
    mine.mkdir()
    other.mkdir()
    (other / "here").write_text("as it was")
    with subprocess.Popen(["sleep", "60"]) as victim:
        done = subprocess.run(
            [sys.executable, "-c", WRITER, mine, other, str(victim.pid)], capture_output=True, text=True, timeout=60
        )
        victim.kill()
    *said, ended, touched = done.stdout.split()
    assert said == ["done"] * 6 + ["refused"] * 5, done.stderr
    assert ended == ("refused" if landlock.version() >= 6 else "done") and touched == "1"
    assert (other / "here").read_text() == "as it was" and not (other / "new").exists()


REACH = r"""
import sys
import rgpu as cp
kernel = cp.RawKernel(r'''
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string>
#include <sys/resource.h>
#include <unistd.h>
static int made(std::string path) { return open(path.c_str(), O_CREAT | O_WRONLY | O_EXCL, 0600) >= 0; }
extern "C" __global__ void reach(long *said) {
    std::string home = getenv("HOME");
    said[0] = made(home + "/mine");
    said[1] = made(home + "/../theirs") + made("FOLDER/keys/theirs") + made("/tmp/rgpu-test-left")
        + made("/dev/shm/rgpu-test-left");
    said[2] = made("FOLDER/keys/clients/theirs.toml");
    said[3] = kill(getppid(), SIGTERM) == 0;
    struct rlimit files;
    getrlimit(RLIMIT_FSIZE, &files);
    said[4] = files.rlim_cur;
}'''.replace("FOLDER", sys.argv[1]), "reach")
said = cp.zeros(5, "i8")
kernel((1,), (1,), (said,))
print(*said.get())
"""


@needs_landlock
def test_native_code_under_keys_reaches_its_persons_folder_only(tmp_path, monkeypatch):
    """Without a range of user ids it runs as the daemon's own user, and could add itself to the list of clients."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # Where ucx is offered, /dev/shm is written by who shares memory through it.
    guarded = Protected(tmp_path, "--allow-native-kernels", "--links", "tcp")
    try:
        person, token = guarded.token("alice")
        where = {"RGPU_SERVERS": "", "RGPU_TOKEN": token.path, "RGPU_LINK": "tcp"}
        done = program(REACH, arguments=(str(tmp_path),), **where)
        mine, elsewhere, listed, ended, largest = map(int, done.stdout.split())
        assert (mine, elsewhere, listed) == (1, 0, 0)
        assert largest == confine._FILE_BYTES
        assert not ended or landlock.version() < 6
        (folder,) = (tmp_path / "cache/rgpu/people").iterdir()
        assert folder.name == keys.key_id(person.public_key) and (folder / "mine").exists()
        control(**where)
    finally:
        guarded.server.stop()


READER = r"""
import sys
import rgpu as cp
kernel = cp.RawKernel(r'''
#include <fcntl.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string>
#include <sys/syscall.h>
#include <unistd.h>
static int seen(std::string path) {
    int file = open(path.c_str(), O_RDONLY);
    char byte;
    int got = file >= 0 && read(file, &byte, 1) == 1;
    if (file >= 0) close(file);
    return got;
}
extern "C" __global__ void look(long *said) {
    std::string daemon = "/proc/" + std::to_string(getppid());
    said[0] = seen("FOLDER/keys/server.key");
    said[1] = seen("FOLDER/PERSON.rgpu");
    said[2] = opendir("FOLDER/keys/clients") != nullptr;
    said[3] = seen("FOLDER/somebodys") + seen("/etc/shadow") + seen("/dev/mem") + seen("/dev/kmsg");
    said[4] = seen(daemon + "/environ") + seen(daemon + "/mem") + seen(daemon + "/maps") + seen("/proc/kcore");
    said[5] = seen(daemon + "/root/FOLDER/keys/server.key") + seen(daemon + "/cwd/pyproject.toml");
    said[6] = seen("/proc/self/status") + seen("/dev/urandom") + seen("/etc/hosts") + seen("/proc/cpuinfo");
    std::string home = getenv("HOME"), command = "cat FOLDER/keys/server.key > " + home + "/stolen 2> /dev/null";
    said[7] = system(command.c_str());
}'''.replace("FOLDER", sys.argv[1]).replace("PERSON", sys.argv[2]), "look")
said = cp.zeros(8, "i8")
kernel((1,), (1,), (said,))
print(*said.get())
"""


@needs_landlock
def test_native_code_under_keys_reads_no_secrets(tmp_path, monkeypatch):
    """It runs as the user whose keys, tokens and files these are, and may read what compilers and Python need."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "somebodys").write_text("secret")
    guarded = Protected(tmp_path, "--allow-native-kernels")
    try:
        person, token = guarded.token("alice")
        environment = {"RGPU_SERVERS": "", "RGPU_TOKEN": token.path}
        said = program(READER, **environment, arguments=(str(tmp_path), person.id)).stdout.split()
        assert said[:6] == ["0"] * 6 and said[6] == "4" and said[7] != "0"
        control(**environment)
    finally:
        guarded.server.stop()


@needs_landlock
def test_an_operator_lets_workers_read_more(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "somebodys").write_text("given")
    guarded = Protected(tmp_path, "--allow-native-kernels", "--readable", str(tmp_path))
    try:
        person, token = guarded.token("alice")
        environment = {"RGPU_SERVERS": "", "RGPU_TOKEN": token.path}
        said = program(READER, **environment, arguments=(str(tmp_path), person.id)).stdout.split()
        assert said[:4] == ["0", "1", "0", "1"]  # the server's own keys are not among it
    finally:
        guarded.server.stop()


FILLER = r"""
import sys
import rgpu as cp
kernel = cp.RawKernel(r'''
#include <fcntl.h>
#include <stdlib.h>
#include <string>
#include <sys/stat.h>
#include <unistd.h>
extern "C" __global__ void fill(long *said) {
    for (std::string place : {std::string(getenv("HOME")), std::string("SPILL/") + PERSON})
        for (int i = 0; i < 3; i++) {
            int file = open((place + "/" + std::to_string(i)).c_str(), O_CREAT | O_WRONLY, 0600);
            said[0] += file >= 0 && !posix_fallocate(file, 0, 100 << 20);
        }
    said[1] = chmod("SPILL", 0777);
}'''.replace("SPILL", sys.argv[1]).replace("PERSON", f'"{sys.argv[2]}"'), "fill")
said = cp.zeros(2, "i8")
kernel((1,), (1,), (said,))
print(*said.get(), flush=True)
try:
    while True:
        said.get()
except cp.errors.WorkerLost as error:
    print(error)
"""


@needs_landlock
def test_a_persons_files_have_a_bound(tmp_path, monkeypatch):
    """Native code fills its folders: its sessions end and say why, the folders are emptied, others notice nothing."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    spill = tmp_path / "spill"
    spill.mkdir(mode=0o700)
    options = ("--allow-native-kernels", "--oversubscribe", "2", "--spill-memory", "1MiB")
    guarded = Protected(tmp_path, *options, "--spill-directory", str(spill), "--disk-per-person", "250MiB")
    try:
        alice, token = guarded.token("alice")
        _, other = guarded.token("bob")
        name = keys.key_id(alice.public_key)
        done = program(FILLER, RGPU_SERVERS="", RGPU_TOKEN=token.path, arguments=(str(spill), name))
        first, why = done.stdout.splitlines()[:2]
        assert first == "6 -1"
        assert "250 MiB" in why and "--disk-per-person" in why
        control(RGPU_SERVERS="", RGPU_TOKEN=other.path)
        wait_until(lambda: not [*(tmp_path / "cache/rgpu/people" / name).iterdir(), *(spill / name).iterdir()])
        control(RGPU_SERVERS="", RGPU_TOKEN=token.path)
        assert stat.S_IMODE(spill.stat().st_mode) == 0o700
    finally:
        guarded.server.stop()


def test_what_a_folder_takes(tmp_path):
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/large").write_bytes(bytes(1 << 20))
    (tmp_path / "a/b/small").write_bytes(b"x")
    (tmp_path / "a/elsewhere").symlink_to("/usr")
    assert disk.taken(str(tmp_path), 1 << 30) == (1 << 20) + 4 * disk.SMALLEST
    assert disk.taken(str(tmp_path), 1 << 19) > 1 << 19
    assert disk.taken(str(tmp_path / "none"), 1) == 0
    here = os.getcwd()
    try:
        os.chdir(tmp_path)
        for _ in range(30):
            os.mkdir("d" * 200)
            os.chdir("d" * 200)
    finally:
        os.chdir(here)
    assert disk.taken(str(tmp_path), 1 << 30) > 1 << 30  # longer than names may be: nobody can look there
    disk.empty(str(tmp_path))
    assert not list(tmp_path.iterdir()) and os.path.isdir("/usr/bin")


def test_a_folder_that_is_full_is_emptied_when_nobody_is_left_in_it(tmp_path):
    full, passing = tmp_path / "full", tmp_path / "passing"
    for place in (full, passing):
        place.mkdir()
        (place / "file").write_bytes(bytes(1 << 20))
    watch = disk.Disk(1 << 19)
    try:
        watch.enter(str(full))
        watch.enter(str(full), str(passing))
        wait_until(lambda: watch.full(str(full)))
        watch.leave(str(full), str(passing), passing=str(passing))
        wait_until(lambda: not list(passing.iterdir()))
        assert list(full.iterdir())
        watch.leave(str(full))
        wait_until(lambda: not watch.full(str(full)) and not list(full.iterdir()))
    finally:
        watch.close()


def test_what_is_secret_is_left_out_of_what_may_be_read(tmp_path):
    for name in ("a/keys", "a/b", "c"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "a/link").symlink_to(tmp_path / "a/keys")
    secret = str(tmp_path / "a/keys")
    found = set(readable.places([str(tmp_path)], [secret])) - set(readable.places())
    assert found == {str(tmp_path / "a/b"), str(tmp_path / "c")}
    assert str(tmp_path / "a/keys/x") not in readable.places([str(tmp_path / "a/keys/x")], [secret])
    assert readable.places(["/"]) is None


@pytest.mark.skipif(os.getuid() != 0, reason="needs root")
def test_roots_workers_have_few_of_roots_powers(tmp_path):
    source = (
        "import sys; from rgpu.server import confine; confine.confine(write=[sys.argv[1]]); import subprocess\n"
        "print(next(x for x in open('/proc/self/status') if x.startswith('CapEff')), flush=True)\n"
        "subprocess.run(['grep', 'CapEff', '/proc/self/status'])"
    )
    done = subprocess.run([sys.executable, "-c", source, tmp_path], capture_output=True, text=True, timeout=60)
    left = {int(line.split()[1], 16) for line in done.stdout.splitlines() if line}
    assert max(left) <= confine._KEPT, done


def test_what_killed_compilations_left_is_deleted(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = build.cache_directory()
    old, new = folder / "compile-old", folder / "compile-new"
    for path in (old, new):
        path.mkdir()
        (path / "kernel.so").write_bytes(bytes(1000))
    then = time.time() - 5 * build.COMPILE_SECONDS
    os.utime(old, (then, then))
    with build._aside(folder) as aside:
        assert Path(aside).parent == folder and not old.exists() and new.exists()


COMPILER = """#!/bin/sh
[ "$1" = --version ] && exec echo slow
echo assembler > "$TMPDIR/left.s"
exec sleep 60
"""


def test_the_compilers_files_are_in_the_folder_of_its_compilation(tmp_path, monkeypatch):
    """Killed with its worker it leaves them, and only there somebody looks for them."""
    compiler = tmp_path / "compiler"
    compiler.write_text(COMPILER)
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source = "import rgpu as cp; cp.ElementwiseKernel('T x', 'T y', 'y = x')(cp.arange(3.0)).get()"
    server = Daemon("--prestart", "0", "--allow-native-kernels")
    environment = {**os.environ, "RGPU_SERVERS": str(server.address)}
    victim = subprocess.Popen([sys.executable, "-c", source], env=environment, stderr=subprocess.DEVNULL)
    try:
        kernels = tmp_path / "cache/rgpu/kernels"

        wait_until(lambda: list(kernels.glob("compile-*/left.s")), timeout=60)
        (worker,) = server.workers()
        os.kill(worker, signal.SIGKILL)
        victim.wait(60)
        control(str(server.address))
    finally:
        victim.kill()
        victim.wait()
        server.stop()
    left = list(kernels.glob("compile-*"))
    assert left  # whoever compiles next, later, deletes them
    then = time.time() - 5 * build.COMPILE_SECONDS
    for path in left:
        os.utime(path, (then, then))
    build.sweep(kernels)
    assert not list(kernels.glob("compile-*"))


FLOOD = r"""
import rgpu as cp
kernel = cp.RawKernel(r'''
#include <cstdio>
#include <unistd.h>
extern "C" __global__ void flood(int *done) {
    static char line[1024];
    for (char &c : line) c = 'x';
    line[1023] = '\n';
    for (int i = 0; i < 20000; i++) { write(1, line, 1024); write(2, line, 1024); }
    done[0] = 1;
}''', "flood")
done = cp.zeros(1, "i4")
kernel((1,), (1,), (done,))
print(int(done[0]))
"""


@pytest.mark.skipif(not compilers(), reason="no compiler")
def test_native_code_does_not_fill_the_log(tmp_path):
    """40 MiB are written, and the kernel does not wait for anybody to read them."""
    with open(tmp_path / "log", "wb") as log, Server("cpu:1", "quiet", "--allow-native-kernels", stderr=log) as server:
        begin = time.monotonic()
        assert program(FLOOD, server).stdout == "1\n"
        control(server)
        most = BURST + RATE * (time.monotonic() - begin)
    said = (tmp_path / "log").read_bytes()
    assert said.count(b"x") < most + (64 << 10)
    assert b"the rest is left out" in said


def test_what_a_worker_says_is_in_the_log(tmp_path):
    with open(tmp_path / "log", "wb") as log:
        server = Daemon(stderr=log)
        try:
            talk = Talk(server.client.attach(0))
            talk.connection.post([pack("nonsense")])
            wait_until(lambda: (talk.connection.pump(), b"session ended" in (tmp_path / "log").read_bytes())[1])
            talk.connection.close()
        finally:
            server.stop()
