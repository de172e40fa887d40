"""T26: what commands can reach on the server's host. Thousands of broken commands run in one process while every file
it touches, every program it starts and every connection it makes is written down."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy
import pytest

import rgpu

ROOT = Path(__file__).parents[2]
CASES = """
import os, sys
from tests.hostile import test_fuzz
test_fuzz.run("commands", range(20))
os.access("/here-it-begins", os.F_OK)
test_fuzz.run("commands", range(20, {cases}))
os.access("/here-it-ends", os.F_OK)
"""
CALL = re.compile(r"\b(open|openat2?|creat|execve|execveat|connect|bind|unlink|unlinkat|rename\w*|mkdir\w*)\(")
MARKS = [rf'access\w*\([^"\\]*"/here-it-{verb}"' for verb in ("begins", "ends")]
READ = re.compile(r'"([^"]*)", O_RDONLY')


def libraries():
    """Where modules that are imported late lie; nothing there is anybody's secret."""
    places = {sys.prefix, sys.base_prefix, sysconfig.get_path("stdlib"), "/usr/lib", "/lib", "/proc/self", "/sys"}
    places |= {str(Path(module.__file__).parents[1]) for module in (numpy, rgpu)}
    return tuple(os.path.realpath(place) for place in places)


def test_no_command_reaches_a_file_a_program_or_the_network(tmp_path):
    if not shutil.which("strace"):
        pytest.skip("strace is not installed")
    trace = tmp_path / "trace"
    command = ["strace", "-f", "-qq", "-s", "300", "-e", "trace=%file,%network", "-o", str(trace)]
    paths = [str(ROOT), str(Path(rgpu.__file__).parents[1])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        [*command, sys.executable, "-c", CASES.format(cases=int(os.environ.get("RGPU_REACH_CASES", "1500")))],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=110,
    )
    if "ptrace" in done.stderr.lower() and done.returncode:
        pytest.skip(f"strace may not trace here: {done.stderr.strip()[:100]}")
    assert done.returncode == 0, done.stderr
    lines = trace.read_text(errors="replace").splitlines()
    begins, ends = (next(i for i, line in enumerate(lines) if re.search(mark, line)) for mark in MARKS)
    assert begins < ends
    allowed, wrong = libraries(), []
    for line in lines[begins:ends]:
        if CALL.search(line):
            read = READ.search(line)
            if not (read and os.path.realpath(read[1]).startswith(allowed)):
                wrong.append(line)
    assert wrong == []
