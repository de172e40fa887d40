"""Client and server with different NumPy versions: a client with 1.26, a server with this environment's.

``scripts/test`` installs NumPy 1.26 beside the environment and names the place in RGPU_OLD_NUMPY.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "programs" / "old_numpy.py"
PLACE = os.environ.get("RGPU_OLD_NUMPY", "")  # read before the settings of a developer are taken away
SOURCES = str(Path(__file__).parents[2] / "src")

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(not PLACE, reason="NumPy 1.26 is not here: scripts/test installs it (Python 3.11 and 3.12)"),
]


def run(*command, server="", old=False):
    paths = [PLACE] * old + [SOURCES] + [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "RGPU_CHECK_PREDICTION": "1"}
    environment |= {"RGPU_SERVERS": server} if server else {}
    return subprocess.run(
        [sys.executable, *command],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        stdin=subprocess.DEVNULL,
    )


def test_a_client_with_numpy_1_gets_what_one_with_numpy_2_gets(servers):
    old = run(PROGRAM, server=servers[0].address, old=True)
    assert old.returncode == 0, old.stderr[-2000:]
    version, computed = old.stdout.splitlines()
    assert version.startswith("NumPy 1.26.")
    new = run(PROGRAM, server=servers[0].address)
    assert new.returncode == 0, new.stderr[-2000:]
    assert new.stdout.splitlines()[1] == computed  # as many, and each with the layout that was expected of it
    assert int(computed.split()[1]) > 8000


def test_a_server_needs_numpy_2_and_says_so():
    done = run("-m", "rgpu.server", "--devices", "cpu:1", "--port", "0", old=True)
    assert done.returncode == 2 and "NumPy 2.1" in done.stderr and not done.stdout, done.stderr
