"""A device as the daemon sees it, and a reading of it. Facts only; who reads them is in telemetry and nvml."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Device:
    """One device of this server; ``visible`` is how a CUDA worker is told to see only this one."""

    index: int
    kind: str
    name: str
    memory_total: int
    visible: str = ""
    properties: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Reading:
    """What a device does now; ``details`` has temperature, power, clocks, ... where the device tells them."""

    memory_used: int
    utilization: int
    details: dict[str, Any] = field(default_factory=dict)
