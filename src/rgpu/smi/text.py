"""Pieces of the pictures: sizes, times, names. Pure. What they are given has passed `snapshot`'s gate."""

from __future__ import annotations

from typing import Any

_MIB, _GIB = 1 << 20, 1 << 30
MISSING = "N/A"


def fit(text: str, width: int) -> str:
    return text if len(text) <= width else (text[: max(0, width - 3)] + "...")[: max(0, width)]


def mib(size: int) -> int:
    """Rounded up: nothing that uses memory shows 0."""
    return -(-size // _MIB)


def amount(size: int) -> str:
    """``512MiB``; whole GiB where MiB would not fit a column."""
    return f"{mib(size)}MiB" if mib(size) < 1_000_000 else f"{-(-size // _GIB)}GiB"


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def duration(seconds: Any) -> str:
    """``1:02:03`` or ``3 days``."""
    if not isinstance(seconds, (int, float)):
        return "?"
    minutes, hours = int(seconds) // 60, int(seconds) // 3600
    if hours >= 48:
        return f"{hours // 24} days"
    return f"{hours}:{minutes % 60:02}:{int(seconds) % 60:02}"


def ago(seconds: float) -> str:
    """``40 s``, ``3 min``, ``2 h``, ``5 days``: how old something is."""
    for limit, unit, name in ((120, 1, "s"), (7200, 60, "min"), (172800, 3600, "h")):
        if seconds < limit:
            return f"{int(seconds // unit)} {name}"
    return f"{int(seconds // 86400)} days"


def milliseconds(seconds: Any) -> str:
    if not isinstance(seconds, (int, float)):
        return MISSING
    return f"{1000 * seconds:.2f}ms" if seconds < 0.01 else f"{1000 * seconds:.0f}ms"


def where(server: dict[str, Any], device: dict[str, Any]) -> str:
    return f"{server['name']}:{device['index']}"


def links(device: dict[str, Any]) -> str:
    """How the sessions of a device are connected."""
    return "+".join(sorted({session["link"] for session in device["sessions"] if session.get("link")})) or "-"


def bus(server: dict[str, Any], device: dict[str, Any]) -> str:
    """What stands for a device where nvidia-smi shows its PCI bus."""
    return device.get("pci_bus_id") or where(server, device)


def mig_of(device: dict[str, Any], key: str) -> Any:
    """What is known of the MIG instance that a device is; None for whole cards."""
    return (device.get("mig") or {}).get(key)


def free(device: dict[str, Any]) -> int:
    """Bytes that are neither used nor kept by the driver."""
    return max(0, device["memory_total"] - device["memory_used"] - (device.get("memory_reserved") or 0))


def pci(device: dict[str, Any], part: int) -> str | None:
    """Domain (0), bus (1) or device (2) of a PCI bus id like ``00000000:19:00.0``, as ``0x19``."""
    parts = (device.get("pci_bus_id") or "").replace(".", ":").split(":")
    return f"0x{parts[part][-2 if part else -4 :].upper()}" if len(parts) == 4 else None
