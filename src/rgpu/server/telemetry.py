"""The devices of this host and what they are doing: NVML for GPUs, /proc for cpu devices.

The only room that knows NVML. Reading must never fail because of one card: what cannot be read
is None, and shown as such.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import platform
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rgpu.config import DeviceSpec
from rgpu.errors import ConfigError
from rgpu.server.lease import Lease

log = logging.getLogger("rgpu.server")

_HOST_SHARE = 0.75  # of the host's memory that the cpu devices divide among them


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
    """What a device does now; ``details`` has temperature and power where the card tells them."""

    memory_used: int
    utilization: int
    details: dict[str, Any] = field(default_factory=dict)


class CpuDevices:
    """Devices made of the host's processor: memory and load are those of their sessions."""

    def __init__(self, count: int, first: int, device_memory: int, server: str = "") -> None:
        memory = device_memory or (int(host_memory() * _HOST_SHARE) // count >> 20 << 20)
        model = processor_name()
        threads = threads_per_device(count)
        self.devices = [
            Device(
                first + i, "cpu", f"CPU {model}", memory, properties={"cores": threads, "uuid": _cpu_uuid(server, i)}
            )
            for i in range(count)
        ]

    def read(self, device: Device, leases: Iterable[Lease]) -> Reading:
        leases = list(leases)
        busy = sum(lease.busy for lease in leases)
        return Reading(sum(lease.memory_used for lease in leases), round(100 * min(1.0, busy)))

    def close(self) -> None:
        """Nothing is held."""


class CudaDevices:
    """NVIDIA GPUs, by NVML."""

    def __init__(self, wanted: tuple[int, ...] | None, device_memory: int) -> None:
        try:
            import pynvml
        except ImportError:
            raise ConfigError(
                "CUDA devices need the NVML binding: pip install 'rgpu[server-cuda12]' (or server-cuda13)"
            ) from None
        self._nvml = pynvml
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise ConfigError(
                f"no CUDA device can be used: {error}; does nvidia-smi work on this host?"
            ) from None
        count = pynvml.nvmlDeviceGetCount()
        missing = [index for index in wanted or () if index >= count]
        if missing or not count:
            self.close()
            raise ConfigError(
                f"there is no CUDA device {missing[0] if missing else 0}; this host has {count}"
            )
        indices = wanted if wanted is not None else tuple(range(count))
        self._handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in indices]
        self.devices = [self._device(i, handle, device_memory) for i, handle in enumerate(self._handles)]

    def _ask(self, function: str, *args: Any) -> Any:
        try:
            answer = getattr(self._nvml, function)(*args)
        except (self._nvml.NVMLError, AttributeError):
            return None
        return answer.decode() if isinstance(answer, bytes) else answer

    def _device(self, index: int, handle: Any, device_memory: int) -> Device:
        memory = self._ask("nvmlDeviceGetMemoryInfo", handle)
        capability = self._ask("nvmlDeviceGetCudaComputeCapability", handle)
        identity = self._ask("nvmlDeviceGetUUID", handle) or ""
        pci = self._ask("nvmlDeviceGetPciInfo", handle)
        bus = getattr(pci, "busId", None)
        total = memory.total if memory else 0
        return Device(
            index,
            "cuda",
            self._ask("nvmlDeviceGetName", handle) or "NVIDIA GPU",
            min(total, device_memory) if device_memory else total,
            identity,
            {
                "uuid": identity,
                "compute_capability": list(capability) if capability else None,
                "pci_bus_id": bus.decode() if isinstance(bus, bytes) else bus,
                "driver": self._ask("nvmlSystemGetDriverVersion"),
            },
        )

    def read(self, device: Device, leases: Iterable[Lease]) -> Reading:
        handle = self._handles[device.index]
        memory = self._ask("nvmlDeviceGetMemoryInfo", handle)
        rates = self._ask("nvmlDeviceGetUtilizationRates", handle)
        power = self._ask("nvmlDeviceGetPowerUsage", handle)
        temperature = self._ask("nvmlDeviceGetTemperature", handle, 0)
        return Reading(
            memory.used if memory else sum(lease.memory_used for lease in leases),
            rates.gpu if rates else 0,
            {"temperature": temperature, "power": None if power is None else power / 1000},
        )

    def close(self) -> None:
        self._ask("nvmlShutdown")


class Inventory:
    """All devices of this server, in the order of their indices."""

    def __init__(
        self, spec: DeviceSpec, device_memory: int = 0, *, always_cpu: bool = False, server: str = ""
    ) -> None:
        self._groups: list[CpuDevices | CudaDevices] = []
        cpus = spec.count
        if spec.kind == "cuda":
            self._groups.append(CudaDevices(spec.indices, device_memory))
        elif spec.kind == "auto":
            gpus = _cuda_if_usable(device_memory)
            self._groups += [gpus] if gpus else []
            cpus = 1 if always_cpu or not gpus else 0
        if cpus:
            self._groups.append(CpuDevices(cpus, sum(len(g.devices) for g in self._groups), device_memory, server))
        self.devices = [device for group in self._groups for device in group.devices]
        self.cpus = cpus

    def read(self, device: Device, leases: Iterable[Lease]) -> Reading:
        group = next(group for group in self._groups if device in group.devices)
        return group.read(device, leases)

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


def _cpu_uuid(server: str, index: int) -> str:
    """The same device keeps its name over restarts; servers of one host are told apart by theirs."""
    return f"CPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{platform.node()}/rgpu/{server}/{index}')}"
