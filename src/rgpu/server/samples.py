"""The last two minutes of every device, a reading a second: what `rgpu-smi -q -d POWER` tells of highest, lowest, mean.

Bounded: ``KEPT`` readings a device, the oldest goes when one comes. Reads what the inventory has anyway.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rgpu.server.device import Device, Reading

SECONDS = 1.0  # between readings, as NVML takes them
KEPT = 120
NAMES = (
    "utilization",
    "utilization_memory",
    "utilization_encoder",
    "utilization_decoder",
    "power",
    "clock_sm",
    "clock_memory",
)


class _Sample(NamedTuple):
    """One reading: when it was taken, and the values of ``NAMES`` (None: the device does not tell)."""

    moment: float
    values: tuple[float | None, ...]


class Samples:
    """``read`` gives a device's reading now. One thread: the daemon's."""

    def __init__(self, devices: Sequence[Device], read: Callable[[Device], Reading]) -> None:
        self._read, self._due = read, 0.0
        self._kept: list[tuple[Device, deque[_Sample]]] = [(device, deque(maxlen=KEPT)) for device in devices]
        self._told: dict[int, dict[str, list[float]]] = {}  # summaries, until the next readings

    def tick(self, now: float) -> None:
        """Take readings, if a second has passed since the last ones."""
        if now < self._due:
            return
        self._due = now + SECONDS
        self._told.clear()
        for device, kept in self._kept:
            reading = self._read(device)
            if "reading_age" not in reading.details:  # a card that has stopped answering has no new values
                kept.append(_Sample(now, _values(reading)))

    def summary(self, index: int) -> dict[str, list[float]]:
        """Of the device with this number, by name: seconds from the oldest reading to the newest, how many, highest,
        lowest and mean value. What it does not tell is not there."""
        if index not in self._told:
            kept = self._kept[index][1]
            self._told[index] = {name: found for k, name in enumerate(NAMES) if (found := _summary(kept, k))}
        return self._told[index]


def _values(reading: Reading) -> tuple[float | None, ...]:
    details, clocks = reading.details, reading.details.get("clocks") or {}
    return (
        reading.utilization,
        details.get("utilization_memory"),
        details.get("utilization_encoder"),
        details.get("utilization_decoder"),
        details.get("power"),
        clocks.get("sm"),
        clocks.get("memory"),
    )


def _summary(kept: Sequence[_Sample], which: int) -> list[float]:
    known = [(sample.moment, value) for sample in kept if (value := sample.values[which]) is not None]
    if not known:
        return []
    values = [value for _, value in known]
    return [known[-1][0] - known[0][0], len(values), max(values), min(values), sum(values) / len(values)]
