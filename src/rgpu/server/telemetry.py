"""The devices of this host and what they are doing: `nvml` for GPUs, /proc and /sys for cpu devices.

Reading must never fail or wait because of one device: what cannot be read is None, and shown as such.
"""

from __future__ import annotations

import importlib.util
import logging
import math
import os
import platform
import time
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rgpu.config import DeviceSpec
from rgpu.errors import ConfigError
from rgpu.server import numa
from rgpu.server.device import Device, Reading
from rgpu.server.lease import Session
from rgpu.server.nvml import CudaDevices

log = logging.getLogger("rgpu.server")

_FRESH_SECONDS = 0.5  # what was read of the host serves all its cpu devices for so long
_HOST_SHARE = 0.75  # of the host's memory that the cpu devices divide among them


class CpuDevices:
    """Devices made of the host's processor: memory and load are those of their sessions."""

    def __init__(self, count: int, first: int, device_memory: int, server: str = "", kind: str = "cpu") -> None:
        memory = device_memory or (int(host_memory() * _HOST_SHARE) // count >> 20 << 20)
        model = processor_name()
        threads = threads_per_device(count)
        self.devices = [
            Device(
                first + i,
                kind,
                f"{kind.upper()} {model}",
                memory,
                properties={"cores": threads, "uuid": _cpu_uuid(server, i), **numa.beside()},
            )
            for i in range(count)
        ]
        self._host: dict[str, Any] = {}
        self._looked = -math.inf

    def read(self, device: Device, sessions: Iterable[Session]) -> Reading:
        sessions = list(sessions)
        busy = sum(session.busy for session in sessions)
        if time.monotonic() - self._looked > _FRESH_SECONDS:
            self._looked = time.monotonic()
            self._host = {"temperature": processor_temperature(), "clocks": {"sm": processor_clock()}}
        used = sum(session.resident_used for session in sessions)
        return Reading(used, round(100 * min(1.0, busy)), dict(self._host))

    def close(self) -> None:
        """Nothing is held."""


class Inventory:
    """All devices of this server, in the order of their indices."""

    def __init__(self, spec: DeviceSpec, device_memory: int = 0, *, always_cpu: bool = False, server: str = "") -> None:
        self._groups: list[CpuDevices | CudaDevices] = []
        cpus = spec.count
        if spec.kind == "cuda":
            self._groups.append(CudaDevices(spec.indices, device_memory))
        elif spec.kind == "auto":
            gpus = _cuda_if_usable(device_memory)
            self._groups += [gpus] if gpus else []
            cpus = 1 if always_cpu or not gpus else 0
        if cpus:
            kind = "sim" if spec.kind == "sim" else "cpu"
            first = sum(len(g.devices) for g in self._groups)
            self._groups.append(CpuDevices(cpus, first, device_memory, server, kind))
        self.devices = [device for group in self._groups for device in group.devices]
        self.cpus = cpus

    def read(self, device: Device, sessions: Iterable[Session]) -> Reading:
        group = next(group for group in self._groups if device in group.devices)
        return group.read(device, sessions)

    def close(self) -> None:
        for group in self._groups:
            group.close()


def _cuda_if_usable(device_memory: int) -> CudaDevices | None:
    if not all(importlib.util.find_spec(module) for module in ("pynvml", "cupy")):
        return None
    try:
        return CudaDevices(None, device_memory)
    except ConfigError as error:
        log.debug("no CUDA devices: %s", error)
        return None


def host_memory() -> int:
    """Bytes of memory this process may count on: the host's, or its control group's limit."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            total = min(total, int(Path(path).read_text()))
        except (OSError, ValueError):  # not there, or "max"
            continue
    return total


def threads_per_device(cpu_devices: int) -> int:
    """Cores that one cpu device may use, so that devices in use at once do not fight."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // max(1, cpu_devices))


def processor_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def processor_clock() -> int | None:
    """MHz of the first core, now."""
    try:
        return int(Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq").read_text()) // 1000
    except (OSError, ValueError):
        pass
    try:
        with open("/proc/cpuinfo") as file:
            first = file.read(4096)  # the file has a part for each core
    except OSError:
        return None
    for line in first.splitlines():
        if line.startswith("cpu MHz"):
            return round(float(line.partition(":")[2]))
    return None


def processor_temperature() -> int | None:
    """Degrees C of the processor package, where the host shows it."""
    for zone in Path("/sys/class/thermal").glob("thermal_zone*"):
        try:
            if (zone / "type").read_text().strip() in ("x86_pkg_temp", "cpu-thermal"):
                return int((zone / "temp").read_text()) // 1000
        except (OSError, ValueError):
            continue
    return None


def _cpu_uuid(server: str, index: int) -> str:
    """The same device keeps its name over restarts; servers of one host are told apart by theirs."""
    return f"CPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{platform.node()}/rgpu/{server}/{index}')}"
