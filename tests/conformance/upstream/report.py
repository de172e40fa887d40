"""What a run of CuPy's tests amounts to: the table by directory, compared with the ledger.

``Results`` is what one or several runs have seen; ``show`` prints it and says whether it is good. Writes the
table into docs/conformance.md when asked. Must not import rgpu.
"""

from __future__ import annotations

import collections
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import ledger as ledgers

TELLING_ROW = "tests that tell NumPy from CuPy"
BAD = ("failed", "error")
_BEGIN, _END = "<!-- table {}: begin (scripts/conformance --docs {}) -->", "<!-- table {}: end -->"


class Results:
    """The last outcome of each test, and the counters of the runs."""

    def __init__(self) -> None:
        self.lines: dict[str, dict] = {}
        self.stats: dict[str, int] = {}
        self.stood_in: set[str] = set()
        self.runs: list[dict] = []
        self.incomplete = False
        self.counted = True  # every run has said at its end what it sent

    def read(self, path: Path) -> Results:
        """Add what the pytest plugin wrote while it ran."""
        for text in path.read_text().splitlines() if path.exists() else ():
            line = json.loads(text)
            if "stats" in line:
                self.count(line["stats"])
                self.stood_in.update(line["stood_in"])
            else:
                self.lines[line["node"]] = line
        return self

    def merge(self, path: Path) -> Results:
        """Add what an earlier run saved."""
        saved = json.loads(path.read_text())
        self.lines.update({node: {"node": node, "outcome": o, "message": ""} for node, o in saved["results"].items()})
        self.lines.update({line["node"]: line for line in saved["failing"]})
        self.count(saved["stats"])
        self.counted &= bool(saved["stats"])
        self.stood_in.update(saved["stood_in"])
        self.runs += saved["runs"]
        return self

    def count(self, stats: dict) -> None:
        self.stats = {key: self.stats.get(key, 0) + value for key, value in stats.items()}

    def save(self, path: Path) -> None:
        outcomes = {node: line["outcome"] for node, line in self.lines.items() if line["outcome"] not in BAD}
        failing = [line for line in self.lines.values() if line["outcome"] in BAD]
        saved = {"runs": self.runs, "stats": self.stats, "stood_in": sorted(self.stood_in)}
        path.write_text(json.dumps({**saved, "results": outcomes, "failing": failing}, indent=1))


class Judged:
    """Results seen through the ledger: an outcome of its own for what is expected to fail."""

    def __init__(self, results: Results, ledger: ledgers.Ledger) -> None:
        self.table: dict[str, collections.Counter] = collections.defaultdict(collections.Counter)
        self.telling: collections.Counter = collections.Counter()
        self.by_reason: collections.Counter = collections.Counter()
        self.unexpected: list[dict] = []
        self.stale: list[str] = []  # expected failures that pass
        telling = ledgers.telling()
        seen: dict[str, list[bool]] = collections.defaultdict(list)  # entry of the ledger -> whether its tests failed
        for node, line in results.lines.items():
            outcome = "failed" if line["outcome"] in BAD else line["outcome"]
            excluded, expected = ledger.excludes(node), ledger.expects(node)
            if excluded:
                outcome = "excluded"
                self.by_reason["excluded", excluded[0].reason] += 1
            elif expected and outcome != "skipped":
                seen[expected[1]].append(outcome == "failed")
                if outcome == "failed":
                    outcome = "expected"
                    self.by_reason["expected", expected[0].reason] += 1
                elif not expected[0].sometimes:
                    self.stale.append(node)
            if outcome == "failed":
                self.unexpected.append(line)
            self.table[directory_of(node)][outcome] += 1
            if telling.find(node):
                self.telling[outcome] += 1

    @property
    def total(self) -> collections.Counter:
        return sum(self.table.values(), collections.Counter())

    def rows(self) -> Iterable[tuple[str, collections.Counter]]:
        yield from sorted(self.table.items())
        yield "total", self.total
        yield TELLING_ROW, self.telling


