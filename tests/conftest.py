"""Rules for every test: a time limit (pyproject.toml), the same seeds, and nothing left behind."""

import functools
import os
import random
import signal
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import settings

from tests.support import leaks
from tests.support.servers import CHOSEN
from tests.support.waiting import wait_until

settings.register_profile("rgpu", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("rgpu")


os.environ["XDG_CONFIG_HOME"] = "/nonexistent"  # a developer's own rgpu.toml, keys and tokens are not for tests

# RGPU_LINK=ucx pytest ...: servers offer the link that clients must take.
if kind := os.environ.get("RGPU_LINK"):
    os.environ.setdefault("RGPU_LINKS", kind if kind == "zmq" else "tcp,shm,ucx" if kind == "ucx" else "tcp,shm")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Started with `&` by a script: programs under test would inherit deaf ears for Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser):
    parser.addoption(
        "--backend", choices=("cpu", "cupy"), default="cpu", help="the devices of the conformance tests' servers"
    )
    parser.addoption("--kills", type=int, default=4, help="how often chaos/test_redundancy kills a worker")
    parser.addoption("--soak", type=float, default=6.0, help="for how many seconds chaos/test_soak goes on")
    parser.addoption("--cuts", type=int, default=2, help="how often chaos/test_packets cuts the link for a while")


def pytest_collection_modifyitems(config, items):
    """Tests for a GPU say so where there is none."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not has_cuda_device():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@functools.cache
def has_cuda_device():
    """Whether CuPy finds a device here; asked in another process, so that this one stays without CUDA."""
    code = "import sys, cupy; sys.exit(0 if cupy.is_available() else 1)"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60).returncode == 0


@pytest.fixture(scope="session", autouse=True)
def no_orphans():
    """At the very end no process of this run is alive, whoever its parent is by now."""
    mark = f"{os.getpid()}.{random.SystemRandom().getrandbits(64)}"
    os.environ[leaks.MARK] = mark
    yield
    del os.environ[leaks.MARK]
    try:
        wait_until(lambda: not leaks.marked(mark))
    except AssertionError:
        orphans = leaks.marked(mark)
        for pid in orphans.values():
            os.kill(pid, signal.SIGKILL)
        pytest.fail(f"the tests left behind: {sorted(orphans)}")


@pytest.fixture(autouse=True)
def nothing_left_behind(request):
    """Module- and session-wide servers are set up before this and do not count."""
    marker = request.node.get_closest_marker("leaves")
    before = leaks.snapshot()
    yield
    allowed = marker.args if marker else ()
    if kind == "ucx":  # it keeps two listeners of its own from a process's first link to the process's end
        allowed = (*allowed, "sockets")
    left = leaks.left_behind(before, allowed=allowed)
    if left:
        pytest.fail(f"this test left behind: {sorted(left)}")


@pytest.fixture(autouse=True)
def same_seeds():
    random.seed(20)
    np.random.seed(20)


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch):
    """A developer's own RGPU_* settings must not decide whether a test passes."""
    for name in list(os.environ):
        if name.startswith("RGPU_") and name not in CHOSEN:
            monkeypatch.delenv(name)
