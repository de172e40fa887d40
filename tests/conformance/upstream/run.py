"""Runs CuPy's own tests, unmodified, with cupy bound to rgpu over two servers with two cpu devices each.

Started by ``scripts/conformance``. The tests come from CuPy's source distribution, are copied to
a temporary directory with its pyproject.toml, and know nothing of rgpu. Prints a table by
directory and writes the failing tests to a JSON file. Must not change a test.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

VERSION = "14.2.0"
HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
T1 = "math manipulation creation indexing logic sorting statistics linalg binary padding polynomial lib io"
TIERS = {
    "T1": [*T1.split(), "core/test_ndarray*.py"],
    "T2": "random fft functional core/fusion".split(),
    "core": ["core"],
    "all": [""],
}


def main() -> int:
    options = parse()
    with tempfile.TemporaryDirectory(prefix="rgpu-conformance-") as name:
        work = Path(name)
        sdist = find_sdist(options.sdist, work)
        shutil.copytree(sdist / "tests", work / "run" / "tests")
        shutil.copy(sdist / "pyproject.toml", work / "run")
        targets = [t for d in options.dirs for t in resolve(work / "run" / "tests", d)]
        servers = [Server(number, work, options) for number in (1, 2)]
        try:
            environment = {
                **os.environ,
                "RGPU_SERVERS": ",".join(server.address() for server in servers),
                "RGPU_CONFORMANCE_SDIST": str(sdist),
                "RGPU_CONFORMANCE_REPORT": str(work / "report.jsonl"),
                "RGPU_CHECK_PREDICTION": os.environ.get("RGPU_CHECK_PREDICTION", "1"),
                "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]),
            }
            # Deprecations that CuPy turns into errors may be our environment's own.
            command = [
                sys.executable,
                "-m",
                "pytest",
                "-c",
                "pyproject.toml",
                "-p",
                "cupy_on_rgpu",
                "-p",
                "no:cacheprovider",
                "-q",
                "--tb=short" if options.verbose else "--tb=line",
                "--no-header",
                "--continue-on-collection-errors",
                f"--timeout={options.test_timeout}",
                *options.pytest,
                *map(str, targets),
            ]
            if not options.slow:
                command += ["-m", "not slow"]
            if options.k:
                command += ["-k", options.k]
            if options.jobs > 1:
                command += ["-n", str(options.jobs), "--dist", "loadfile"]
            if options.output_tail:
                command.append("--show-capture=no")
            log = None if options.verbose else (work / "pytest.log").open("w")
            try:
                subprocess.run(
                    command,
                    cwd=work / "run",
                    env=environment,
                    stdout=log,
                    stderr=subprocess.STDOUT if log else None,
                    timeout=options.timeout,
                )
            except subprocess.TimeoutExpired:
                print(f"stopped after {options.timeout} s", file=sys.stderr)
            if log and not (work / "report.jsonl").exists():
                print((work / "pytest.log").read_text()[-4000:])
                return 2
            return report(work / "report.jsonl", Path(options.json), options.failures)
        finally:
            for server in servers:
                server.stop()


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
    parser.add_argument(
        "--sdist", help=f"CuPy {VERSION}'s source distribution, packed or not (default: download)"
    )
    parser.add_argument("--json", default="conformance.json", help="where the failing tests are listed")
    parser.add_argument("--failures", type=int, default=30, help="how many kinds of failure to show")
    parser.add_argument("--timeout", type=float, default=3600, help="seconds for the whole run")
    parser.add_argument("--test-timeout", type=float, default=60, help="seconds for one test")
    parser.add_argument("--slow", action="store_true", help="also those that CuPy marks as slow (gigabytes)")
    parser.add_argument("--blocking", action="store_true", help="RGPU_LAUNCH_BLOCKING=1")
    parser.add_argument("-v", "--verbose", action="store_true", help="show pytest's own output")
    parser.add_argument("--output-tail", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("pytest", nargs="*", help="after --: arguments for pytest")
    options = parser.parse_args()
    options.dirs += [directory for tier in options.tier for directory in TIERS[tier]]
    options.dirs = options.dirs or TIERS["T1"]
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
        given = str(work / f"cupy-{VERSION}.tar.gz")
        into = cache
    else:
        into = work / "sdist" if given else cache
    if given:
        with tarfile.open(given) as archive:
            archive.extractall(into, filter="data")
    return into / f"cupy-{VERSION}"


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


def report(lines: Path, output: Path, show: int) -> int:
    """The table by directory; failing tests to ``output``. 0 if everything passed."""
    results, stats, stood_in = {}, {}, []
    for text in lines.read_text().splitlines() if lines.exists() else ():
        line = json.loads(text)
        if "stats" in line:
            stats = {k: stats.get(k, 0) + v for k, v in line["stats"].items()}
            stood_in = sorted({*stood_in, *line["stood_in"]})
        else:
            results[line["node"]] = line
    table: dict[str, collections.Counter] = collections.defaultdict(collections.Counter)
    for node, line in results.items():
        table[directory_of(node)][line["outcome"]] += 1
    print(f"{'':48s} {'pass':>7s} {'fail':>6s} {'error':>6s} {'skip':>6s} {'% of run':>9s}")
    total: collections.Counter = collections.Counter()
    for name in sorted(table):
        print(row(name, table[name]))
        total.update(table[name])
    print(row("total", total))
    failing = [line for line in results.values() if line["outcome"] in ("failed", "error")]
    output.write_text(
        json.dumps(
            {
                "totals": {k: dict(v) for k, v in table.items()},
                "stats": stats,
                "failing": failing,
                "stood_in": stood_in,
            },
            indent=1,
        )
    )
    groups = collections.defaultdict(list)
    for line in failing:
        groups[essence(line["message"])].append(line["node"].split("cupy_tests/")[-1])
    for message, nodes in sorted(groups.items(), key=lambda item: -len(item[1]))[:show]:
        print(
            f"{len(nodes):5d} x {message}\n        {nodes[0]}"
            + (f"\n        {nodes[-1]}" if len(nodes) > 1 else "")
        )
    print(f"the client sent {stats.get('commands', 0)} commands; failing tests are in {output}")
    return 1 if failing or not results else 0


def essence(message: str) -> str:
    """The line that names the error, with numbers taken out so that equal causes fall together."""
    lines = [
        line.strip()
        for line in message.splitlines()
        if re.match(r"\s*(E +)?[\w.]*(Error|Warning|Exception)\b", line)
    ]
    return re.sub(r"0x[0-9a-f]+|\b\d+\b", "#", (lines or message.strip().splitlines()[-1:] or [""])[-1])[:220]


def directory_of(node: str) -> str:
    path = node.split("::")[0].removeprefix("tests/").removeprefix("cupy_tests/")
    parts = path.split("/")
    return path if parts[0] == "core_tests" else "/".join(parts[:-1]) or path


def row(name: str, count: collections.Counter) -> str:
    passed, failed, error, skipped = (count[k] for k in ("passed", "failed", "error", "skipped"))
    ran = passed + failed + error
    return f"{name:48s} {passed:7d} {failed:6d} {error:6d} {skipped:6d} {100 * passed / max(ran, 1):8.1f}%"


if __name__ == "__main__":
    sys.exit(main())
