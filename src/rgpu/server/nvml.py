"""NVIDIA GPUs: what they are and what they are doing, by NVML. The only room that knows NVML.

A thread reads the cards once a second, because some questions take milliseconds and a card that fell off its
bus may never answer: who asks for a reading gets the last one and how old it is, and never waits. What a card
cannot tell is None. Of a card with MIG each instance is a device, with readings of its own where NVML has them (memory)
and the card's otherwise (temperature, power, clocks).
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rgpu.errors import ConfigError
from rgpu.server import numa
from rgpu.server.device import Device, Reading
from rgpu.server.lease import Session

SAMPLE_SECONDS = 1.0
STALE_SECONDS = 5.0  # a reading older than this says so

# Numbers of nvml.h
_CLOCKS = {"graphics": 0, "sm": 1, "memory": 2, "video": 3}
_THRESHOLDS = {"shutdown": 0, "slowdown": 1, "memory_max": 2, "gpu_max": 3}
_COMPUTE_MODES = {0: "Default", 1: "Exclusive_Thread", 2: "Prohibited", 3: "Exclusive_Process"}
_SWITCH = {0: "Disabled", 1: "Enabled"}
_ARCHITECTURES = {2: "Kepler", 3: "Maxwell", 4: "Pascal", 5: "Volta", 6: "Turing", 7: "Ampere", 8: "Ada Lovelace",
                  9: "Hopper", 10: "Blackwell"}  # fmt: skip
_BRANDS = {1: "Quadro", 2: "Tesla", 5: "GeForce", 6: "Titan", 12: "Quadro RTX", 13: "NVIDIA RTX", 14: "NVIDIA",
           15: "GeForce RTX", 16: "Titan RTX"}  # fmt: skip
_ANSWER = {0: "No", 1: "Yes"}
_PATHS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_FIELD_MEMORY_TEMPERATURE = 82
_CORRECTED, _UNCORRECTED, _VOLATILE, _AGGREGATE = 0, 1, 0, 1
_SEND, _RECEIVE = 0, 1


@dataclass(frozen=True)
class _Part:
    """What is served: ``handle`` of a card or of a MIG instance, its card, and what identifies the instance."""

    handle: Any
    card: Any
    mig: dict[str, Any] | None = None


class CudaDevices:
    """The NVIDIA GPUs of this host that are served."""

    def __init__(self, wanted: tuple[int, ...] | None, device_memory: int) -> None:
        self._nvml = _load()
        count = self._nvml.nvmlDeviceGetCount()
        missing = [index for index in wanted or () if index >= count]
        if missing or not count:
            self._ask("nvmlShutdown")
            raise ConfigError(f"there is no CUDA device {missing[0] if missing else 0}; this host has {count}")
        indices = wanted if wanted is not None else tuple(range(count))
        self._served = [part for index in indices for part in self._parts(index)]
        if not self._served:
            self._ask("nvmlShutdown")
            raise ConfigError(
                "MIG is enabled on every CUDA device that is to be served, and there are no instances: make some "
                "(nvidia-smi mig -cgi PROFILE -C), or disable MIG (nvidia-smi -mig 0)"
            )
        self.devices = [self._device(i, part, device_memory) for i, part in enumerate(self._served)]
        for device, part in zip(self.devices, self._served, strict=True):
            device.properties["topology"] = {
                str(other.index): self._path(part, self._served[other.index]) for other in self.devices
            }
        self._samples = [self._sample(part) for part in self._served]
        self._sampled = time.monotonic()
        self._over = threading.Event()
        threading.Thread(target=self._keep_sampling, name="rgpu-nvml", daemon=True).start()

    def read(self, device: Device, sessions: Iterable[Session]) -> Reading:
        """The last reading; with ``reading_age`` in seconds when the card has stopped answering."""
        sample = dict(self._samples[device.index])
        used, utilization = sample.pop("memory_used"), sample.pop("utilization")
        age = time.monotonic() - self._sampled
        if age > STALE_SECONDS:
            sample["reading_age"] = age
        sessions = list(sessions)
        used = sum(session.resident_used for session in sessions) if used is None else used
        if utilization is None:  # of a MIG instance NVML does not know it; its sessions do
            utilization = round(100 * min(1.0, sum(session.busy for session in sessions)))
        return Reading(used, utilization, sample)

    def close(self) -> None:
        self._over.set()
        self._ask("nvmlShutdown")

    def _keep_sampling(self) -> None:
        while not self._over.wait(SAMPLE_SECONDS):
            with contextlib.suppress(Exception):  # a strange answer of one card must not end the readings
                self._samples = [self._sample(part) for part in self._served]
                self._sampled = time.monotonic()

    def _ask(self, function: str, *args: Any) -> Any:
        """NVML's answer, or None where card, driver or binding do not know the question."""
        try:
            answer = getattr(self._nvml, function)(*args)
        except (self._nvml.NVMLError, AttributeError):
            return None
        return answer.decode() if isinstance(answer, bytes) else answer

    def _parts(self, index: int) -> list[_Part]:
        """What is served of a card: the card, or its MIG instances."""
        card = self._nvml.nvmlDeviceGetHandleByIndex(index)
        if _SWITCH.get(_first(self._ask("nvmlDeviceGetMigMode", card))) != "Enabled":
            return [_Part(card, card)]
        most = self._ask("nvmlDeviceGetMaxMigDeviceCount", card) or 0
        handles = [self._ask("nvmlDeviceGetMigDeviceHandleByIndex", card, number) for number in range(most)]
        return [
            _Part(handle, card, self._instance(handle, card, index, number))
            for number, handle in enumerate(handles)
            if handle is not None  # numbers may have gaps
        ]

    def _instance(self, handle: Any, card: Any, index: int, number: int) -> dict[str, Any]:
        """What identifies a MIG instance."""
        attributes = self._ask("nvmlDeviceGetAttributes_v2", handle) or self._ask("nvmlDeviceGetAttributes", handle)
        name = self._ask("nvmlDeviceGetName", handle) or ""
        slices, memory = getattr(attributes, "gpuInstanceSliceCount", 0), getattr(attributes, "memorySizeMB", 0)
        return {
            "profile": name.partition(" MIG ")[2] or f"{slices}g.{math.ceil(memory / 1024)}gb",
            "number": number,
            "gpu_instance": self._ask("nvmlDeviceGetGpuInstanceId", handle),
            "compute_instance": self._ask("nvmlDeviceGetComputeInstanceId", handle),
            "multiprocessors": getattr(attributes, "multiprocessorCount", None),
            "card": index,
            "card_name": self._ask("nvmlDeviceGetName", card) or "NVIDIA GPU",
            "card_uuid": self._ask("nvmlDeviceGetUUID", card) or "",
        }

    def _device(self, index: int, part: _Part, device_memory: int) -> Device:
        memory = self._ask("nvmlDeviceGetMemoryInfo", part.handle)
        identity = self._ask("nvmlDeviceGetUUID", part.handle) or ""
        total = memory.total if memory else 0
        size = min(total, device_memory) if device_memory else total
        properties = {"uuid": identity} | self._properties(part.card)
        if part.mig is None:
            name = self._ask("nvmlDeviceGetName", part.handle) or "NVIDIA GPU"
        else:
            name = f"{part.mig['card_name']} MIG {part.mig['profile']}"
            properties["mig"] = part.mig
        return Device(index, "cuda", name, size, identity, properties)

    def _properties(self, handle: Any) -> dict[str, Any]:
        """What stays as it is while the driver is loaded."""
        ask = self._ask
        capability = ask("nvmlDeviceGetCudaComputeCapability", handle)
        pci = ask("nvmlDeviceGetPciInfo", handle)
        bus = getattr(pci, "busId", None)
        cuda = ask("nvmlSystemGetCudaDriverVersion_v2")
        limits = ask("nvmlDeviceGetPowerManagementLimitConstraints", handle) or (None, None)
        return {
            "compute_capability": list(capability) if capability else None,
            "pci_bus_id": bus.decode() if isinstance(bus, bytes) else bus,
            "pci_device_id": getattr(pci, "pciDeviceId", None),
            "pci_subsystem_id": getattr(pci, "pciSubSystemId", None),
            "driver": ask("nvmlSystemGetDriverVersion"),
            "cuda": f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else None,
            "architecture": _ARCHITECTURES.get(ask("nvmlDeviceGetArchitecture", handle)),
            "brand": _BRANDS.get(ask("nvmlDeviceGetBrand", handle)),
            "serial": ask("nvmlDeviceGetSerial", handle),
            "vbios": ask("nvmlDeviceGetVbiosVersion", handle),
            "board_part": ask("nvmlDeviceGetBoardPartNumber", handle),
            "inforom_image": ask("nvmlDeviceGetInforomImageVersion", handle),
            "gsp_firmware": ask("nvmlDeviceGetGspFirmwareVersion", handle),
            "accounting_mode": _SWITCH.get(ask("nvmlDeviceGetAccountingMode", handle)),
            "accounting_buffer": ask("nvmlDeviceGetAccountingBufferSize", handle),
            "clocks_event_reasons_supported": ask("nvmlDeviceGetSupportedClocksEventReasons", handle),
            "minor_number": ask("nvmlDeviceGetMinorNumber", handle),
            "cores": ask("nvmlDeviceGetNumGpuCores", handle),
            "pcie_gen_max": ask("nvmlDeviceGetMaxPcieLinkGeneration", handle),
            "pcie_gen_device": ask("nvmlDeviceGetGpuMaxPcieLinkGeneration", handle),
            "pcie_width_max": ask("nvmlDeviceGetMaxPcieLinkWidth", handle),
            "clocks_max": {name: ask("nvmlDeviceGetMaxClockInfo", handle, n) for name, n in _CLOCKS.items()},
            "temperature_limits": {
                name: ask("nvmlDeviceGetTemperatureThreshold", handle, n) for name, n in _THRESHOLDS.items()
            },
            **numa.beside(bus.decode() if isinstance(bus, bytes) else str(bus)),
            "power_min_limit": _watts(limits[0]),
            "power_max_limit": _watts(limits[1]),
            "power_default_limit": _watts(ask("nvmlDeviceGetPowerManagementDefaultLimit", handle)),
        }

    def _sample(self, part: _Part) -> dict[str, Any]:
        """What changes all the time."""
        ask, handle = self._ask, part.card
        memory = self._memory(part.handle)
        rates = ask("nvmlDeviceGetUtilizationRates", handle) if part.mig is None else None
        bar1 = ask("nvmlDeviceGetBAR1MemoryInfo", handle)
        state = ask("nvmlDeviceGetPerformanceState", handle)
        reasons = ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
        if reasons is None:  # its name before driver 535
            reasons = ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        return {
            "memory_used": getattr(memory, "used", None),
            "memory_reserved": getattr(memory, "reserved", None),
            "utilization": getattr(rates, "gpu", None),
            "utilization_memory": getattr(rates, "memory", None),
            "utilization_encoder": _first(ask("nvmlDeviceGetEncoderUtilization", handle)),
            "utilization_decoder": _first(ask("nvmlDeviceGetDecoderUtilization", handle)),
            "utilization_jpeg": _first(ask("nvmlDeviceGetJpgUtilization", handle)),
            "utilization_ofa": _first(ask("nvmlDeviceGetOfaUtilization", handle)),
            "bar1_total": getattr(bar1, "bar1Total", None),
            "bar1_used": getattr(bar1, "bar1Used", None),
            "temperature": ask("nvmlDeviceGetTemperature", handle, 0),
            "temperature_memory": self._memory_temperature(handle),
            "fan_speed": ask("nvmlDeviceGetFanSpeed", handle),
            "performance_state": None if state is None or state > 15 else f"P{state}",
            "power": _watts(ask("nvmlDeviceGetPowerUsage", handle)),
            "power_limit": _watts(ask("nvmlDeviceGetPowerManagementLimit", handle)),
            "power_enforced_limit": _watts(ask("nvmlDeviceGetEnforcedPowerLimit", handle)),
            "energy": ask("nvmlDeviceGetTotalEnergyConsumption", handle),  # millijoules since the driver was loaded
            "clocks": {name: ask("nvmlDeviceGetClockInfo", handle, n) for name, n in _CLOCKS.items()},
            "clocks_event_reasons": reasons,
            "pcie_gen": ask("nvmlDeviceGetCurrPcieLinkGeneration", handle),
            "pcie_width": ask("nvmlDeviceGetCurrPcieLinkWidth", handle),
            "pcie_sent": ask("nvmlDeviceGetPcieThroughput", handle, _SEND),  # KB/s
            "pcie_received": ask("nvmlDeviceGetPcieThroughput", handle, _RECEIVE),
            "pcie_replays": ask("nvmlDeviceGetPcieReplayCounter", handle),
        } | self._modes(handle)

    def _modes(self, handle: Any) -> dict[str, Any]:
        """Switches that an administrator may change, and the error counts."""
        ask = self._ask
        mig, ecc = ask("nvmlDeviceGetMigMode", handle), ask("nvmlDeviceGetEccMode", handle)
        errors, rows = "nvmlDeviceGetTotalEccErrors", ask("nvmlDeviceGetRemappedRows", handle) or (None,) * 4
        return {
            "persistence_mode": _SWITCH.get(ask("nvmlDeviceGetPersistenceMode", handle)),
            "display_attached": _ANSWER.get(ask("nvmlDeviceGetDisplayMode", handle)),
            "display_active": _SWITCH.get(ask("nvmlDeviceGetDisplayActive", handle)),
            "compute_mode": _COMPUTE_MODES.get(ask("nvmlDeviceGetComputeMode", handle)),
            "mig_mode": _SWITCH.get(_first(mig)),
            "mig_mode_pending": _SWITCH.get(mig[1]) if mig else None,
            "ecc_mode": _SWITCH.get(_first(ecc)),
            "ecc_mode_pending": _SWITCH.get(ecc[1]) if ecc else None,
            "ecc_corrected_volatile": ask(errors, handle, _CORRECTED, _VOLATILE),
            "ecc_uncorrected_volatile": ask(errors, handle, _UNCORRECTED, _VOLATILE),
            "ecc_corrected_aggregate": ask(errors, handle, _CORRECTED, _AGGREGATE),
            "ecc_uncorrected_aggregate": ask(errors, handle, _UNCORRECTED, _AGGREGATE),
            "remapped_corrected": rows[0],
            "remapped_uncorrected": rows[1],
            "remapping_pending": _ANSWER.get(rows[2]),
            "remapping_failed": _ANSWER.get(rows[3]),
        }

    def _path(self, part: _Part, other: _Part) -> str:
        """How two cards reach each other, in nvidia-smi's words; they may still use NVLink."""
        if part is other:
            return "X"
        if part.mig and other.mig and part.mig["card"] == other.mig["card"]:
            return "PIX"  # one card, and no way between its instances but the bus
        return _PATHS.get(self._ask("nvmlDeviceGetTopologyCommonAncestor", part.card, other.card), "HOST")

    def _memory(self, handle: Any) -> Any:
        """With the reserved part apart from the used one where the binding can tell, as nvidia-smi shows it."""
        version = getattr(self._nvml, "nvmlMemory_v2", None)
        detailed = self._ask("nvmlDeviceGetMemoryInfo", handle, version) if version is not None else None
        return detailed or self._ask("nvmlDeviceGetMemoryInfo", handle)

    def _memory_temperature(self, handle: Any) -> int | None:
        values = self._ask("nvmlDeviceGetFieldValues", handle, [_FIELD_MEMORY_TEMPERATURE])
        if not values or values[0].nvmlReturn != 0:
            return None
        return values[0].value.uiVal or None  # 0: no sensor


def _load() -> Any:
    try:
        import pynvml
    except ImportError:
        raise ConfigError(
            "CUDA devices need the NVML binding: pip install 'rgpu[server-cuda12]' (or server-cuda13)"
        ) from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise ConfigError(f"no CUDA device can be used: {error}; does nvidia-smi work on this host?") from None
    return pynvml


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def _first(pair: Any) -> Any:
    return pair[0] if pair else None
