"""Runs CuPy's own tests, unmodified, with cupy bound to rgpu over two servers with two cpu devices each.

Started by ``scripts/conformance``. The tests come from CuPy's source distribution, are copied to
a temporary directory with its pyproject.toml, and know nothing of rgpu. Prints a table by
directory and writes the failing tests to a JSON file. Must not change a test.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

import ledger as ledgers
import report as reports

VERSION = "14.2.0"
ARRAY_API = "https://github.com/data-apis/array-api-tests"
ARRAY_API_COMMIT = "55fcc60"
HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
T1 = "math manipulation creation indexing logic sorting statistics linalg binary padding polynomial lib io misc"
T2 = "random fft functional core/fusion cupyx/signal cupyx/linalg cupyx/test_lapack.py cupyx/test_cusparse.py"
SCIPY = "special ndimage signal stats linalg sparse interpolate spatial fft fftpack"
KERNELS = """core/test_elementwise.py core/test_reduction.py core/test_raw.py core/test_userkernel.py
core/test_function.py core/test_scan.py core/test_carray.py core/test_include.py core/test_core.py cupyx/jit"""
DEVICES = """cuda core/test_syncdetect.py core/test_multithreading.py
cupyx/profiler cupyx/test_time.py cupyx/test_pinned_array.py cupyx/test_runtime.py"""
TIERS = {
    "T1": [*T1.split(), "core/test_ndarray*.py"],
    "T2": [*T2.split(), *(f"cupyx/scipy/{name}" for name in SCIPY.split())],
    "T3": KERNELS.split(),
    "T4": DEVICES.split(),
    "core": ["core"],
    "all": [""],
}


def main() -> int:
    options = parse()
    if options.fetch:
        with tempfile.TemporaryDirectory() as name:
            print(find_sdist(None, Path(name)))
        return 0
    results, ledger = reports.Results(), ledgers.load()
    for path in options.merge:
        results.merge(Path(path))
    if options.array_api:
        with tempfile.TemporaryDirectory(prefix="rgpu-array-api-") as name:
            run_array_api(options, Path(name), results)
    elif not options.merge:
        with tempfile.TemporaryDirectory(prefix="rgpu-conformance-") as name:
            run(options, Path(name), results)
    results.save(Path(options.json))
    if options.alias:
        return tell(results, ledger)
    judged = reports.Judged(results, ledger)
    if options.docs is not None:
        table = options.docs or ("array-api" if options.array_api else "".join(options.tier) or "T1")
        reports.write_docs(ROOT / "docs" / "conformance.md", table, results, judged)
    return reports.show(results, judged, options.failures, options.strict)


def run(options: argparse.Namespace, work: Path, results: reports.Results) -> None:
    """The tests, in a copy of CuPy's tree, over two servers of their own."""
    sdist = find_sdist(options.sdist, work)
    shutil.copytree(sdist / "tests", work / "run" / "tests")
    shutil.copy(sdist / "pyproject.toml", work / "run")
    targets = [t for d in options.dirs for t in resolve(work / "run" / "tests", d)]
    lines = work / "report.jsonl"
    servers = [] if options.alias else [Server(number, work, options) for number in (1, 2)]
    environment = {
        **settings(),
        "RGPU_CONFORMANCE_SDIST": str(sdist),
        "RGPU_CONFORMANCE_REPORT": str(lines),
        "CUPY_TEST_GPU_LIMIT": "4",  # tests for more devices than the two servers have say so and skip
        "RGPU_CHECK_PREDICTION": os.environ.get("RGPU_CHECK_PREDICTION", "1"),
        "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    log = work / "pytest.log"
    try:
        environment["RGPU_SERVERS"] = ",".join(server.address() for server in servers)
        with log.open("w") as output:
            process = subprocess.Popen(
                pytest_command(options, targets),
                cwd=work / "run",
                env=environment,
                stdout=None if options.verbose else output,
                stderr=None if options.verbose else subprocess.STDOUT,
            )
        watch(process, options, lines, servers)
    finally:
        for server in servers:
            server.stop()
    if process.returncode not in (0, 1):  # a run that ends early must not look like a good one
        print(f"pytest ended with {process.returncode}:\n{log.read_text()[-9000:]}", file=sys.stderr)
        results.incomplete = True
    results.runs.append(described())
    results.read(lines)


def run_array_api(options: argparse.Namespace, work: Path, results: reports.Results) -> None:
    """The array API standard's own tests, on ``array_api_compat.cupy`` in a program that ``rgpu run`` starts."""
    suite, lines = find_array_api(options.array_api, work), work / "report.jsonl"
    server = Server(1, work, options)
    command = [sys.executable, "-m", "rgpu.cli", "run", "-n", "1", "--", sys.executable, "-m", "pytest"]
    command += ["array_api_tests", "-p", "recorder", "-p", "no:cacheprovider", "-q", "--tb=line", "--derandomize"]
    command += [f"--max-examples={options.examples}", "--disable-deadline", f"--timeout={options.test_timeout}"]
    command += ["-n", str(options.jobs)] if options.jobs > 1 else []
    environment = {
        **settings(),
        "ARRAY_API_TESTS_MODULE": "array_api_compat.cupy",
        "RGPU_CHECK_PREDICTION": "1",
        "RGPU_CONFORMANCE_REPORT": str(lines),
        "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    try:
        environment["RGPU_SERVERS"] = server.address()
        log = None if options.verbose else subprocess.DEVNULL
        done = subprocess.run(command + options.pytest, cwd=suite, env=environment, stdout=log, stderr=log, check=False)
    finally:
        server.stop()
    results.incomplete = done.returncode not in (0, 1)
    results.runs.append(described())
    results.read(lines)


def settings() -> dict[str, str]:
    """Our environment without what a pytest around us has left for its own processes."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}


def find_array_api(given: str, work: Path) -> Path:
    """A checkout of data-apis/array-api-tests: given, or cloned ("clone") at the commit the ledger is about."""
    if given != "clone":
        return Path(given).resolve()
    place = work / "array-api-tests"
    subprocess.run(["git", "clone", "--quiet", ARRAY_API, str(place)], check=True)
    subprocess.run(["git", "-C", str(place), "checkout", "--quiet", ARRAY_API_COMMIT], check=True)
    subprocess.run(["git", "-C", str(place), "submodule", "--quiet", "update", "--init", "--depth=1"], check=True)
    return place


def watch(process: subprocess.Popen, options: argparse.Namespace, lines: Path, servers: list) -> None:
    """Wait for pytest; for the guard that servers matter, kill them once some tests have passed."""
    end, kill_after = time.monotonic() + options.timeout, options.kill_servers_after
    while process.poll() is None:
        if kill_after and lines.exists() and lines.read_bytes().count(b"\n") >= kill_after:
            kill_after = 0
            for server in servers:
                server.process.kill()
        if time.monotonic() > end:
            print(f"stopped after {options.timeout} s", file=sys.stderr)
            process.terminate()
            end += 15
        try:
            process.wait(0.05 if kill_after else 1)
        except subprocess.TimeoutExpired:
            pass


def pytest_command(options: argparse.Namespace, targets: list[Path]) -> list[str]:
    plugin = "cupy_on_numpy" if options.alias else "cupy_on_rgpu"
    command = [sys.executable, "-m", "pytest", "-c", "pyproject.toml", "-p", plugin, "-p", "no:cacheprovider"]
    command += ["-q", "--tb=short" if options.verbose else "--tb=line", "--no-header", "--show-capture=no"]
    command += ["--continue-on-collection-errors", f"--timeout={options.test_timeout}"]
    if not options.slow:
        command += ["-m", "not slow"]
    if options.k:
        command += ["-k", options.k]
    if options.jobs > 1:
        command += ["-n", str(options.jobs), "--dist", "loadfile"]
    return [*command, *options.pytest, *map(str, targets)]


def described() -> dict:
    """When and where a run was made, for the table in the docs."""
    import numpy

    versions = f"Python {platform.python_version()}, NumPy {numpy.__version__}, CuPy's tests {VERSION}, cpu backend"
    machine = f"{os.cpu_count()}-core {platform.machine()} {platform.system()}"
    return {"date": datetime.date.today().isoformat(), "machine": machine, "versions": versions}


def tell(results: reports.Results, ledger: ledgers.Ledger) -> int:
    """Write down which tests tell NumPy from CuPy: what fails when cupy is a bare alias of NumPy."""
    nodes = {n.removeprefix("tests/"): line["outcome"] for n, line in results.lines.items()}
    run = {n: o for n, o in nodes.items() if o != "skipped" and not ledger.excludes(n) and not ledger.expects(n)}
    failed = [n for n, outcome in run.items() if outcome in reports.BAD]
    patterns = ledgers.folded(failed, run)
    head = "# The tests that a bare alias of NumPy fails; written by scripts/conformance --alias, do not edit.\n"
    ledgers.TELLING.write_text(head + "".join(f"{p}\n" for p in patterns))
    print(f"an alias of NumPy fails {len(failed)} of {len(run)} tests: {len(patterns)} patterns")
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/conformance", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--dir",
        dest="dirs",
        action="append",
        default=[],
        metavar="DIR",
        help="math, core/test_ndarray.py, core/test_ndarray*.py, cupyx/scipy/special, ...",
    )
    parser.add_argument("--tier", action="append", default=[], choices=sorted(TIERS))
    parser.add_argument("-k", help="pytest's expression")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--sdist", help=f"CuPy {VERSION}'s source distribution, packed or not (default: download)")
    parser.add_argument("--json", default="conformance.json", help="where the results are saved")
    parser.add_argument("--failures", type=int, default=30, help="how many kinds of failure to show")
    parser.add_argument("--timeout", type=float, default=3600, help="seconds for the whole run")
    parser.add_argument("--test-timeout", type=float, default=120, help="seconds for one test")
    parser.add_argument("--slow", action="store_true", help="also those that CuPy marks as slow (gigabytes)")
    parser.add_argument("--blocking", action="store_true", help="RGPU_LAUNCH_BLOCKING=1")
    parser.add_argument("-v", "--verbose", action="store_true", help="show pytest's own output")
    parser.add_argument("--strict", action="store_true", help="an expected failure that passes fails the run")
    parser.add_argument("--merge", action="append", default=[], metavar="JSON", help="run nothing; join saved results")
    parser.add_argument(
        "--docs",
        metavar="NAME",
        nargs="?",
        const="",
        help="write docs/conformance.md's table of this name: T1, T2, T3, T4, array-api (default: the tier's)",
    )
    parser.add_argument("--alias", action="store_true", help="NumPy in rgpu's place: writes telling.txt")
    parser.add_argument("--mutant", metavar="DIR", help="first on the servers' PYTHONPATH: breaks them for a guard")
    parser.add_argument("--kill-servers-after", type=int, default=0, metavar="TESTS", help="for a guard")
    parser.add_argument(
        "--array-api",
        metavar="DIR",
        help='run the array API tests of this checkout instead; "clone" gets one',
    )
    parser.add_argument("--examples", type=int, default=10, help="hypothesis' examples for each array API test")
    parser.add_argument("--fetch", action="store_true", help="only make sure that the tests are there")
    parser.add_argument("pytest", nargs="*", help="after --: arguments for pytest")
    options = parser.parse_args()
    options.dirs += [directory for tier in options.tier for directory in TIERS[tier]]
    options.dirs = options.dirs or TIERS["T1"]
    if kind := os.environ.get("RGPU_LINK"):  # what clients must take is offered, as in tests/conftest.py
        os.environ.setdefault("RGPU_LINKS", "zmq" if kind == "zmq" else "tcp,shm,ucx" if kind == "ucx" else "tcp,shm")
    if options.blocking:
        os.environ["RGPU_LAUNCH_BLOCKING"] = "1"
    return options


def find_sdist(given: str | None, work: Path) -> Path:
    """The unpacked source distribution: given (a directory or a tar), cached, or downloaded."""
    if given and Path(given).is_dir():
        path = Path(given)
        return (path if (path / "tests").is_dir() else path / f"cupy-{VERSION}").resolve()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rgpu" / "cupy-sdist"
    if given is None and not (cache / f"cupy-{VERSION}").is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            [
                sys.executable,
                "-m",
                "pip",
                "download",
                "--quiet",
                "--no-binary",
                "cupy",
                "--no-deps",
                f"cupy=={VERSION}",
                "-d",
                str(work),
            ],
            check=True,
            env={**os.environ, "CUPY_INSTALL_USE_STUB": "1"},
        )
        _unpack(work / f"cupy-{VERSION}.tar.gz", work / "sdist")
        try:  # a directory appears whole or not at all: two runs may fetch at once
            shutil.move(work / "sdist" / f"cupy-{VERSION}", cache / f".{os.getpid()}")
            (cache / f".{os.getpid()}").rename(cache / f"cupy-{VERSION}")
        except OSError:
            shutil.rmtree(cache / f".{os.getpid()}", ignore_errors=True)
    elif given:
        _unpack(Path(given), work / "sdist")
        return work / "sdist" / f"cupy-{VERSION}"
    return cache / f"cupy-{VERSION}"


def _unpack(archive: Path, into: Path) -> None:
    with tarfile.open(archive) as members:
        members.extractall(into, filter="data")


def resolve(tests: Path, directory: str) -> list[Path]:
    """'core/test_ndarray*.py' -> the files of cupy_tests/core_tests; '' is all of cupy_tests."""
    parts = [p for p in directory.split("/") if p]
    place = tests / ("cupyx_tests" if parts[:1] == ["cupyx"] else "cupy_tests")
    for part in parts[1:] if parts[:1] == ["cupyx"] else parts:
        if "*" in part:
            found = sorted(place.glob(part))
            if not found:
                raise SystemExit(f"no tests match {directory!r}")
            return found
        place = place / part if (place / part).exists() else place / f"{part}_tests"
    if not place.exists():
        raise SystemExit(f"no tests are called {directory!r}")
    return [place]


class Server:
    """One rgpu-server with two cpu devices on a free port of loopback."""

    def __init__(self, number: int, work: Path, options: argparse.Namespace) -> None:
        self.log = work / f"server{number}.log"
        path = os.pathsep.join(filter(None, [options.mutant, os.environ.get("PYTHONPATH")]))
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "rgpu.server",
                    "--devices",
                    "cpu:2",
                    "--port",
                    "0",
                    "--name",
                    f"host{number}",
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=work,
                env={**os.environ, "PYTHONPATH": path},
            )

    def address(self) -> str:
        """host:port, when it listens. Polls the log: the server says its port nowhere else."""
        for _ in range(600):
            found = re.search(r"listening on tcp://(\S+)", self.log.read_text())
            if found:
                return found[1]
            try:
                self.process.wait(0.1)
                break
            except subprocess.TimeoutExpired:
                pass
        raise SystemExit(f"a server did not start:\n{self.log.read_text()[-2000:]}")

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


if __name__ == "__main__":
    sys.exit(main())