def show(results: Results, judged: Judged, kinds: int, strict: bool) -> int:
    """Print it all. 0 if nothing failed that the ledger does not expect."""
    columns = "pass fail expected skip excluded".split()
    print(f"{'':42s}" + "".join(f" {name:>9s}" for name in columns) + f" {'% of run':>9s}")
    for name, count in judged.rows():
        print(f"{name:42s}" + "".join(f" {n:9d}" for n in _figures(count)) + f" {_rate(count):>9s}")
    for (kind, reason), number in sorted(judged.by_reason.items()):
        print(f"{kind:>9s} {number:6d}  {reason}")
    groups = collections.defaultdict(list)
    for line in judged.unexpected:
        groups[essence(line["message"])].append(line["node"].split("cupy_tests/")[-1])
    for message, nodes in sorted(groups.items(), key=lambda item: -len(item[1]))[:kinds]:
        print(f"{len(nodes):5d} x {message}\n        {nodes[0]}" + (f"\n        {nodes[-1]}" if nodes[1:] else ""))
    for node in judged.stale[:200]:
        print(f"expected to fail and passes, remove it from the ledger: {node.removeprefix('tests/')}")
    issued, executed = results.stats.get("issued", 0), results.stats.get("executed", 0)
    print(
        f"the client sent {results.stats.get('commands', 0)} commands; of the sessions alive at the end it sent "
        f"{issued}, and the servers executed {executed}"
    )
    if issued != executed:
        print("the servers did not execute what the client sent")
        return 1
    bad = judged.unexpected or not results.lines or results.incomplete
    return 1 if bad or (strict and judged.stale) else 0


def write_docs(path: Path, table: str, results: Results, judged: Judged) -> None:
    """Put the table between its marks in a Markdown file. SystemExit if it has no such table."""
    lines = [f"Generated by `scripts/conformance --docs` from runs of {_when(results.runs)}.", ""]
    lines += ["| | pass | fail | expected | skip | excluded | of run |", "|---|---|---|---|---|---|---|"]
    for name, count in judged.rows():
        if name == TELLING_ROW and not count:
            continue
        lines.append(f"| {name} | " + " | ".join(f"{n}" for n in _figures(count)) + f" | {_rate(count)} |")
    lines += ["", "| | tests | reason |", "|---|---|---|"]
    lines += [f"| {kind} | {number} | {reason} |" for (kind, reason), number in sorted(judged.by_reason.items())]
    if "commands" in results.stats and results.counted:
        lines += ["", f"The clients of these runs sent {results.stats['commands']:,} commands."]
    text = path.read_text()
    begin, end = (mark.format(table, table) for mark in (_BEGIN, _END))
    if begin not in text or end not in text:
        raise SystemExit(f"{path.name} has no table {table!r}")
    before, after = text.split(begin)[0], text.split(end)[1]
    path.write_text(f"{before}{begin}\n\n" + "\n".join(lines) + f"\n\n{end}{after}")


def _when(runs: list[dict]) -> str:
    dates = sorted({run["date"] for run in runs})
    machines = sorted({f"{run['machine']}, {run['versions']}" for run in runs})
    return " to ".join(dict.fromkeys([dates[0], dates[-1]])) + " on " + "; ".join(machines)


def _figures(count: Any) -> list[int]:
    return [count[key] for key in ("passed", "failed", "expected", "skipped", "excluded")]


def _rate(count: Any) -> str:
    """Passed of what ran; an expected failure is a failure."""
    ran = count["passed"] + count["failed"] + count["expected"]
    return f"{100 * count['passed'] / max(ran, 1):.2f}%"


def essence(message: str) -> str:
    """The line that names the error, with numbers taken out so that equal causes fall together."""
    lines = [
        line.strip() for line in message.splitlines() if re.match(r"\s*(E +)?[\w.]*(Error|Warning|Exception)\b", line)
    ]
    return re.sub(r"0x[0-9a-f]+|\b\d+\b", "#", (lines or message.strip().splitlines()[-1:] or [""])[-1])[:220]


def directory_of(node: str) -> str:
    path = node.split("::")[0].removeprefix("tests/").removeprefix("cupy_tests/")
    parts = path.split("/")
    return path if parts[0] == "core_tests" else "/".join(parts[:-1]) or path
