"""A slice of CuPy's own tests, and the guards that make its result mean something.

A bare alias of NumPy passes most of CuPy's suite. So: the class must not be NumPy's, the servers
must have executed what the client sent, a server that computes wrongly must make tests fail, and
so must a server that dies. The whole suite is run by ``scripts/conformance``, not here.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

RUNNER = Path(__file__).parent / "upstream" / "run.py"
ROOT = RUNNER.parents[3]
SDIST = os.environ.get("RGPU_CONFORMANCE_SDIST")  # read before the settings of a developer are taken away
pytestmark = pytest.mark.timeout(240)

SLICE = [
    "core/test_ndarray_indexing.py", "core/test_ndarray_unary_op.py", "core/test_ndarray_get.py", "binary",
    "padding", "logic/test_content.py", "logic/test_truth.py", "manipulation/test_join.py",
    "manipulation/test_shape.py", "sorting/test_count.py", "indexing/test_insert.py", "io",
]  # fmt: skip


@pytest.fixture(scope="module")
def sdist():
    """CuPy's source distribution: given, cached, or downloaded once. Without it there is nothing to run."""
    if SDIST:
        return SDIST
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rgpu" / "cupy-sdist"
    if not (cache / "cupy-14.2.0").is_dir():
        try:
            done = subprocess.run(
                [sys.executable, RUNNER, "--fetch"],
                capture_output=True,
                text=True,
                timeout=100,
                stdin=subprocess.DEVNULL,
            )
            why = done.stderr.strip()[-300:] if done.returncode else ""
        except subprocess.TimeoutExpired:
            why = "it took longer than 100 s"
        if why:
            pytest.skip(f"CuPy's source distribution cannot be had here: {why}")
    return str(cache / "cupy-14.2.0")


@pytest.fixture
def upstream(sdist, tmp_path):
    """Run some of CuPy's tests; what came out, as the runner saves it, with its exit status and output."""

    def run(*targets, path=None, options=()):
        saved = tmp_path / "results.json"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [path, str(ROOT / "src")]))}
        done = subprocess.run(
            [sys.executable, RUNNER, "--sdist", sdist, "--json", saved, "--timeout", "200"]
            + [x for target in targets for x in ("--dir", target)] + list(options),
            env=environment, capture_output=True, text=True, timeout=230, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert saved.exists(), done.stderr
        return json.loads(saved.read_text()) | {
            "status": done.returncode,
            "output": done.stdout + done.stderr,
        }

    return run


def customized(tmp_path, source):
    """A directory whose sitecustomize every Python that has it on its path runs at its start."""
    place = tmp_path / "custom"
    place.mkdir()
    (place / "sitecustomize.py").write_text(source)
    return str(place)


def test_a_slice_of_upstream_passes_and_the_servers_did_the_work(upstream):
    found = upstream(*SLICE, options=["--jobs", "2"])
    assert found["status"] == 0, found["output"]
    outcomes = list(found["results"].values())
    assert outcomes.count("passed") > 600
    assert found["stats"]["executed"] == found["stats"]["issued"] > 10_000


def test_numpy_in_disguise_is_refused(upstream, tmp_path):
    disguise = customized(tmp_path, "import numpy, rgpu\nrgpu.ndarray = numpy.ndarray\n")
    found = upstream("binary", path=disguise)
    assert found["status"] != 0
    assert "cupy is not bound to rgpu" in found["output"]
    assert not found["results"]


MUTANT = """
import sys
if "rgpu.server.worker" in " ".join(sys.orig_argv):
    import numpy
    from rgpu.server.cpu import OVERRIDES
    OVERRIDES["invert"] = numpy.negative
"""


def test_a_server_that_computes_wrongly_is_noticed(upstream, tmp_path):
    mutant = customized(tmp_path, MUTANT)
    found = upstream("core/test_ndarray_unary_op.py", options=["--mutant", mutant])
    assert found["status"] == 1
    failing = [line["node"] for line in found["failing"]]
    assert failing and all("invert" in node for node in failing)  # and nothing else


def test_servers_that_die_are_noticed_with_clear_errors(upstream):
    options = ["--kill-servers-after", "20", "--", "--maxfail=3"]
    found = upstream("core/test_ndarray_indexing.py", options=options)
    assert found["status"] == 1
    assert len(found["failing"]) == 3
    for line in found["failing"]:
        assert "rgpu" in line["message"] or "server" in line["message"], line["message"]
