"""The terms of a lease: how many devices, how much of each, for how long, and which ones will do.

Values only; how texts become values is said in ``config`` and ``filters``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from rgpu.config import Quota
from rgpu.leases.filters import Filter


@dataclass(frozen=True)
class Client:
    """Who asks. ``key`` was proven ("": a server without keys); the rest is as they said, shown in rgpu-smi and never
    trusted for anything."""

    user: str
    host: str
    pid: int
    program: str
    key: str = ""


@dataclass(frozen=True)
class Terms:
    """``memory`` bytes and ``compute`` share of each of ``count`` devices; 0: not asked for, so what is there is
    shared with the others. ``fraction`` of a device's memory instead of bytes. ``seconds`` 0: as long as it is
    used. ``devices``: only these (positions among the candidates); empty: any."""

    count: int = 1
    memory: int = 0
    fraction: float = 0.0
    compute: float = 0.0
    seconds: float = 0.0
    filters: tuple[Filter, ...] = ()
    placement: str = "spread"
    devices: tuple[int, ...] = ()

    def memory_of(self, total: int) -> int:
        """The bytes asked for of a device with ``total`` bytes."""
        return self.memory or math.ceil(total * self.fraction)

    def on(self, devices: tuple[int, ...]) -> Terms:
        """The same for exactly these devices."""
        return replace(self, devices=devices, count=len(devices), filters=(), placement="spread")

    def among(self, positions: Sequence[int]) -> Terms:
        """The same, of these devices only."""
        return replace(self, devices=tuple(positions))

    def __str__(self) -> str:
        parts = [f"{self.count} device{'s' if self.count != 1 else ''}"]
        if self.memory:
            parts.append(f"{show_bytes(self.memory)} of each")
        if self.fraction:
            parts.append(f"{self.fraction:.0%} of the memory of each")
        if self.compute:
            parts.append(f"a share of {self.compute:g}")
        if self.filters:
            parts.append(", ".join(map(str, self.filters)))
        return ", ".join(parts)


@dataclass(frozen=True)
class Quotas:
    """``*`` stands for everybody who is not named."""

    named: dict[str, Quota] = field(default_factory=dict)

    def of(self, user: str) -> Quota:
        return self.named.get(user) or self.named.get("*") or Quota(user)


def show_bytes(count: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count} bytes"
