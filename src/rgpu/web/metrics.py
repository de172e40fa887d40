"""Prometheus' text format, by hand: hardware gauges under the names and units of NVIDIA's DCGM exporter, so that
dashboards made for it work, and rgpu's own under `rgpu_`.

By hand because the usual library renames counters to `..._total`, which those dashboards do not know. Pure:
dictionaries in, text out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

_MIB = 1 << 20
Labels = dict[str, Any]
Sample = tuple[Labels, Any]

# Name, type, help, where the value is in a device's description, and what divides it.
_DCGM: tuple[tuple[str, str, str, str, int], ...] = (
    ("DCGM_FI_DEV_SM_CLOCK", "gauge", "SM clock frequency (in MHz).", "clocks.sm", 1),
    ("DCGM_FI_DEV_MEM_CLOCK", "gauge", "Memory clock frequency (in MHz).", "clocks.memory", 1),
    ("DCGM_FI_DEV_MEMORY_TEMP", "gauge", "Memory temperature (in C).", "temperature_memory", 1),
    ("DCGM_FI_DEV_GPU_TEMP", "gauge", "GPU temperature (in C).", "temperature", 1),
    ("DCGM_FI_DEV_POWER_USAGE", "gauge", "Power draw (in W).", "power", 1),
    ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "counter", "Energy since boot (in mJ).", "energy", 1),
    ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "counter", "PCIe retries.", "pcie_replays", 1),
    ("DCGM_FI_DEV_GPU_UTIL", "gauge", "GPU utilization (in %).", "utilization", 1),
    ("DCGM_FI_DEV_MEM_COPY_UTIL", "gauge", "Memory utilization (in %).", "utilization_memory", 1),
    ("DCGM_FI_DEV_ENC_UTIL", "gauge", "Encoder utilization (in %).", "utilization_encoder", 1),
    ("DCGM_FI_DEV_DEC_UTIL", "gauge", "Decoder utilization (in %).", "utilization_decoder", 1),
    ("DCGM_FI_DEV_FB_TOTAL", "gauge", "Framebuffer memory (in MiB).", "memory_total", _MIB),
    ("DCGM_FI_DEV_FB_FREE", "gauge", "Framebuffer memory free (in MiB).", "memory_free", _MIB),
    ("DCGM_FI_DEV_FB_USED", "gauge", "Framebuffer memory used (in MiB).", "memory_used", _MIB),
    ("DCGM_FI_DEV_FB_RESERVED", "gauge", "Framebuffer memory reserved (in MiB).", "memory_reserved", _MIB),
    ("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "counter", "Corrected ECC errors.", "ecc_corrected_volatile", 1),
    ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "counter", "Uncorrected ECC errors.", "ecc_uncorrected_volatile", 1),
    ("DCGM_FI_DEV_FAN_SPEED", "gauge", "Fan speed (in %).", "fan_speed", 1),
)

_SESSION: tuple[tuple[str, str, str, str, int], ...] = (
    ("rgpu_session_memory_bytes", "gauge", "Device memory of a session.", "memory_used", 1),
    ("rgpu_session_busy_ratio", "gauge", "Share of the time that a session's worker was busy.", "utilization", 100),
    ("rgpu_session_commands_total", "counter", "Commands that a session executed.", "commands", 1),
    ("rgpu_session_age_seconds", "gauge", "Since the lease was granted.", "age", 1),
)


def text(servers: Sequence[dict[str, Any]]) -> str:
    """All metrics of all servers; what a device cannot tell is left out."""
    devices = [(server, device) for server in servers for device in server["devices"]]
    lines: list[str] = []
    for name, kind, about, key, divisor in _DCGM:
        samples = ((_dcgm_labels(server, device), _scaled(device, key, divisor)) for server, device in devices)
        lines += _family(name, kind, about, samples)
    for name, kind, about, own in _own(servers):
        lines += _family(name, kind, about, own)
    for name, kind, about, key, divisor in _SESSION:
        told = (
            (_session_labels(server, device, session), _scaled(session, key, divisor))
            for server, device in devices
            for session in device["sessions"]
        )
        lines += _family(name, kind, about, told)
    return "\n".join([*lines, ""])


def _own(servers: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str, str, list[Sample]]]:
    def each(value: Any, **more: str) -> list[Sample]:
        return [
            ({"server": _name(server)} | {k: server.get(v, "") for k, v in more.items()}, value(server))
            for server in servers
        ]

    yield "rgpu_info", "gauge", "The server's version.", each(lambda s: 1, version="version")
    yield "rgpu_server_up", "gauge", "Whether the server answers.", each(lambda s: int(s.get("reachable", True)))
    yield "rgpu_uptime_seconds", "gauge", "Since the server started.", each(lambda s: s.get("uptime"))
    yield "rgpu_devices", "gauge", "Devices of the server.", each(lambda s: len(s["devices"]))
    count = each(lambda s: sum(len(device["sessions"]) for device in s["devices"]))
    yield "rgpu_sessions", "gauge", "Sessions of the server.", count
    queue = each(lambda s: len(s["queue"]) if "queue" in s else s.get("waiting"))
    yield "rgpu_queue_depth", "gauge", "Clients that wait for a device.", queue


def _dcgm_labels(server: dict[str, Any], device: dict[str, Any]) -> Labels:
    index, cuda = device["index"], device.get("kind") == "cuda"
    return {
        "gpu": index,
        "UUID": device.get("uuid") or "",
        "pci_bus_id": device.get("pci_bus_id") or "",
        "device": f"nvidia{device.get('minor_number') or 0}" if cuda else f"{device.get('kind', 'cpu')}{index}",
        "modelName": device["name"],
        "Hostname": server.get("host") or _name(server),
    } | _instance_labels(device)


def _instance_labels(device: dict[str, Any]) -> Labels:
    """Of a MIG instance, under the exporter's names; its card is the ``gpu`` there."""
    mig = device.get("mig")
    if not mig:
        return {}
    names = {"gpu": "card", "GPU_I_ID": "gpu_instance", "GPU_I_PROFILE": "profile"}
    return {name: str(mig.get(key, "")) for name, key in names.items()}


def _session_labels(server: dict[str, Any], device: dict[str, Any], session: dict[str, Any]) -> Labels:
    return {
        "server": _name(server),
        "gpu": device["index"],
        "UUID": device.get("uuid") or "",
        "session": session.get("id", ""),
        "user": session["user"],
        "client": session["host"],
    }


def _name(server: dict[str, Any]) -> str:
    return server.get("name") or server.get("address") or ""


def _scaled(source: dict[str, Any], key: str, divisor: float) -> Any:
    if key == "memory_free":
        return (source["memory_total"] - source["memory_used"]) // divisor
    value: Any = source
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if not isinstance(value, (int, float)) or divisor == 1:
        return value
    return value // divisor if isinstance(divisor, int) and divisor > 100 else value / divisor


def _family(name: str, kind: str, about: str, samples: Iterable[Sample]) -> list[str]:
    told = [
        f"{name}{{{','.join(f'{k}={_quoted(v)}' for k, v in labels.items())}}} {value}"
        for labels, value in samples
        if isinstance(value, (int, float))
    ]
    return [f"# HELP {name} {about}", f"# TYPE {name} {kind}", *told] if told else []


def _quoted(value: Any) -> str:
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
