"""scripts/bench: all its sections on cpu devices, and with --backend cupy on a stand-in for CuPy and its card.

The stand-in is what the daemon, its workers and the script itself import as cupy. Few runs of little work: what comes
out are rows, not figures.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cuda_stand_in import FOLDER
from tests.support.servers import environment

ROOT = Path(__file__).parents[2]
LITTLE = """
import runpy, sys
sys.path.insert(0, "scripts/lib")
import measuring
several = measuring.in_turn
measuring.in_turn = lambda functions, runs: several(functions, 1)
import serving
serving.LINKS, serving.KEYED = ("tcp",), ("zmq, with keys",)
import bulk, operations, steps
bulk.REPEATS = 2
operations.ISSUED, operations.QUICK_BURST = 20, 200
steps.STEPS = steps.SMALL_STEPS = 2
steps.LESS, steps.MORE, steps.SIZES = 1, 2, (1 << 10, 1 << 12)
"""
RUN = """
sys.argv[0] = "scripts/bench"
runpy.run_path("scripts/bench", run_name="__main__")
"""
CARD = 256 << 20  # bytes: arrays of 16 MiB, and the copies of them


@pytest.fixture
def bench(tmp_path):
    """bench(arguments ..., first=...) runs a copy of the script, whose documents are the copy's own."""
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "docs").mkdir()

    def run(*arguments, first="", timeout=240):
        paths = [str(ROOT / "src"), FOLDER, str(ROOT)]
        env = environment() | {
            "PYTHONPATH": ":".join(paths),
            "CUPY_STAND_IN_MEMORY": str(CARD),
            "RGPU_PURE": "1",  # with the C core it starts itself again, to measure without
        }
        command = [sys.executable, "-c", LITTLE + first + RUN, "--quick", *arguments]
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=timeout)

    return run


def rows_of(done):
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    for row in rows:
        assert row["low"] <= row["ours"] <= row["high"] and row["unit"] in ("", "us", "ms", "M/s", "GB/s", "MiB")
        assert not row["anchor"] or row["ratio"] is not None
    return rows


def anchors(rows):
    found = {}
    for row in rows:
        found.setdefault(row["name"], []).append(row["anchor"])
    return found


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("backend", "beside"), [("cpu", "NumPy"), ("cupy", "CuPy")])
def test_small_operations_and_round_trips(bench, backend, beside):
    done = bench("--backend", backend, "--json", "--only", "issue,pipeline,trips")
    found = anchors(rows_of(done))
    assert found["m @ n"] == found["kernel launch"] == ["CuPy's own" if beside == "CuPy" else "NumPy's a + b"]
    assert found["a + b, 1 device(s)"] == [f"{beside} in process"]
    assert ("a + b, 4 device(s)" in found) == ("worker: a + b" in found) == (beside == "NumPy")
    assert ("left out with --backend cupy: pipeline" in done.stderr) == (beside == "CuPy")
    trips = {row["name"]: row["ours"] for row in json.loads(done.stdout)["rows"] if row["section"] == "round trips"}
    assert trips["a training step that reads nothing"] == 0 and trips["a training step that reads its loss"] == 1


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("backend", "own"), [("cpu", []), ("cupy", ["CuPy in process"])])
def test_links(bench, backend, own):
    found = anchors(rows_of(bench("--backend", backend, "--json", "--only", "waiting,bulk")))
    for link in ("tcp", "zmq, with keys"):
        assert found[f"{link}: read 4 numbers"] == ["raw TCP", "raw DEALER/ROUTER", *own]
        assert found[f"{link}: synchronize"] == ["raw TCP", *own]
        assert (f"{link}: item()" in found) == bool(own)
        for size in ("64 KiB", "1 MiB", "16 MiB"):
            for way in ("up", "down"):
                assert found[f"{link}: {size} {way}"] == ["raw TCP", "memcpy", *own]
                paused = found.get(f"{link}: {size} {way}, after a pause of 10 ms")
                assert paused == (None if size == "16 MiB" else ["raw TCP"])


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("backend", "hows"), [("cpu", [""]), ("cupy", [", eager", ", with replay"])])
def test_training(bench, backend, hows):
    """The losses of both sides are compared before anything is measured."""
    spy = """
connected = serving.connected
def told(**settings):
    print("connected", settings, file=sys.stderr)
    return connected(**settings)
steps.connected = told
"""
    done = bench("--backend", backend, "--json", "--only", "training", first=spy)
    found = anchors(rows_of(done))
    beside = "NumPy in process" if backend == "cpu" else "CuPy in process"
    for how in hows:
        for name in ("MLP 64-512-512-10", "CNN", "Black-Scholes, 1,024 floats", "a step of Adam, 4,096 floats"):
            assert found[name + how] == [beside]
    assert found["MLP 64-512-512-10 at 30 ms"] == ["the line at 0 ms"]
    told = [line for line in done.stderr.splitlines() if line.startswith("connected")]
    assert told == ["connected {'replay': False}", "connected {'replay': True}"] * (backend == "cupy")


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("backend", "name", "title"),
    [("cpu", "performance.md", "# Performance\n"), ("cupy", "performance-gpu.md", "# Performance on a GPU\n")],
)
def test_the_document(bench, tmp_path, backend, name, title):
    done = bench("--backend", backend, "--write", "--only", "start")
    assert done.returncode == 0, done.stderr
    assert [path.name for path in (tmp_path / "docs").iterdir()] == [name]
    text = (tmp_path / "docs" / name).read_text()
    assert text.startswith(title) and text.endswith(done.stdout)
    assert f"| import {'numpy' if backend == 'cpu' else 'cupy'} " in text
    assert ("gpu a stand-in, cupy a stand-in, CUDA 12.8" in text) == (backend == "cupy")


@pytest.mark.parametrize(
    ("first", "remedy"),
    [
        ("sys.modules['cupy'] = None", "pip install '.[server-cuda12]'"),
        ("sys.modules['pynvml'] = None", "pip install '.[server-cuda12]'"),
        ("import cupy; cupy.cuda.runtime.getDeviceCount = lambda: 0", "--backend cpu"),
        ("import rgpu; rgpu.install()", "without rgpu run"),
    ],
)
def test_without_cupy_or_a_gpu_nothing_starts(bench, first, remedy):
    started = "\nserving.server = None\n"  # calling it is another error
    done = bench("--backend", "cupy", "--only", "trips", first=first + started)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("scripts/bench: ") and done.stderr.count("\n") == 1
    assert remedy in done.stderr


def test_another_card_than_the_servers(bench):
    first = "import cupy; cupy.cuda.runtime.deviceGetPCIBusId = lambda device: '0000:02:00.0'\n"
    done = bench("--backend", "cupy", "--only", "trips", first=first)
    assert done.returncode == 1 and "CUDA_VISIBLE_DEVICES" in done.stderr
