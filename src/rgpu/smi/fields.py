"""What `--query-gpu` and `--query-compute-apps` can be asked for: nvidia-smi's properties under its names and in its
units, and rgpu's own after them. How to find each in a server's answer; `query` prints them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from rgpu.record import Record
from rgpu.smi.properties import NOT_AVAILABLE, documented
from rgpu.smi.text import bus, free, links, mib, pci


class Row(Record):
    """What a line is about; ``session`` only for `--query-compute-apps`."""

    servers: list[dict[str, Any]]
    server: dict[str, Any]
    device: dict[str, Any]
    now: float
    session: dict[str, Any] | None = None


class Field(Record):
    """A property: all its names (the first one is the header's), its unit, where it is, what it means."""

    names: str
    unit: str
    value: Callable[[Row], Any]
    about: str
    digits: int = 0
    missing: str = NOT_AVAILABLE


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
_ENGINES = ("memory", "encoder", "decoder", "jpeg", "ofa")
_CLOCKS = ("graphics", "sm", "memory")
_ERRORS, _SPANS = ("corrected", "uncorrected"), ("volatile", "aggregate")


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


def _hex(key: str, digits: int) -> Callable[[Row], Any]:
    return lambda row: None if row.device.get(key) is None else f"0x{row.device[key]:0{digits}X}"


def _reason(bit: int) -> Callable[[Row], Any]:
    def find(row: Row) -> Any:
        mask = row.device.get("clocks_event_reasons")
        return None if mask is None else "Active" if mask & bit else "Not Active"

    return find


def _nothing(_row: Row) -> Any:
    """What no server tells."""
    return None


def timestamp(row: Row) -> str:
    return time.strftime("%Y/%m/%d %H:%M:%S", time.localtime(row.now)) + f".{int(row.now % 1 * 1000):03}"


def _capability(row: Row) -> Any:
    pair = row.device.get("compute_capability")
    return ".".join(map(str, pair)) if pair else None


def _users(row: Row) -> str:
    return " ".join(sorted({session["user"] for session in row.device["sessions"]}))


def _milli(value: Callable[[Row], Any]) -> Callable[[Row], Any]:
    return lambda row: None if value(row) is None else 1000 * value(row)


def _percent(value: Callable[[Row], Any]) -> Callable[[Row], Any]:
    return lambda row: None if not value(row) else round(100 * value(row))


def _queue(row: Row) -> Any:
    return len(row.server["queue"]) if "queue" in row.server else row.server.get("waiting")


# Where a server's answer has nvidia-smi's properties; `properties` knows the rest of them.
_FOUND: dict[str, Callable[[Row], Any]] = {
    "timestamp": timestamp,
    "driver_version": _device("driver"),
    "kmd_version": _device("driver"),
    "count": lambda row: sum(len(server["devices"]) for server in row.servers),
    "name": _device("name"),
    "serial": _device("serial"),
    "uuid": _device("uuid"),
    "pci.bus_id": _device("pci_bus_id"),
    "pci.domain": lambda row: pci(row.device, 0),
    "pci.bus": lambda row: pci(row.device, 1),
    "pci.device": lambda row: pci(row.device, 2),
    "pci.device_id": _hex("pci_device_id", 8),
    "pci.sub_device_id": _hex("pci_subsystem_id", 8),
    "pcie.link.gen.current": _device("pcie_gen"),
    "pcie.link.gen.gpucurrent": _device("pcie_gen"),
    "pcie.link.gen.max": _device("pcie_gen_max"),
    "pcie.link.gen.gpumax": _device("pcie_gen_device"),
    "pcie.link.width.current": _device("pcie_width"),
    "pcie.link.width.max": _device("pcie_width_max"),
    "index": _device("pool_index"),
    "display_attached": _device("display_attached"),
    "display_active": _device("display_active"),
    "persistence_mode": _device("persistence_mode"),
    "accounting.mode": _device("accounting_mode"),
    "accounting.buffer_size": _device("accounting_buffer"),
    "vbios_version": _device("vbios"),
    "inforom.img": _device("inforom_image"),
    "fan.speed": _device("fan_speed"),
    "pstate": _device("performance_state"),
    "clocks_event_reasons.supported": _hex("clocks_event_reasons_supported", 16),
    "clocks_event_reasons.active": _hex("clocks_event_reasons", 16),
    **{f"clocks_event_reasons.{name}": _reason(bit) for name, bit in EVENT_REASONS.items()},
    "memory.total": _mib(_device("memory_total")),
    "memory.reserved": _mib(_device("memory_reserved")),
    "memory.used": _mib(_device("memory_used")),
    "memory.free": _mib(lambda row: free(row.device)),
    "compute_mode": _device("compute_mode"),
    "compute_cap": _capability,
    "utilization.gpu": _device("utilization"),
    **{f"utilization.{engine}": _device(f"utilization_{engine}") for engine in _ENGINES},
    "ecc.mode.current": _device("ecc_mode"),
    "ecc.mode.pending": _device("ecc_mode_pending"),
    **{f"ecc.errors.{what}.{span}.total": _device(f"ecc_{what}_{span}") for what in _ERRORS for span in _SPANS},
    "remapped_rows.correctable": _device("remapped_corrected"),
    "remapped_rows.uncorrectable": _device("remapped_uncorrected"),
    "remapped_rows.pending": _device("remapping_pending"),
    "remapped_rows.failure": _device("remapping_failed"),
    "temperature.gpu": _device("temperature"),
    "temperature.memory": _device("temperature_memory"),
    **dict.fromkeys(("power.draw", "power.draw.average", "power.draw.instant"), _device("power")),
    "power.limit": _device("power_limit"),
    "enforced.power.limit": _device("power_enforced_limit"),
    **{f"power.{which}_limit": _device(f"power_{which}_limit") for which in ("default", "min", "max")},
    **{f"clocks.current.{name}": _device(f"clocks.{name}") for name in (*_CLOCKS, "video")},
    **{f"clocks.max.{name}": _device(f"clocks_max.{name}") for name in _CLOCKS},
    "mig.mode.current": _device("mig_mode"),
    "mig.mode.pending": _device("mig_mode_pending"),
}

# Documented by older drivers, and rgpu's own.
_OTHERS: tuple[Field, ...] = (
    Field("reset_status.reset_required", "", _nothing, "Of drivers before 580."),
    Field("reset_status.drain_and_reset_recommended", "", _nothing, "Of drivers before 580."),
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


def _documented() -> Iterator[Field]:
    for names, unit, about, missing in documented():
        value = _FOUND.get(names.split()[0], _nothing)
        yield Field(names, unit, value, about, 2 if unit == "W" else 0, missing)


GPU: tuple[Field, ...] = (*_documented(), *_OTHERS)

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
