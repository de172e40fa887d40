"""What scripts/bench makes of its measurements: rows, their table, and the document around it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import targets

Samples = dict[str, list[float]]


@dataclass
class Row:
    """``ratio`` is ours to the anchor: below 1 is better where smaller is better (times), above 1 for rates."""

    section: str
    name: str
    ours: float
    low: float
    high: float
    unit: str
    anchor: str = ""
    anchor_value: float | None = None

    @property
    def ratio(self) -> float | None:
        return self.ours / self.anchor_value if self.anchor_value else None


def in_turn(functions: dict[str, Callable[[], float]], runs: int) -> Samples:
    """Samples of several measurements, taken in turn so that all of them meet the same machine."""
    found: Samples = {name: [] for name in functions}
    for _ in range(runs):
        for name, function in functions.items():
            found[name].append(function())
    return found


def row(section: str, name: str, samples: list[float], unit: str, anchor: str = "", against: Any = None) -> Row:
    value = None if against is None else statistics.median(against)
    return Row(section, name, statistics.median(samples), min(samples), max(samples), unit, anchor, value)


def wall(function: Callable[[], Any], times: int = 1) -> float:
    """Seconds of one call."""
    began = time.perf_counter()
    for _ in range(times):
        function()
    return (time.perf_counter() - began) / times


def table(rows: list[Row], backend: str) -> str:
    """Markdown, aligned; targets are those of the backend."""
    head = ["", "what", "ours", "spread", "against", "", "ratio", "target"]
    cells = [head, ["---"] * len(head)]
    for r in rows:
        anchor = "" if r.anchor_value is None else f"{r.anchor_value:.3g} {r.unit}"
        ratio = "" if r.ratio is None else f"{r.ratio:.2f}"
        spread = f"{r.low:.3g} .. {r.high:.3g}"
        ours = f"{r.ours:.3g} {r.unit}".strip()
        cells.append([r.section, r.name, ours, spread, r.anchor, anchor, ratio, targets.verdict(r, backend)])
    widths = [max(len(line[i]) for line in cells) for i in range(len(head))]
    return "\n".join("| " + " | ".join(cell.ljust(n) for cell, n in zip(line, widths)) + " |" for line in cells)


@dataclass(frozen=True)
class Document:
    name: str
    title: str
    command: str
    words: str  # on how to read the table


DOCUMENTS = {
    "cpu": Document(
        "performance.md", "Performance", "scripts/bench --write",
        "Client, worker and\ntheir link's threads share the machine's cores with whatever else its load says. "
        "Targets in us and M/s were\nset on a machine whose NumPy needs 0.213 us for a small addition; "
        'one that is missed and compared with that addition is\ntold to the scale of this machine as well ("here"). '
        '"x" is the ratio.',
    ),
    "cupy": Document(
        "performance-gpu.md", "Performance on a GPU", "scripts/bench --backend cupy --write",
        "CuPy works in the client's process, rgpu's worker in\nanother, on the same GPU in turn. "
        '"x" is the ratio. Left out are the worker\'s loop in process and other systems,\nwhich tell of cpu devices: '
        "those are in [Performance](performance.md).",
    ),
}  # fmt: skip
_SAMPLES = (
    "A sample of `bulk` below 16 MiB is calls back to back that move 16 MiB together, at most 100, for ours and for\n"
    "what it is compared with: a single call would measure how long a peer that sleeps takes to wake. What that takes\n"
    'is in the rows "after a pause": single calls, each after 10 ms in which nobody did anything.'
)


def document(about: dict, rows: list[Row], backend: str) -> str:
    described, made = ", ".join(f"{key} {value}" for key, value in about.items()), DOCUMENTS[backend]
    return (
        f"# {made.title}\n\nMade by `{made.command}`; not edited by hand.\n\n"
        f"Machine: {described}.\n\nMedians; each row and what it is compared with were measured in turn, in one run. "
        f"A ratio below 1 is better for times (us, ms) and memory, above 1 for rates (M/s, GB/s). {made.words}\n\n"
        f"{_SAMPLES}\n\n{table(rows, backend)}\n"
    )
