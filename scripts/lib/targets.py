"""What the rows of scripts/bench are to reach: limits of the value, or of its ratio to the anchor of the same run.

Limits in us and M/s were set on a machine whose NumPy needs 0.213 us for a small addition; where that addition is the
anchor they are told to the scale of this machine as well. Ratios hold anywhere.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

_ADDITION = 0.213  # us, of NumPy's where the limits were set


@dataclass(frozen=True)
class Target:
    """``of``: a unit for the value, "x" for the ratio, "+us" for what is above the anchor."""

    section: str
    name: str  # expressions that the row's words match as a whole
    anchor: str
    sign: str
    limit: float
    of: str

    def __str__(self) -> str:
        return f"{self.sign} {self.limit:.3g} {self.of}".rstrip()

    def fits(self, row: Any) -> bool:
        return self.section == row.section and all(
            re.fullmatch(pattern, text) for pattern, text in ((self.name, row.name), (self.anchor, row.anchor))
        )

    def here(self, row: Any) -> float | None:
        """The limit to the scale of this machine, where the row says what NumPy's addition needs."""
        if not row.anchor_value or not row.anchor.startswith("NumPy"):
            return None
        if self.section == "issue" and self.of == "us":
            return self.limit * row.anchor_value / _ADDITION
        if self.section == "pipeline" and self.of == "M/s":
            return self.limit * row.anchor_value * _ADDITION
        return None

    def verdict(self, row: Any) -> str:
        value = {"x": row.ratio, "+us": row.ours - (row.anchor_value or 0.0)}.get(self.of, row.ours)
        if self._within(value, self.limit):
            return f"{self} met"
        here = self.here(row)
        if here is None:
            return f"{self} MISSED"
        return f"{self} MISSED, {here:.2g} here {'met' if self._within(value, here) else 'MISSED'}"

    def _within(self, value: float, limit: float) -> bool:
        return value <= limit if self.sign == "<=" else value >= limit


_LARGE = r"(1|16|256|1024) MiB (up|down)"
_STEP = "(MLP|CNN|the same).*"
_ALWAYS = (
    Target("issue", r".* \(pure Python\)", ".*", "<=", 0.6, "us"),
    Target("issue", ".*", ".*", "<=", 0.05, "us"),
    Target("round trips", "to connect .*", ".*", "<=", 3, ""),
    Target("round trips", ".* reads nothing", ".*", "<=", 0, ""),
    Target("round trips", ".*", ".*", "<=", 1, ""),
    Target("training", ".* at [0-9]+ ms", "the line at 0 ms", "<=", 1.05, "x"),
    Target("start", "import", ".*", "<=", 150, "ms"),
)
#: by what the server's devices are
TARGETS = {
    "cpu": (
        *_ALWAYS,
        Target("pipeline", r"a \+ b, 1 .*\(pure Python\)", ".*", ">=", 0.8, "M/s"),
        Target("pipeline", r"a \+ b, 1 device\(s\)", ".*", ">=", 2.5, "M/s"),
        Target("pipeline", r"worker: .*\(pure Python\)", ".*", "<=", 0.4, "+us"),
        Target("pipeline", "worker: .*", ".*", "<=", 1.0, "x"),
        Target("waiting", "tcp: .*", "raw TCP", "<=", 1.2, "x"),
        Target("waiting", "shm: .*", "raw TCP", "<=", 5, "us"),
        Target("bulk", f"tcp: {_LARGE}", "raw TCP", ">=", 1.0, "x"),
        Target("bulk", f"tcp, with keys: {_LARGE}", "raw TCP", ">=", 0.5, "x"),
        Target("bulk", f"shm: {_LARGE}", "memcpy", ">=", 0.75, "x"),
        Target("training", ".*small one, its loss .*", "NumPy.*", "<=", 1 / 0.95, "x"),
        Target("training", _STEP, "NumPy.*", "<=", 1 / 0.98, "x"),
        Target("start", "connect.*", ".*", "<=", 300, "ms"),
    ),
    "cupy": (
        *_ALWAYS,
        Target("training", f"{_STEP}, eager", "CuPy.*", "<=", 1 / 0.98, "x"),
        Target("training", f"{_STEP}, with replay", "CuPy.*", "<=", 1 / 1.3, "x"),
    ),
}


def verdict(row: Any, backend: str) -> str:
    """The target of a row and whether it is met; empty where there is none."""
    target = next((target for target in TARGETS[backend] if target.fits(row)), None)
    return "" if target is None else target.verdict(row)
