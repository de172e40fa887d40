"""`rgpu-smi topo -b`: what the links between the workers of a pool can do, measured by the workers themselves.

The one part of rgpu-smi that leases devices, and so loads the array side; it gives them back at once. The servers
remember what was measured, and who asks for several devices gets well connected ones (``leases.nearness``).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rgpu.errors import RgpuError
from rgpu.smi.text import MISSING


@dataclass(frozen=True)
class Way:
    """From one worker to another: the kind of link (empty: only through the client), seconds of a round trip, bytes a
    second."""

    link: str
    rtt: float
    bandwidth: float

    def __str__(self) -> str:
        if not self.link:
            return "by the client"
        return f"{self.link}, {1e6 * self.rtt:.0f} us, {self.bandwidth / 1e9:.2f} GB/s"


def measure(servers: Sequence[dict[str, Any]]) -> dict[tuple[int, int], Way | str]:
    """For each pair of the devices in a picture, by their numbers in the pool, the lower one first; the reason where it
    could not be measured."""
    import rgpu as cp
    from rgpu.client import peer

    reached = [server for server in servers if server["reachable"] and server["devices"]]
    pool = cp.connect(*[server["address"] for server in reached])
    try:
        found_there = {(str(device.daemon.address), device.index): device for device in pool.devices}
        devices = {
            device["pool_index"]: found_there[server["address"], device["index"]]
            for server in reached
            for device in server["devices"]
        }
        found: dict[tuple[int, int], Way | str] = {}
        for first, second in itertools.combinations(sorted(devices), 2):
            try:
                found[first, second] = Way(**peer.measure(devices[first].stream, devices[second].stream))
            except (RgpuError, MemoryError) as error:
                found[first, second] = str(error).partition(":")[0]
        return found
    finally:
        cp.close()


def matrix(numbers: Sequence[int], ways: dict[tuple[int, int], Way | str]) -> str:
    """What was measured, a line a device."""
    lines = ["Between workers: link, round trip, bandwidth", "\t".join(["", *(f"GPU{number}" for number in numbers)])]
    for row in numbers:
        cells = [
            " X " if row == column else str(ways.get((min(row, column), max(row, column)), MISSING))
            for column in numbers
        ]
        lines.append("\t".join([f"GPU{row}", *cells]))
    return "\n".join(lines)
