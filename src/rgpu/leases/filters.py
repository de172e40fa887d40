"""Filters: which devices will do. ``name=*A100*``, ``memory>=40GiB``, ``capability>=8.0``, ``label.zone=a``.

A filter compares one fact of a device with a value: texts as shell patterns in any case, versions and amounts by
size. Bitfusion's names of the same facts (``device.phy-memory`` ...) are understood. A fact that a device does
not have fits no filter but ``!=``.
"""

from __future__ import annotations

import fnmatch
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rgpu.config import parse_bytes, parse_flag

_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge, "<=": operator.le, "!=": operator.ne, "=": operator.eq, ">": operator.gt, "<": operator.lt,
}  # fmt: skip
_FILTER = re.compile(r"([a-z][\w.-]*)\s*(>=|<=|!=|=|>|<)\s*(\S.*)", re.IGNORECASE)


def _version(value: Any) -> tuple[int, ...]:
    """``8.0``, ``535.104.05``, ``[8, 0]``."""
    parts = value if isinstance(value, (list, tuple)) else str(value).strip().split(".")
    numbers = [int(part) for part in parts]
    while len(numbers) > 1 and not numbers[-1]:
        numbers.pop()  # 12 and 12.0 are one version
    return tuple(numbers)


#: fact -> how a value of it is read; ``str`` facts are compared as patterns
_FACTS: dict[str, Callable[[Any], Any]] = {
    "server": str, "address": str, "host": str, "name": str, "kind": str, "uuid": str, "link": str, "mig": str,
    "index": int, "memory": parse_bytes, "capability": _version, "driver": _version, "cuda": _version,
    "rdma": parse_flag,
}  # fmt: skip

_BITFUSION = {
    "server.addr": "address", "server.hostname": "host", "server.has-rdma": "rdma", "server.cuda-version": "cuda",
    "server.driver-version": "driver", "device.id": "index", "device.name": "name", "device.phy-memory": "memory",
}  # fmt: skip


@dataclass(frozen=True)
class Filter:
    """``fact`` ``sign`` ``text``."""

    fact: str
    sign: str
    text: str

    def fits(self, facts: Mapping[str, Any]) -> bool:
        have, read = self._fact(facts), _FACTS.get(self.fact, str)
        if have is None or have == "":
            return self.sign == "!="
        if read is str:
            each = str(have).lower().split(",") if self.fact == "link" else [str(have).lower()]  # several are offered
            same = any(fnmatch.fnmatchcase(one, self.text.lower()) for one in each)
            return same == (self.sign == "=")
        try:
            return _OPERATORS[self.sign](read(have), read(self.text))
        except (ValueError, TypeError):  # a server may say anything of itself
            return False

    def _fact(self, facts: Mapping[str, Any]) -> Any:
        if self.fact.startswith("label."):
            labels = facts.get("labels")
            return labels.get(self.fact[6:]) if isinstance(labels, dict) else None
        if self.fact == "mig":
            instance = facts.get("mig")
            return instance.get("profile") if isinstance(instance, dict) else None
        return facts.get({"memory": "memory_total", "capability": "compute_capability"}.get(self.fact, self.fact))

    def __str__(self) -> str:
        return f"{self.fact}{self.sign}{self.text}"


def parse_filter(value: Any) -> Filter:
    """One filter from its text."""
    if isinstance(value, Filter):
        return value
    match = _FILTER.fullmatch(value.strip()) if isinstance(value, str) else None
    if not match:
        raise ValueError("a filter looks like name=*A100*, memory>=40GiB, capability>=8.0 or label.zone=a")
    given = match[1] if match[1].startswith("label.") else match[1].lower()
    fact, sign, text = _BITFUSION.get(given, given), match[2], match[3].strip()
    read = _FACTS.get(fact, str if fact.startswith("label.") else None)
    if read is None:
        raise ValueError(f"there is no fact {match[1]!r}; facts are {', '.join(_FACTS)} and label.NAME")
    if read in (str, parse_flag) and sign not in ("=", "!="):
        raise ValueError(f"{fact} has no order; compare it with = or !=")
    try:
        read(text)
    except (ValueError, TypeError):
        raise ValueError(f"{text!r} is no value of {fact}") from None
    return Filter(fact, sign, text)


def parse_filters(value: Any) -> tuple[Filter, ...]:
    """A text with commas between filters, or a list of them."""
    parts = value.split(",") if isinstance(value, str) else list(value)
    return tuple(parse_filter(part) for part in parts if not isinstance(part, str) or part.strip())
