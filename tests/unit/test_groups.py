"""Control groups of workers, in a folder that looks like a group that was delegated."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rgpu.errors import ConfigError
from rgpu.server import groups
from tests.support.waiting import wait_until


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """Root of the groups, the file that says which is ours, and ours."""
    base = tmp_path / "cgroup/system.slice/rgpu.service"
    base.mkdir(parents=True)
    (base / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    (base / "cgroup.procs").write_text(f"{os.getpid()}\n")
    own = tmp_path / "own"
    own.write_text("9:name=systemd:/x\n0::/system.slice/rgpu.service\n")
    monkeypatch.setattr(os, "getxattr", lambda path, name: b"1" if name == "user.delegate" else b"")
    return tmp_path / "cgroup", own, base


def test_a_worker_and_what_it_starts_are_bounded(tree):
    root, own, base = tree
    found = groups.find("auto", root, own)
    assert (base / "daemon/cgroup.procs").read_text() == str(os.getpid())
    assert (base / "cgroup.subtree_control").read_text() == "+memory +pids +cpu"
    found.enter(17)
    group = base / "worker-17"
    assert (group / "cgroup.procs").read_text() == "17"
    assert int((group / "pids.max").read_text()) == groups.PROCESSES
    found.lend(17, "cpu", 1 << 30, 0.25)
    assert int((group / "memory.max").read_text()) == 4 << 30
    assert (group / "cpu.weight").read_text() == "25"
    found.lend(17, "cuda", 0, 0.0)
    assert int((group / "memory.max").read_text()) == 8 << 30 and (group / "cpu.weight").read_text() == "100"
    found.leave(17)
    assert (group / "cgroup.kill").read_text() == "1"
    found.leave(18)  # never entered


def test_only_what_the_group_has(tree):
    root, own, base = tree
    (base / "cgroup.controllers").write_text("pids\n")
    groups.find("on", root, own).enter(17)
    assert not (base / "worker-17/memory.oom.group").exists() and (base / "worker-17/pids.max").exists()


@pytest.mark.parametrize("wrong", ["not delegated", "other processes", "nothing to bound", "no such group"])
def test_a_group_that_is_not_ours_is_left_alone(tree, monkeypatch, wrong):
    root, own, base = tree
    if wrong == "not delegated":
        monkeypatch.setattr(os, "getxattr", lambda path, name: b"")
    elif wrong == "other processes":
        (base / "cgroup.procs").write_text(f"{os.getpid()}\n1\n")
    elif wrong == "nothing to bound":
        (base / "cgroup.controllers").write_text("hugetlb\n")
    else:
        own.write_text("4:memory:/x\n")
    before = sorted(base.rglob("*"))
    assert groups.find("auto", root, own) is None
    assert groups.find("off", root, own) is None
    if wrong != "not delegated":
        with pytest.raises(ConfigError, match="Delegate=yes"):
            groups.find("on", root, own)
    assert sorted(base.rglob("*")) == before


REAL = Path("/sys/fs/cgroup/unified")


@pytest.mark.skipif(not os.access(REAL / "cgroup.procs", os.W_OK), reason="needs a writable hierarchy of cgroup v2")
def test_processes_enter_and_leave_a_real_group():
    """Where other hierarchies have the controllers it bounds nothing, and yet holds what a worker started."""
    place = REAL / f"rgpu-test-{os.getpid()}"
    place.mkdir()
    made = groups.Groups(place, ())
    source = "import subprocess; child = subprocess.Popen(['sleep', '60']); input()"
    with subprocess.Popen([sys.executable, "-c", source], stdin=subprocess.PIPE) as worker:
        try:
            made.enter(worker.pid)
            assert str(worker.pid) in (place / f"worker-{worker.pid}/cgroup.procs").read_text().split()
            made.leave(worker.pid)
            assert worker.wait(20) == -9
        finally:
            worker.kill()
            wait_until(lambda: (made.tidy(), not list(place.glob("worker-*")))[1])
            place.rmdir()
