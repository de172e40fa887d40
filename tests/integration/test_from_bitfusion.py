"""docs/from-bitfusion.md: every command in it is run, in order, by a shell, against two servers."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import rgpu
from tests.support.servers import Server, environment

PAGE = (Path(__file__).parents[2] / "docs" / "from-bitfusion.md").read_text()
BLOCKS = re.findall(r"```sh\n(.*?)```", PAGE, re.S)
TRAIN = """
import cupy
a = cupy.arange(1000.0)
total = float((a * 2).sum())
assert total == 999000.0
free, all = cupy.cuda.runtime.memGetInfo()
print(f"trained on {cupy.cuda.runtime.getDeviceCount()} devices of {all >> 20} MiB: {cupy.__name__}")
"""
#: the beginning of a block -> what its output says
SAID = {
    "rgpu-server init": ["public key", "keys"],
    "rgpu token create": ["alice"],
    "export RGPU_SERVERS": ["SERVER"],
    "rgpu run -n 2 --": ["trained on 2 devices of 64 MiB"],
    "rgpu run -n 1 -m 0.5 --": ["trained on 1 devices of 32 MiB"],
    "rgpu run -n 1 -m 16MiB": ["trained on 1 devices of 16 MiB"],
    "rgpu run -n 1 -m 0.5 -p 0.75": ["trained on 1 devices of 32 MiB: cupy\ntrained on 1 devices of 32 MiB: cupy"],
    "rgpu run -v": ["rgpu: lease", "trained on 2 devices of 8 MiB"],
    "rgpu request": ["trained on 2 devices of 8 MiB", "trained on 1 devices of 8 MiB", "is given back"],
    "RGPU_SERVERS=gpuhost2": ["trained on 1 devices"],
    "rgpu run -n 4 --wait-for": ["trained on 4 devices"],
    "rgpu list\nrgpu list --fields": ["MEMORY_FREE"],
    "rgpu-smi\n": ["RGPU-SMI", "GPU 3"],
    "rgpu health": ["OK", "findings"],
    "rgpu netperf": ["round trip", "plain TCP"],
    "rgpu-smi --query-compute-apps": ["pid, process_name", '"servers"'],
    "rgpu drain": ["trained on 1 devices"],
    "RGPU_GPUS=1": ["trained on 1 devices of 16 MiB"],
}


@pytest.fixture
def shell(tmp_path):
    """Runs a block with rgpu's commands on the path; its output."""
    folder = tmp_path
    (folder / "train.py").write_text(TRAIN)
    (folder / "bin").mkdir()
    for command, module in (("rgpu", "rgpu.cli"), ("rgpu-smi", "rgpu.smi"), ("rgpu-server", "rgpu.server")):
        script = folder / "bin" / command
        script.write_text(f'#!/bin/sh\nexec {sys.executable} -m {module} "$@"\n')
        script.chmod(0o755)
    (folder / "bin" / "python").symlink_to(sys.executable)
    with (
        Server("cpu:2", "gpuhost1", "--device-memory", "64MiB") as one,
        Server("cpu:2", "gpuhost2", "--device-memory", "64MiB") as two,
    ):
        addresses = {"gpuhost1": one.address, "gpuhost2": two.address}
        env = {
            **environment(), "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "HOME": str(folder), "SHELL": "/bin/sh",
            "XDG_CONFIG_HOME": str(folder), "XDG_RUNTIME_DIR": str(folder),
            "PYTHONPATH": str(Path(rgpu.__file__).parents[1]),
            "RGPU_SERVERS": ",".join(addresses.values()),
        }  # fmt: skip

        def run(block):
            for name, address in addresses.items():  # but not where a filter names the server
                block = re.sub(rf"(?<!server=){name}", address, block)
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", block], cwd=folder, env=env, stdin=subprocess.DEVNULL,
                capture_output=True, text=True, timeout=120,
            )  # fmt: skip
            assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
            return done.stdout + done.stderr

        run.address = one.address
        yield run


@pytest.mark.timeout(300)
def test_the_page_from_its_beginning_to_its_end(shell):
    """One test, since a block may need what the ones before it have made."""
    for block in BLOCKS:
        output = shell(block)
        beginning = max((key for key in SAID if block.startswith(key)), key=len, default="")
        for text in SAID.get(beginning, ["trained on"] if "train.py" in block else []):
            assert text.replace("SERVER", shell.address) in output, f"{block}\n{output}"


def test_every_expectation_is_of_a_block():
    assert all(any(block.startswith(key) for block in BLOCKS) for key in SAID)
