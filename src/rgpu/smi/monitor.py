"""`dmon`, `pmon` and `topo`: lines that scroll, and how devices stand to each other. Pure."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rgpu.smi.text import MISSING, links, mib, milliseconds

Entry = dict[str, Any]
Column = tuple[str, str, Callable[[Entry, Entry], Any]]  # heading, unit, value of server and device (or session)


def _key(key: str) -> Callable[[Entry, Entry], Any]:
    outer, _, inner = key.partition(".")
    if inner:
        return lambda _, entry: (entry.get(outer) or {}).get(inner)
    return lambda _, entry: entry.get(key)


def _memory(key: str) -> Callable[[Entry, Entry], Any]:
    return lambda _, entry: None if entry.get(key) is None else mib(entry[key])


def _megabytes(key: str) -> Callable[[Entry, Entry], Any]:
    return lambda _, entry: None if entry.get(key) is None else entry[key] // 1024


def _nothing(_server: Entry, _entry: Entry) -> Any:
    return None


def _violation(mask: int) -> Callable[[Entry, Entry], Any]:
    def find(_: Entry, entry: Entry) -> Any:
        reasons = entry.get("clocks_event_reasons")
        return None if reasons is None else int(bool(reasons & mask))

    return find


def _round_trip(server: Entry, _entry: Entry) -> Any:
    return None if server.get("rtt") is None else f"{1000 * server['rtt']:.2f}"


_ENGINES: list[Column] = [
    ("sm", "%", _key("utilization")),
    ("mem", "%", _key("utilization_memory")),
    ("enc", "%", _key("utilization_encoder")),
    ("dec", "%", _key("utilization_decoder")),
    ("jpg", "%", _key("utilization_jpeg")),
    ("ofa", "%", _key("utilization_ofa")),
]
DEVICE_GROUPS: dict[str, list[Column]] = {
    "p": [("pwr", "W", _key("power")), ("gtemp", "C", _key("temperature")), ("mtemp", "C", _key("temperature_memory"))],
    "u": _ENGINES,
    "c": [("mclk", "MHz", _key("clocks.memory")), ("pclk", "MHz", _key("clocks.sm"))],
    "v": [("pviol", "bool", _violation(0x4)), ("tviol", "bool", _violation(0x60))],
    "m": [("fb", "MB", _memory("memory_used")), ("bar1", "MB", _memory("bar1_used")), ("ccpm", "MB", _nothing)],
    "e": [
        ("sbecc", "errs", _key("ecc_corrected_volatile")),
        ("dbecc", "errs", _key("ecc_uncorrected_volatile")),
        ("pci", "errs", _key("pcie_replays")),
    ],
    "t": [("rxpci", "MB/s", _megabytes("pcie_received")), ("txpci", "MB/s", _megabytes("pcie_sent"))],
    "r": [("sess", "#", lambda _, device: len(device["sessions"])), ("rtt", "ms", _round_trip)],
}
SESSION_GROUPS: dict[str, list[Column]] = {
    "u": [(name, unit, value if name == "sm" else _nothing) for name, unit, value in _ENGINES],
    "m": [("fb", "MB", _memory("memory_used")), ("ccpm", "MB", _nothing)],
}
GROUPS_HELP = (
    "p power and temperature, u utilization, c clocks, v violations, m memory, e errors, t PCIe, r sessions and rtt"
)


_HEADS = ("#Date", "#Time", "# gpu")
_UNITS = ("#YYYYMMDD", "HH:MM:SS", "# Idx")


def dmon(servers: list[Entry], groups: str, stamp: str, header: bool, now: float | None = None) -> str:
    """A line a device. ``stamp``: "", "D", "T" or "DT"."""
    columns = [column for group in groups for column in DEVICE_GROUPS[group]]
    lines = []
    if header:
        lines.append(_stamped(stamp, *_HEADS) + _cells([c[0] for c in columns]))
        lines.append(_stamped(stamp, *_UNITS) + _cells([c[1] for c in columns]))
    for server in servers:
        for device in server["devices"]:
            start = _stamped(stamp, *_moment(now), f"{device['pool_index']:>5}")
            lines.append(start + _cells([_number(value(server, device)) for _, _, value in columns]))
    return "\n".join(lines)


def pmon(servers: list[Entry], groups: str, stamp: str, header: bool, now: float | None = None) -> str:
    """A line a session, one of dashes for a device without; then whose it is and where it runs."""
    columns = [column for group in groups for column in SESSION_GROUPS[group]]
    lines = []
    if header:
        heads, units = [c[0] for c in columns], [c[1] for c in columns]
        tail, words = "    command           client", "    name              user@host"
        lines.append(_stamped(stamp, *_HEADS) + f"{'pid':>12}{'type':>7}" + _cells(heads) + tail)
        lines.append(_stamped(stamp, *_UNITS) + f"{'#':>12}{'C/G':>7}" + _cells(units) + words)
    for server in servers:
        for device in server["devices"]:
            start = _stamped(stamp, *_moment(now), f"{device['pool_index']:>5}")
            for session in device["sessions"]:
                cells = _cells([_number(value(server, session)) for _, _, value in columns])
                program = session["program"].rpartition("/")[2][:15].replace(" ", "_") or "-"
                client = f"{session['user']}@{session['host']}".replace(" ", "_")
                lines.append(f"{start}{session['pid']:>12}{'C':>7}{cells}    {program:<18}{client}")
            if not device["sessions"]:
                lines.append(f"{start}{'-':>12}{'-':>7}{_cells(['-'] * len(columns))}    {'-':<18}-")
    return "\n".join(lines)


def _cells(values: list[str]) -> str:
    return "".join(f"{value:>7}" for value in values) + " "


def _number(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if isinstance(value, float) else str(value)


def _stamped(stamp: str, date: str, clock: str, rest: str) -> str:
    return (f"{date:<11}" if "D" in stamp else "") + (f"{clock:<10}" if "T" in stamp else "") + rest


def _moment(now: float | None) -> tuple[str, str]:
    moment = time.localtime(now)
    return time.strftime(" %Y%m%d", moment), time.strftime(" %H:%M:%S", moment)


_LEGEND = """
Legend:

  X    = Self
  SYS  = Same host, across the interconnect between NUMA nodes
  NODE = Same host, across PCIe host bridges within a NUMA node
  PHB  = Same host, across a PCIe host bridge
  PXB  = Same host, across several PCIe bridges
  PIX  = Same host, across at most one PCIe bridge
  HOST = Same host, by its memory
  NET  = Another host, by the network"""


def topo(servers: list[Entry]) -> str:
    """A matrix of how each device reaches each other one."""
    devices = [(server, device) for server in servers for device in server["devices"]]
    names = [f"GPU{device['pool_index']}" for _, device in devices]
    near = ["CPU Affinity", "NUMA Affinity", "GPU NUMA ID"]
    lines = ["\t".join(["", *names, *near, "Server", "Host", "Link", "Round trip"])]
    for name, (server, device) in zip(names, devices, strict=True):
        cells = [_path(server, device, *other) for other in devices]
        trip = milliseconds(server.get("rtt"))
        cells += [str(device.get("cpu_affinity") or MISSING), str(device.get("numa_affinity", MISSING)), "", MISSING]
        lines.append("\t".join([name, *cells, server["name"], str(server.get("host") or MISSING), links(device), trip]))
    return "\n".join([*lines, _LEGEND])


def _shared(server: Entry, device: Entry) -> Any:
    """Whose memory the device's workers share: a host's; containers of one host may not."""
    return device.get("host_id") or server.get("host")


def _path(server: Entry, device: Entry, other_server: Entry, other: Entry) -> str:
    if device is other:
        return " X "
    if _shared(server, device) != _shared(other_server, other):
        return "NET"
    paths = device.get("topology") if server is other_server else None
    return str((paths or {}).get(str(other["index"]), "HOST"))
