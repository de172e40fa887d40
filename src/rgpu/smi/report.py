"""`-q`: everything about each device, as nvidia-smi's report in text or (`-x`) XML with its element names.

One outline serves both; what it says of sessions, leases and links beside that is rgpu's own. Pure.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from rgpu.smi.outline import DISPLAYS, OUTLINE, Part
from rgpu.smi.text import MISSING, bus, mib, mig_of

__all__ = ["DISPLAYS", "text", "xml"]

_CAPABILITIES = ("\t\t<capabilities>", "\t\t\t<egm>N/A</egm>", "\t\t</capabilities>")
_COLON, _PROCESS_COLON = 55, 42  # the columns in which nvidia-smi's colons stand

Entry = dict[str, Any]

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
    lines.insert(-1, "")  # before the number of GPUs
    for server, device in _devices(servers):
        lines.append(f"GPU {bus(server, device)}")
        for part in OUTLINE:
            if displays or not part.asked:
                lines += _part_lines(part, server, device, 1, displays)
        lines += [_fact(1, word.replace("_", " ").title(), None) for word in displays if word in _NOWHERE]
        if not displays or "PIDS" in displays:
            lines += _process_lines(device)
        lines.append("")
    return "\n".join(lines)


_NOWHERE = set(DISPLAYS) - {part.display for part in OUTLINE} - {"PIDS"}


def _head(servers: list[Entry], now: float | None) -> Iterator[tuple[str, str, Any]]:
    devices = [device for _, device in _devices(servers)]
    yield "Timestamp", "timestamp", time.strftime("%a %b %e %H:%M:%S %Y", time.localtime(now))
    yield "Driver Version", "driver_version", _all({device.get("driver") for device in devices})
    yield "CUDA Version", "cuda_version", _all({device.get("cuda") for device in devices})
    yield "KMD Version", "kmd_version", _all({device.get("driver") for device in devices})
    yield "CUDA UMD Version", "cuda_umd_version", _all({device.get("cuda") for device in devices})
    yield "Servers", "servers", f"{sum(server['reachable'] for server in servers)} of {len(servers)}"
    yield "Attached GPUs", "attached_gpus", len(devices)


def _all(values: set[Any]) -> str:
    return ", ".join(sorted(str(value) for value in values if value)) or MISSING


def _devices(servers: list[Entry]) -> list[tuple[Entry, Entry]]:
    return [(server, device) for server in servers for device in server["devices"]]


def _fact(depth: int, label: str, value: Any, colon: int = _COLON) -> str:
    shown = MISSING if value is None or value == "" else str(value)
    return ("    " * depth + label).ljust(colon) + ": " + shown


def _part_lines(part: Part, server: Entry, device: Entry, depth: int, displays: list[str]) -> list[str]:
    if not part.label or (displays and part.display not in displays) or (part.need and not device.get(part.need)):
        return []
    if not part.parts:
        return [_fact(depth, part.label, part.value(server, device))]
    lines = ["    " * depth + part.label]
    for inner in part.parts:
        lines += _part_lines(inner, server, device, depth + 1, [])
    return lines


def _process_lines(device: Entry) -> list[str]:
    if not device["sessions"]:
        return [_fact(1, "Processes", "None")]
    lines = ["    Processes"]
    for session in device["sessions"]:
        facts = [
            (2, "GPU instance ID", mig_of(device, "gpu_instance")),
            (2, "Compute instance ID", mig_of(device, "compute_instance")),
            (2, "Process ID", session["pid"]),
            *((3, label, value(session)) for label, _, value in _SESSION),
        ]
        lines += [_fact(depth, label, value, _PROCESS_COLON) for depth, label, value in facts]
    return lines


def xml(servers: list[Entry], now: float | None = None) -> str:
    """`-q -x`: the same, for programs."""
    lines = ['<?xml version="1.0" ?>', '<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">', "<nvidia_smi_log>"]
    lines += [_element(1, tag, value) for _, tag, value in _head(servers, now)]
    for server, device in _devices(servers):
        lines.append(f"\t<gpu id={quoteattr(bus(server, device))}>")
        for part in OUTLINE:
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


def _elements(part: Part, server: Entry, device: Entry, depth: int) -> list[str]:
    if part.need and not device.get(part.need):
        return []
    if not part.parts:
        value = part.value(server, device)
        if part.tag.startswith("pci_") and value is not None:
            value = value.removeprefix("0x")  # nvidia-smi's text has it and its XML has not
        return [_element(depth, part.tag, value)] if part.tag else []
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
    return [*lines, "\t\t</processes>", "\t\t<accounted_processes>", "\t\t</accounted_processes>", *_CAPABILITIES]
