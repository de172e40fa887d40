"""The ledger: which of CuPy's tests fail for a known reason, and which are not run at all.

``ledger.toml`` names tests by node id, one reason a group; ``*`` stands for anything. An entry that
fails nothing any more is stale and must go: the ledger may only shrink. Must not import rgpu.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
LEDGER = HERE / "ledger.toml"
TELLING = HERE / "telling.txt"


class Patterns:
    """Node ids below ``tests/``, some with ``*``. ``find`` returns the entry that names a test."""

    def __init__(self, entries: Iterable[str]) -> None:
        self.entries = list(entries)
        self._exact = {entry for entry in self.entries if "*" not in entry}
        self._wild: dict[str, list[tuple[re.Pattern, str]]] = {}  # by file; "" for patterns of many files
        for entry in self.entries:
            if "*" in entry:
                file = entry.partition("::")[0]
                regex = re.compile(".*".join(map(re.escape, entry.split("*"))), re.DOTALL)
                self._wild.setdefault("" if "*" in file else file, []).append((regex, entry))

    def find(self, node: str) -> str | None:
        node = node.removeprefix("tests/")
        if node in self._exact:
            return node
        candidates = [*self._wild.get(node.partition("::")[0], ()), *self._wild.get("", ())]
        return next((entry for regex, entry in candidates if regex.fullmatch(node)), None)


class Group(NamedTuple):
    """Tests with one reason. ``sometimes``: they may pass as well, and are never stale."""

    reason: str
    patterns: Patterns
    sometimes: bool = False


class Ledger:
    """``expected`` failures and ``excluded`` tests, each a list of groups."""

    def __init__(self, expected: list[Group], excluded: list[Group]) -> None:
        self.expected, self.excluded = expected, excluded

    def expects(self, node: str) -> tuple[Group, str] | None:
        return _find(self.expected, node)

    def excludes(self, node: str) -> tuple[Group, str] | None:
        return _find(self.excluded, node)


def _find(groups: list[Group], node: str) -> tuple[Group, str] | None:
    for group in groups:
        entry = group.patterns.find(node)
        if entry is not None:
            return group, entry
    return None


def load(path: Path = LEDGER) -> Ledger:
    """Read a ledger. ValueError for an entry that stands in it twice, or a group without a reason."""
    data = tomllib.loads(path.read_text())
    unknown = set(data) - {"expected", "excluded"}
    if unknown:
        raise ValueError(f"{path.name} has no section {sorted(unknown)}")
    seen: set[str] = set()

    def group(fields: dict) -> Group:
        if not fields.get("reason", "").strip() or not fields.get("tests"):
            raise ValueError(f"{path.name}: a group needs a reason and tests: {str(fields)[:100]}")
        twice = [t for t in fields["tests"] if t in seen or fields["tests"].count(t) > 1]
        if twice:
            raise ValueError(f"{path.name} names a test twice: {twice[0]}")
        seen.update(fields["tests"])
        return Group(fields["reason"], Patterns(fields["tests"]), bool(fields.get("sometimes", False)))

    return Ledger(*([group(fields) for fields in data.get(key, [])] for key in ("expected", "excluded")))


def telling() -> Patterns:
    """The tests that a bare alias of NumPy fails."""
    lines = TELLING.read_text().splitlines() if TELLING.exists() else []
    return Patterns(line for line in lines if line and not line.startswith("#"))


def folded(chosen: Iterable[str], everything: Iterable[str]) -> list[str]:
    """The chosen node ids, with one pattern for a test whose cases are chosen one and all."""
    chosen, families = set(chosen), {}
    for node in everything:
        families.setdefault(_family(node), []).append(node)
    result: set[str] = set()
    for pattern, nodes in families.items():
        inside = [node for node in nodes if node in chosen]
        result.update([pattern] if len(inside) == len(nodes) > 1 else inside)
    return sorted(result)


def _family(node: str) -> str:
    """A test without its parameters: those of pytest in brackets, those of cupy.testing in the class."""
    name = re.sub(r"\[.*\]$", "[*]", node, flags=re.DOTALL)
    return re.sub(r"_param_\d+_\{.*\}(?=::)", "_param_*", name, flags=re.DOTALL)
