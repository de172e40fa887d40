"""`-q`: everything about each device, as nvidia-smi's report in text or (`-x`) XML with its element names.

One outline serves both; what it says of sessions, leases and links beside that is rgpu's own. Pure.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from rgpu.smi.fields import EVENT_REASONS
from rgpu.smi.text import MISSING, bus, links, mib, mig_of, milliseconds

_COLON = 55  # the column in which nvidia-smi's colons stand

DISPLAYS = (
    "MEMORY UTILIZATION ECC TEMPERATURE POWER CLOCK COMPUTE PIDS PERFORMANCE LEASE SUPPORTED_CLOCKS PAGE_RETIREMENT "
    "ACCOUNTING ENCODER_STATS SUPPORTED_GPU_TARGET_TEMP VOLTAGE FBC_STATS ROW_REMAPPER RESET_STATUS"
).split()

Entry = dict[str, Any]


@dataclass(frozen=True)
class Line:
    """A fact: its label in text, its element in XML, and where it is."""

    label: str
    tag: str
    value: Callable[[Entry, Entry], Any]  # of server and device


@dataclass(frozen=True)
class Section:
    label: str
    tag: str
    parts: tuple[Line | Section, ...]
    display: str = ""  # the word of -d that chooses it
    need: str = ""  # what a device must have for it to be shown


def _key(key: str, unit: str = "", digits: int = 0) -> Callable[[Entry, Entry], Any]:
    outer, _, inner = key.partition(".")

    def find(_server: Entry, device: Entry) -> Any:
        value = device.get(outer)
        if inner:
            value = (value or {}).get(inner)
        if value is None or value == "":
            return None
        text = f"{value:.{digits}f}" if isinstance(value, float) else str(value)
        return f"{text} {unit}" if unit else text

    return find


def _memory(value: Callable[[Entry], Any]) -> Callable[[Entry, Entry], Any]:
    return lambda _server, device: None if value(device) is None else f"{mib(value(device))} MiB"


def _reason(bit: int) -> Callable[[Entry, Entry], Any]:
    def find(_server: Entry, device: Entry) -> Any:
        mask = device.get("clocks_event_reasons")
        return None if mask is None else "Active" if mask & bit else "Not Active"

    return find


def _free(device: Entry) -> int:
    return device["memory_total"] - device["memory_used"]


def _bar1_free(device: Entry) -> Any:
    total, used = device.get("bar1_total"), device.get("bar1_used")
    return None if total is None or used is None else total - used


def _capability(_server: Entry, device: Entry) -> Any:
    pair = device.get("compute_capability")
    return ".".join(map(str, pair)) if pair else None


def _identity(_server: Entry, device: Entry) -> Any:
    return device.get("uuid")


def _of_server(key: str) -> Callable[[Entry, Entry], Any]:
    return lambda server, _device: server.get(key)


def _width(key: str) -> Callable[[Entry, Entry], Any]:
    return lambda _server, device: None if device.get(key) is None else f"{device[key]}x"


_WORDS = {
    "gpu_idle": "Idle",
    "applications_clocks_setting": "Applications Clocks Setting",
    "sw_power_cap": "SW Power Cap",
    "hw_slowdown": "HW Slowdown",
    "sync_boost": "Sync Boost",
    "sw_thermal_slowdown": "SW Thermal Slowdown",
    "hw_thermal_slowdown": "HW Thermal Slowdown",
    "hw_power_brake_slowdown": "HW Power Brake Slowdown",
}

_PCI = Section("PCI", "pci", (
    Line("Bus Id", "pci_bus_id", _key("pci_bus_id")),
    Section("GPU Link Info", "pci_gpu_link_info", (
        Section("PCIe Generation", "pcie_gen", (
            Line("Max", "max_link_gen", _key("pcie_gen_max")),
            Line("Current", "current_link_gen", _key("pcie_gen")),
        )),
        Section("Link Width", "link_widths", (
            Line("Max", "max_link_width", _width("pcie_width_max")),
            Line("Current", "current_link_width", _width("pcie_width")),
        )),
    )),
    Line("Replays Since Reset", "replay_counter", _key("pcie_replays")),
    Line("Tx Throughput", "tx_util", _key("pcie_sent", "KB/s")),
    Line("Rx Throughput", "rx_util", _key("pcie_received", "KB/s")),
))  # fmt: skip

_MEMORY = (
    Section("FB Memory Usage", "fb_memory_usage", (
        Line("Total", "total", _memory(lambda d: d["memory_total"])),
        Line("Reserved", "reserved", _memory(lambda d: d.get("memory_reserved"))),
        Line("Used", "used", _memory(lambda d: d["memory_used"])),
        Line("Free", "free", _memory(_free)),
    ), "MEMORY"),
    Section("BAR1 Memory Usage", "bar1_memory_usage", (
        Line("Total", "total", _memory(lambda d: d.get("bar1_total"))),
        Line("Used", "used", _memory(lambda d: d.get("bar1_used"))),
        Line("Free", "free", _memory(_bar1_free)),
    ), "MEMORY"),
)  # fmt: skip

_ENGINES = (("GPU", "gpu_util", "utilization"), ("Memory", "memory_util", "utilization_memory"),
            ("Encoder", "encoder_util", "utilization_encoder"), ("Decoder", "decoder_util", "utilization_decoder"),
            ("JPEG", "jpeg_util", "utilization_jpeg"), ("OFA", "ofa_util", "utilization_ofa"))  # fmt: skip


def _errors(span: str) -> tuple[Line, ...]:
    return (
        Line("Correctable", "correctable", _key(f"ecc_corrected_{span}")),
        Line("Uncorrectable", "uncorrectable", _key(f"ecc_uncorrected_{span}")),
    )


def _clocks(key: str) -> tuple[Line, ...]:
    return tuple(
        Line(name if name == "SM" else name.capitalize(), f"{tag}_clock", _key(f"{key}.{tag}", "MHz"))
        for name, tag in (("graphics", "graphics"), ("SM", "sm"), ("memory", "memory"), ("video", "video"))
    )


_HEALTH = (
    Section("ECC Mode", "ecc_mode", (Line("Current", "current_ecc", _key("ecc_mode")),), "ECC"),
    Section("ECC Errors", "ecc_errors", (
        Section("Volatile", "volatile", _errors("volatile")),
        Section("Aggregate", "aggregate", _errors("aggregate")),
    ), "ECC"),
    Section("Temperature", "temperature", (
        Line("GPU Current Temp", "gpu_temp", _key("temperature", "C")),
        Line("GPU Shutdown Temp", "gpu_temp_max_threshold", _key("temperature_limits.shutdown", "C")),
        Line("GPU Slowdown Temp", "gpu_temp_slow_threshold", _key("temperature_limits.slowdown", "C")),
        Line("GPU Max Operating Temp", "gpu_temp_max_gpu_threshold", _key("temperature_limits.gpu_max", "C")),
        Line("Memory Current Temp", "memory_temp", _key("temperature_memory", "C")),
        Line("Memory Max Operating Temp", "gpu_temp_max_mem_threshold", _key("temperature_limits.memory_max", "C")),
    ), "TEMPERATURE"),
    Section("GPU Power Readings", "gpu_power_readings", (
        Line("Power Draw", "power_draw", _key("power", "W", 2)),
        Line("Current Power Limit", "current_power_limit", _key("power_enforced_limit", "W", 2)),
        Line("Requested Power Limit", "requested_power_limit", _key("power_limit", "W", 2)),
        Line("Default Power Limit", "default_power_limit", _key("power_default_limit", "W", 2)),
        Line("Min Power Limit", "min_power_limit", _key("power_min_limit", "W", 2)),
        Line("Max Power Limit", "max_power_limit", _key("power_max_limit", "W", 2)),
    ), "POWER"),
    Section("Clocks", "clocks", _clocks("clocks"), "CLOCK"),
    Section("Max Clocks", "max_clocks", _clocks("clocks_max"), "CLOCK"),
)  # fmt: skip

_OUTLINE: tuple[Line | Section, ...] = (
    Line("Product Name", "product_name", _key("name")),
    Line("Product Architecture", "product_architecture", _key("architecture")),
    Line("Display Active", "display_active", _key("display_active")),
    Line("Persistence Mode", "persistence_mode", _key("persistence_mode")),
    Section("MIG Mode", "mig_mode", (Line("Current", "current_mig", _key("mig_mode")),)),
    Section("MIG Device", "mig_device", (
        Line("Index", "index", _key("mig.number")),
        Line("GPU Instance ID", "gpu_instance_id", _key("mig.gpu_instance")),
        Line("Compute Instance ID", "compute_instance_id", _key("mig.compute_instance")),
        Section("Device Attributes", "device_attributes", (
            Section("Shared", "shared", (
                Line("Multiprocessor count", "multiprocessor_count", _key("mig.multiprocessors")),
            )),
        )),
        Line("Profile", "profile", _key("mig.profile")),
        Line("GPU", "card_uuid", _key("mig.card_uuid")),
    ), need="mig"),
    Line("Serial Number", "serial", _key("serial")),
    Line("GPU UUID", "uuid", _identity),
    Line("Minor Number", "minor_number", _key("minor_number")),
    Line("VBIOS Version", "vbios_version", _key("vbios")),
    Line("CUDA Compute Capability", "cuda_compute_capability", _capability),
    _PCI,
    Line("Fan Speed", "fan_speed", _key("fan_speed", "%")),
    Section("", "", (
        Line("Performance State", "performance_state", _key("performance_state")),
        Section("Clocks Event Reasons", "clocks_event_reasons", tuple(
            Line(_WORDS[name], f"clocks_event_reason_{name}", _reason(bit)) for name, bit in EVENT_REASONS.items()
        )),
    ), "PERFORMANCE"),
    *_MEMORY,
    Section("", "", (Line("Compute Mode", "compute_mode", _key("compute_mode")),), "COMPUTE"),
    Section("Utilization", "utilization", tuple(
        Line(label, tag, _key(key, "%")) for label, tag, key in _ENGINES
    ), "UTILIZATION"),
    *_HEALTH,
    Section("Remote", "remote", (
        Line("Pool Index", "pool_index", _key("pool_index")),
        Line("Kind", "kind", _key("kind")),
        Line("Server", "server", _of_server("name")),
        Line("Server Device", "server_device", _key("index")),
        Line("Server Version", "server_version", _of_server("version")),
        Line("Address", "address", _of_server("address")),
        Line("Host", "host", _of_server("host")),
        Line("Link", "link", lambda server, device: links(device)),
        Line("Round Trip", "round_trip", lambda server, device: milliseconds(server.get("rtt"))),
        Line("Memory Leased", "memory_leased", _memory(lambda d: d.get("memory_leased"))),
        Line("Queue", "queue", lambda s, d: len(s["queue"]) if "queue" in s else s.get("waiting")),
    ), "LEASE"),
)  # fmt: skip

_SESSION: tuple[tuple[str, str, Callable[[Entry], Any]], ...] = (
    ("Type", "type", lambda s: "C"),
    ("Name", "process_name", lambda s: s["program"]),
    ("Used GPU Memory", "used_memory", lambda s: f"{mib(s['memory_used'])} MiB"),
    ("Memory Limit", "memory_limit", lambda s: f"{mib(s['memory_limit'])} MiB" if s.get("memory_limit") else None),
    ("Compute Share", "compute_share", lambda s: f"{round(100 * s['compute'])} %" if s.get("compute") else None),
    ("User", "user", lambda s: s["user"]),
    ("Client Host", "client_host", lambda s: s["host"]),
    ("Session", "session", lambda s: s.get("id")),
    ("Worker Process ID", "worker_pid", lambda s: s.get("worker_pid")),
    ("Link", "link", lambda s: s.get("link")),
)


def text(servers: list[Entry], displays: list[str], now: float | None = None) -> str:
    """The report; ``displays``: the words of -d (none: everything)."""
    lines = ["", "==============NVSMI LOG==============", ""]
    lines += [_fact(0, label, value) for label, _, value in _head(servers, now)]
    for server, device in _devices(servers):
        lines.append(f"GPU {bus(server, device)}")
        for part in _OUTLINE:
            lines += _part_lines(part, server, device, 1, displays)
        if not displays or "PIDS" in displays:
            lines += _process_lines(device)
        lines.append("")
    return "\n".join(lines)


def _head(servers: list[Entry], now: float | None) -> Iterator[tuple[str, str, Any]]:
    devices = [device for _, device in _devices(servers)]
    yield "Timestamp", "timestamp", time.strftime("%a %b %e %H:%M:%S %Y", time.localtime(now))
    yield "Driver Version", "driver_version", _all({device.get("driver") for device in devices})
    yield "CUDA Version", "cuda_version", _all({device.get("cuda") for device in devices})
    yield "Servers", "servers", f"{sum(server['reachable'] for server in servers)} of {len(servers)}"
    yield "Attached GPUs", "attached_gpus", len(devices)


def _all(values: set[Any]) -> str:
    return ", ".join(sorted(str(value) for value in values if value)) or MISSING


def _devices(servers: list[Entry]) -> list[tuple[Entry, Entry]]:
    return [(server, device) for server in servers for device in server["devices"]]


def _fact(depth: int, label: str, value: Any) -> str:
    shown = MISSING if value is None or value == "" else str(value)
    return ("    " * depth + label).ljust(_COLON) + ": " + shown


def _part_lines(part: Line | Section, server: Entry, device: Entry, depth: int, displays: list[str]) -> list[str]:
    if isinstance(part, Line):
        return [] if displays else [_fact(depth, part.label, part.value(server, device))]
    if (displays and part.display not in displays) or (part.need and not device.get(part.need)):
        return []
    lines = ["    " * depth + part.label] if part.label else []
    for inner in part.parts:
        lines += _part_lines(inner, server, device, depth + bool(part.label), [])
    return lines


def _process_lines(device: Entry) -> list[str]:
    if not device["sessions"]:
        return [_fact(1, "Processes", "None")]
    lines = ["    Processes"]
    for session in device["sessions"]:
        lines.append(_fact(2, "GPU instance ID", mig_of(device, "gpu_instance")))
        lines.append(_fact(2, "Compute instance ID", mig_of(device, "compute_instance")))
        lines.append(_fact(2, "Process ID", session["pid"]))
        lines += [_fact(3, label, value(session)) for label, _, value in _SESSION]
    return lines


def xml(servers: list[Entry], now: float | None = None) -> str:
    """`-q -x`: the same, for programs."""
    lines = ['<?xml version="1.0" ?>', "<nvidia_smi_log>"]
    lines += [_element(1, tag, value) for _, tag, value in _head(servers, now)]
    for server, device in _devices(servers):
        lines.append(f"\t<gpu id={quoteattr(bus(server, device))}>")
        for part in _OUTLINE:
            lines += _elements(part, server, device, 2)
        lines += [*_process_elements(device), "\t</gpu>"]
    for server in servers:
        if not server["reachable"]:
            address, why = quoteattr(server["address"]), escape(server["error"])
            lines.append(f"\t<unreachable_server address={address}>{why}</unreachable_server>")
    return "\n".join([*lines, "</nvidia_smi_log>"])


def _element(depth: int, tag: str, value: Any) -> str:
    shown = MISSING if value is None or value == "" else escape(str(value))
    return "\t" * depth + f"<{tag}>{shown}</{tag}>"


def _elements(part: Line | Section, server: Entry, device: Entry, depth: int) -> list[str]:
    if isinstance(part, Line):
        return [_element(depth, part.tag, part.value(server, device))]
    if part.need and not device.get(part.need):
        return []
    inner = [line for one in part.parts for line in _elements(one, server, device, depth + bool(part.tag))]
    if not part.tag:
        return inner
    return ["\t" * depth + f"<{part.tag}>", *inner, "\t" * depth + f"</{part.tag}>"]


def _process_elements(device: Entry) -> list[str]:
    lines = ["\t\t<processes>"]
    for session in device["sessions"]:
        lines.append("\t\t\t<process_info>")
        lines.append(_element(4, "gpu_instance_id", mig_of(device, "gpu_instance")))
        lines.append(_element(4, "compute_instance_id", mig_of(device, "compute_instance")))
        lines.append(_element(4, "pid", session["pid"]))
        lines += [_element(4, tag, value(session)) for _, tag, value in _SESSION]
        lines.append("\t\t\t</process_info>")
    return [*lines, "\t\t</processes>"]


