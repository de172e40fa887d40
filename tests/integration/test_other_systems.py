"""A client needs no Linux: programs and commands on a laptop with macOS or Windows, as far as Python shows those."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.integration.test_keys import Protected
from tests.support.servers import Server, environment, program

pytestmark = pytest.mark.timeout(180)
EMULATOR = str(Path(__file__).parents[1] / "support" / "other_system.py")
SYSTEMS = ("darwin", "win32")

PROGRAM = """
import sys
import numpy as np
import rgpu as cp

a = cp.arange(12.0).reshape(3, 4)
assert float((a @ a.T).sum()) == 1134.0
x = np.random.default_rng(1).random((700, 1000))  # more than one piece of data, both ways
assert (cp.asnumpy(cp.asarray(x) + 1) == x + 1).all()
try:
    cp.ones(3) + cp.ones(4)
except ValueError:
    pass
with cp.cuda.Device(1):
    assert int(cp.arange(10).sum()) == 45
for n in range(3000):
    a = a + 1
assert float(a[0, 0]) == 3000
print(sys.platform)
"""


@pytest.fixture(scope="module")
def server():
    with Server("cpu:2", "linux") as server:
        yield server


@pytest.fixture(scope="module")
def protected(tmp_path_factory):
    protected = Protected(tmp_path_factory.mktemp("protected"))
    yield protected
    protected.server.stop()


@pytest.fixture(params=SYSTEMS)
def system(request):
    return request.param


def test_a_program(server, system):
    assert program(PROGRAM, server, launcher=(EMULATOR, system, "-c")).stdout.split() == [system]


def test_a_program_with_a_token(protected, system):
    _, token = protected.token(f"user-{system}")
    done = program(PROGRAM, launcher=(EMULATOR, system, "-c"), RGPU_TOKEN=token.path)
    assert done.stdout.split() == [system]


def test_run_keeps_the_lease_and_ends_as_the_program_does(server, system, tmp_path):
    (tmp_path / "prog.py").write_text("import cupy, sys; print(cupy.cuda.runtime.getDeviceCount()); sys.exit(3)\n")
    inner = ("--", sys.executable, EMULATOR, system, str(tmp_path / "prog.py"))
    launcher = (EMULATOR, system, "-m")
    done = program("rgpu.cli", server, launcher=launcher, arguments=("run", "-n", "1", *inner), check=False)
    assert (done.returncode, done.stdout.split()) == (3, ["1"]), done.stderr


@pytest.mark.parametrize("command", ["rgpu.smi", "rgpu.cli list", "rgpu.cli health", "rgpu.cli release --all"])
def test_a_command(server, system, command, tmp_path):
    module, *arguments = command.split()
    launcher = (EMULATOR, system, "-m")
    done = program(module, server, launcher=launcher, arguments=arguments, LOCALAPPDATA=str(tmp_path))
    assert "Traceback" not in done.stdout + done.stderr


def test_without_a_server_it_says_what_to_do(system):
    code = "import rgpu; rgpu.zeros(1)"
    done = program(code, launcher=(EMULATOR, system, "-c"), check=False)
    assert "rgpu-server needs Linux" in done.stderr and "RGPU_SERVERS" in done.stderr


def test_an_interrupt_ends_a_wait(server, system):
    code = """
import os, threading, signal, time
import rgpu as cp
a = cp.random.rand(1500, 1500)
cp.cuda.Device().synchronize()
for _ in range(60): a = a @ a * 1e-3
print("waiting", flush=True)
try: a.get()
except KeyboardInterrupt: print("interrupted", flush=True)
os._exit(0)
"""
    env = environment() | {"RGPU_SERVERS": server.address}
    launcher = [sys.executable, EMULATOR, system, "-c", code]
    with subprocess.Popen(launcher, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "waiting\n"
        time.sleep(0.2)  # it begins to wait; earlier is as good
        process.send_signal(signal.SIGINT)
        assert process.stdout.read().split() == ["interrupted"]
