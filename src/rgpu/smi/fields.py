"""What `--query-gpu` and `--query-compute-apps` can be asked for: nvidia-smi's properties under its names and in its
units, and rgpu's own after them. Facts and how to find them in a server's answer; `query` prints them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rgpu.smi.text import bus, links, mib


@dataclass(frozen=True)
class Row:
    """What a line is about; ``session`` only for `--query-compute-apps`."""

    servers: list[dict[str, Any]]
    server: dict[str, Any]
    device: dict[str, Any]
    now: float
    session: dict[str, Any] | None = None


@dataclass(frozen=True)
class Field:
    """A property: all its names (the first one is the header's), its unit, where it is, what it means."""

    names: str
    unit: str
    value: Callable[[Row], Any]
    about: str
    digits: int = 0
    missing: str = "[N/A]"


EVENT_REASONS = {
    "gpu_idle": 0x1,
    "applications_clocks_setting": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
}


def _device(key: str) -> Callable[[Row], Any]:
    """A value of the device's description; ``clocks.sm`` is one inside another."""
    outer, _, inner = key.partition(".")
    if inner:
        return lambda row: (row.device.get(outer) or {}).get(inner)
    return lambda row: row.device.get(key)


def _server(key: str) -> Callable[[Row], Any]:
    return lambda row: row.server.get(key)


def _session(key: str) -> Callable[[Row], Any]:
    return lambda row: (row.session or {}).get(key)


def _mib(value: Callable[[Row], Any]) -> Callable[[Row], Any]:
    return lambda row: None if value(row) is None else mib(value(row))


def _pci(part: int, digits: int) -> Callable[[Row], Any]:
    """Domain, bus or device of ``00000000:19:00.0``, as ``0x19``."""

    def find(row: Row) -> Any:
        identity = row.device.get("pci_bus_id")
        return f"0x{identity.replace('.', ':').split(':')[part][-digits:].upper()}" if identity else None

    return find


def _hex(key: str) -> Callable[[Row], Any]:
    return lambda row: None if row.device.get(key) is None else f"0x{row.device[key]:08X}"


def _reason(bit: int) -> Callable[[Row], Any]:
    def find(row: Row) -> Any:
        mask = row.device.get("clocks_event_reasons")
        return None if mask is None else "Active" if mask & bit else "Not Active"

    return find


def _mask(row: Row) -> Any:
    mask = row.device.get("clocks_event_reasons")
    return None if mask is None else f"0x{mask:016X}"


def timestamp(row: Row) -> str:
    return time.strftime("%Y/%m/%d %H:%M:%S", time.localtime(row.now)) + f".{int(row.now % 1 * 1000):03}"


def _capability(row: Row) -> Any:
    pair = row.device.get("compute_capability")
    return ".".join(map(str, pair)) if pair else None


def _free(row: Row) -> int:
    return row.device["memory_total"] - row.device["memory_used"]


def _users(row: Row) -> str:
    return " ".join(sorted({session["user"] for session in row.device["sessions"]}))


def _milli(value: Callable[[Row], Any]) -> Callable[[Row], Any]:
    return lambda row: None if value(row) is None else 1000 * value(row)


def _percent(value: Callable[[Row], Any]) -> Callable[[Row], Any]:
    return lambda row: None if not value(row) else round(100 * value(row))


def _queue(row: Row) -> Any:
    return len(row.server["queue"]) if "queue" in row.server else row.server.get("waiting")


_POWER = "power.draw power.draw.average power.draw.instant"

GPU: tuple[Field, ...] = (
    Field("timestamp", "", timestamp, "When the question was asked: YYYY/MM/DD HH:MM:SS.msec."),
    Field("driver_version", "", _device("driver"), "The NVIDIA driver of the device's host."),
    Field("count", "", lambda row: sum(len(s["devices"]) for s in row.servers), "Devices of the whole pool."),
    Field("name gpu_name", "", _device("name"), "The product's name."),
    Field("serial gpu_serial", "", _device("serial"), "The number printed on the board."),
    Field("uuid gpu_uuid", "", _device("uuid"), "The identity of the device; the same over restarts."),
    Field("pci.bus_id gpu_bus_id", "", _device("pci_bus_id"), "domain:bus:device.function, hexadecimal."),
    Field("pci.domain", "", _pci(0, 4), "PCI domain."),
    Field("pci.bus", "", _pci(1, 2), "PCI bus."),
    Field("pci.device", "", _pci(2, 2), "PCI device."),
    Field("pci.device_id", "", _hex("pci_device_id"), "PCI vendor and device."),
    Field("pci.sub_device_id", "", _hex("pci_subsystem_id"), "PCI subsystem."),
    Field("pcie.link.gen.current pcie.link.gen.gpucurrent", "", _device("pcie_gen"), "PCIe generation in use."),
    Field("pcie.link.gen.max", "", _device("pcie_gen_max"), "Highest PCIe generation of device and host."),
    Field("pcie.link.width.current", "", _device("pcie_width"), "PCIe lanes in use."),
    Field("pcie.link.width.max", "", _device("pcie_width_max"), "Most PCIe lanes of device and host."),
    Field("index", "", _device("pool_index"), "The number of the device in the pool, as programs see it."),
    Field("display_active", "", _device("display_active"), "Whether a display uses the device."),
    Field("persistence_mode", "", _device("persistence_mode"), "Whether the driver stays loaded."),
    Field("vbios_version", "", _device("vbios"), "The BIOS of the board."),
    Field("fan.speed", "%", _device("fan_speed"), "The intended speed of the fan."),
    Field("pstate", "", _device("performance_state"), "P0 (most performance) to P12."),
    Field("clocks_event_reasons.active clocks_throttle_reasons.active", "", _mask, "What holds the clocks back."),
    *(
        Field(f"clocks_event_reasons.{name} clocks_throttle_reasons.{name}", "", _reason(bit), "Active or Not Active.")
        for name, bit in EVENT_REASONS.items()
    ),
    Field("memory.total", "MiB", _mib(_device("memory_total")), "Memory of the device, as far as it is lent."),
    Field("memory.reserved", "MiB", _mib(_device("memory_reserved")), "Memory the driver keeps."),
    Field("memory.used", "MiB", _mib(_device("memory_used")), "Memory in use."),
    Field("memory.free", "MiB", _mib(_free), "Memory not in use."),
    Field("compute_mode", "", _device("compute_mode"), "Default, Exclusive_Process or Prohibited."),
    Field("compute_cap", "", _capability, "CUDA compute capability, Major.Minor."),
    Field("utilization.gpu", "%", _device("utilization"), "Share of the last second in which the device worked."),
    Field("utilization.memory", "%", _device("utilization_memory"), "Share in which its memory was read or written."),
    Field("utilization.encoder", "%", _device("utilization_encoder"), "Share in which the encoder worked."),
    Field("utilization.decoder", "%", _device("utilization_decoder"), "Share in which the decoder worked."),
    Field("utilization.jpeg", "%", _device("utilization_jpeg"), "Share in which the JPEG engine worked."),
    Field("utilization.ofa", "%", _device("utilization_ofa"), "Share in which the optical flow engine worked."),
    Field("ecc.mode.current", "", _device("ecc_mode"), "Whether memory errors are corrected."),
    Field("ecc.errors.corrected.volatile.total", "", _device("ecc_corrected_volatile"), "Since the last start."),
    Field("ecc.errors.uncorrected.volatile.total", "", _device("ecc_uncorrected_volatile"), "Since the last start."),
    Field("ecc.errors.corrected.aggregate.total", "", _device("ecc_corrected_aggregate"), "In the board's life."),
    Field("ecc.errors.uncorrected.aggregate.total", "", _device("ecc_uncorrected_aggregate"), "In the board's life."),
    Field("temperature.gpu", "", _device("temperature"), "Degrees C of the core."),
    Field("temperature.memory", "", _device("temperature_memory"), "Degrees C of the memory.", missing="N/A"),
    *(Field(name, "W", _device("power"), "What the board draws.", 2) for name in _POWER.split()),
    Field("power.limit", "W", _device("power_limit"), "The limit that was set.", 2),
    Field("enforced.power.limit", "W", _device("power_enforced_limit"), "The limit that holds.", 2),
    Field("power.default_limit", "W", _device("power_default_limit"), "The limit after a start of the driver.", 2),
    Field("power.min_limit", "W", _device("power_min_limit"), "The lowest limit that can be set.", 2),
    Field("power.max_limit", "W", _device("power_max_limit"), "The highest limit that can be set.", 2),
    Field("clocks.current.graphics clocks.gr", "MHz", _device("clocks.graphics"), "Graphics clock."),
    Field("clocks.current.sm clocks.sm", "MHz", _device("clocks.sm"), "Clock of the multiprocessors."),
    Field("clocks.current.memory clocks.mem", "MHz", _device("clocks.memory"), "Memory clock."),
    Field("clocks.current.video clocks.video", "MHz", _device("clocks.video"), "Clock of encoder and decoder."),
    Field("clocks.max.graphics clocks.max.gr", "MHz", _device("clocks_max.graphics"), "Highest graphics clock."),
    Field("clocks.max.sm", "MHz", _device("clocks_max.sm"), "Highest clock of the multiprocessors."),
    Field("clocks.max.memory clocks.max.mem", "MHz", _device("clocks_max.memory"), "Highest memory clock."),
    Field("mig.mode.current", "", _device("mig_mode"), "Whether the device is cut into instances."),
    # rgpu's own
    Field("mig.profile", "", _device("mig.profile"), "The profile of the MIG instance that the device is."),
    Field("kind", "", _device("kind"), "cuda or cpu."),
    Field("server", "", _server("name"), "The name of the device's server."),
    Field("address", "", _server("address"), "Where that server listens."),
    Field("host", "", _server("host"), "The host it runs on."),
    Field("server.index", "", _device("index"), "The number of the device on its server."),
    Field("rtt", "ms", _milli(_server("rtt")), "Round trip from here to the server.", 3),
    Field("link", "", lambda row: links(row.device), "How the device's sessions are connected: tcp, shm, ucx."),
    Field("sessions", "", lambda row: len(row.device["sessions"]), "Sessions on the device."),
    Field("users", "", _users, "Whose sessions these are."),
    Field("memory.leased", "MiB", _mib(_device("memory_leased")), "Memory promised to leases."),
    Field("queue", "", _queue, "Clients that wait for a device of this server."),
)

APPS: tuple[Field, ...] = (
    Field("timestamp", "", timestamp, "When the question was asked: YYYY/MM/DD HH:MM:SS.msec."),
    Field("gpu_name", "", _device("name"), "The product's name."),
    Field("gpu_bus_id", "", lambda row: bus(row.server, row.device), "domain:bus:device.function, hexadecimal."),
    Field("gpu_serial", "", _device("serial"), "The number printed on the board."),
    Field("gpu_uuid", "", _device("uuid"), "The identity of the device."),
    Field("pid", "", _session("pid"), "Process number of the program, on the client's host."),
    Field("process_name name", "", _session("program"), "The program."),
    Field("used_gpu_memory used_memory", "MiB", _mib(_session("memory_used")), "Memory that the session uses."),
    # rgpu's own
    Field("gpu_index", "", _device("pool_index"), "The number of the device in the pool."),
    Field("server", "", _server("name"), "The name of the device's server."),
    Field("session", "", _session("id"), "The session's name, for rgpu-smi top and the logs."),
    Field("user", "", _session("user"), "Who runs the program."),
    Field("client_host host", "", _session("host"), "The host that the program runs on."),
    Field("worker_pid", "", _session("worker_pid"), "Process number of the session's worker, on the server's host."),
    Field("utilization", "%", _session("utilization"), "Share of the last second in which the worker was busy."),
    Field("commands", "", _session("commands"), "Commands executed so far."),
    Field("lease", "", _session("lease"), "The lease that the session is part of."),
    Field("lease_memory", "MiB", _mib(_session("memory_limit")), "The most memory that the session may use."),
    Field("spilled_memory", "MiB", _mib(_session("memory_spilled")), "Memory moved to the host for now."),
    Field("compute", "%", _percent(_session("compute")), "Share of the device's time that is promised."),
    Field("link", "", _session("link"), "How the client is connected."),
    Field("rtt", "ms", _milli(_session("rtt")), "Round trip between client and worker.", 3),
    Field("age", "s", _session("age"), "Since the session began."),
)
