"""Where a worker's threads and memory belong on a host with several NUMA nodes: beside the device.

Reads /sys and moves threads; memory follows by first touch. A host with one node, or a device whose node the kernel
does not tell, is left alone. Knows no backend.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

SYS = Path("/sys")


def cpus(text: str) -> set[int]:
    """``0-3,8,10-11`` as the kernel writes lists of CPUs."""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def nodes(root: Path = SYS) -> dict[int, set[int]]:
    """The nodes that have CPUs which this process may use: number -> those CPUs."""
    allowed, found = os.sched_getaffinity(0), {}
    for path in root.glob("devices/system/node/node[0-9]*/cpulist"):
        with contextlib.suppress(OSError, ValueError):
            found[int(path.parent.name[4:])] = cpus(path.read_text()) & allowed
    return {number: found[number] for number in sorted(found) if found[number]}


def near(device: int, pci: str = "", root: Path = SYS) -> set[int]:
    """The CPUs beside a device: those of its PCI address' node, or for a device that is made of the host's own CPUs
    (no address) those of one node, the devices spread over all. Empty: there is nothing to choose."""
    found = nodes(root)
    if len(found) < 2:
        return set()
    if not pci:
        return found[list(found)[device % len(found)]]
    try:
        node = int((_bus(pci, root) / "numa_node").read_text())
    except (OSError, ValueError):
        return set()
    return found.get(node, set())  # -1: the firmware does not know


def beside(pci: str = "", root: Path = SYS) -> dict[str, Any]:
    """What `topo` shows of a device: the CPUs beside it as the kernel writes them, and their node where it has one."""
    found: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        place = _bus(pci, root) if pci else root / "devices/system/cpu"
        found["cpu_affinity"] = (place / ("local_cpulist" if pci else "online")).read_text().strip()
        node = int((place / "numa_node").read_text()) if pci else 0
        if node >= 0 and (pci or len(nodes(root)) == 1):
            found["numa_affinity"] = node
    return found


def _bus(pci: str, root: Path) -> Path:
    domain, _, rest = pci.lower().partition(":")  # CUDA writes it with four or eight digits, the kernel with four
    return root / f"bus/pci/devices/{int(domain, 16):04x}:{rest}"


def settle(chosen: set[int]) -> None:
    """Move every thread of this process there; those that it starts later follow the one that starts them."""
    for thread in map(int, os.listdir("/proc/self/task") if chosen else ()):
        with contextlib.suppress(OSError):  # a thread that has ended, or a host that forbids it
            os.sched_setaffinity(thread, chosen)
