"""`rgpu-smi topo -b`: what the ways between the workers of a pool can do, measured by copies between its devices.

The one part of rgpu-smi that leases devices, and so loads the array side; it gives them back at once.
"""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rgpu.errors import PerformanceWarning, RgpuError
from rgpu.smi.text import MISSING

SECONDS = 0.2  # for each of the two measurements of a pair
BIG = 8 << 20  # bytes of a copy that measures bandwidth
CHAIN = 20  # copies to and fro that wait for each other


@dataclass(frozen=True)
class Way:
    """From one worker to another and back: seconds, bytes a second, and whether the client was in between."""

    rtt: float
    bandwidth: float
    relayed: bool

    def __str__(self) -> str:
        by = " (by the client)" if self.relayed else ""
        return f"{1e6 * self.rtt:.0f} us, {self.bandwidth / 1e9:.2f} GB/s{by}"


def measure(servers: Sequence[dict[str, Any]], seconds: float = SECONDS) -> dict[tuple[int, int], Way | str]:
    """For each pair of the devices in a picture, by their numbers in the pool, the lower one first; the reason where it
    could not be measured."""
    import rgpu as cp

    warnings.simplefilter("ignore", PerformanceWarning)  # copies between devices are what is measured
    reached = [server for server in servers if server["reachable"] and server["devices"]]
    pool = cp.connect(*[server["address"] for server in reached])
    try:
        ordinals = {(str(device.daemon.address), device.index): device.ordinal for device in pool.devices}
        numbers = {
            device["pool_index"]: ordinals[server["address"], device["index"]]
            for server in reached
            for device in server["devices"]
        }
        found: dict[tuple[int, int], Way | str] = {}
        for first, second in itertools.combinations(sorted(numbers), 2):
            try:
                found[first, second] = _way(cp, numbers[first], numbers[second], seconds)
            except (RgpuError, MemoryError) as error:
                found[first, second] = str(error).partition(":")[0]
        return found
    finally:
        cp.close()


def _way(cp: Any, first: int, second: int, seconds: float) -> Way:
    before = cp.stats()["relayed_bytes"]

    def pair(size: int) -> tuple[Any, Any]:
        arrays = []
        for device in (first, second):
            with cp.cuda.Device(device):
                arrays.append(cp.zeros(size, "u1"))
        return arrays[0], arrays[1]

    def wait() -> None:
        for device in (first, second):
            cp.cuda.Device(device).synchronize()

    (near, far), (here, there) = pair(8), pair(BIG)

    def to_and_fro() -> None:
        for _ in range(CHAIN):  # each copy waits for the one before, on the workers; nobody else does
            cp.copyto(far, near)
            cp.copyto(near, far)
        wait()

    def over() -> None:
        cp.copyto(there, here)
        wait()

    return Way(
        _least(to_and_fro, seconds) / CHAIN,
        BIG / _least(over, seconds),
        cp.stats()["relayed_bytes"] > before,
    )


def _least(action: Callable[[], None], seconds: float) -> float:
    """The shortest time of an action, of at least three, after one that does not count."""
    action()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while (began := time.perf_counter()) < end or len(times) < 3:
        action()
        times.append(time.perf_counter() - began)
    return min(times)


def matrix(numbers: Sequence[int], ways: dict[tuple[int, int], Way | str]) -> str:
    """What was measured, a line a device."""
    lines = ["Between workers: round trip, bandwidth", "\t".join(["", *(f"GPU{number}" for number in numbers)])]
    for row in numbers:
        cells = [
            " X " if row == column else str(ways.get((min(row, column), max(row, column)), MISSING))
            for column in numbers
        ]
        lines.append("\t".join([f"GPU{row}", *cells]))
    return "\n".join(lines)
