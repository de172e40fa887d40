"""The pictures of a pool as plain text: nvidia-smi's table, its ``-L`` list, a list of servers.

Pure: dictionaries in, text out. What a server says is shown as text and nothing else: control
characters of foreign names never reach the terminal.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

_MIB = 1 << 20
# Inner widths of the device table's three columns, and of the whole.
_COLUMNS = (41, 26, 18)
_WIDTH = sum(_COLUMNS) + len(_COLUMNS) - 1

Servers = Sequence[dict[str, Any]]


def table(servers: Servers, version: str, now: float | None = None) -> str:
    """The whole picture: header, devices, sessions."""
    reachable = sum(server["reachable"] for server in servers)
    rule = _rule("-")
    lines = [
        time.strftime("%a %b %e %H:%M:%S %Y", time.localtime(now)),
        "+" + "-" * _WIDTH + "+",
        _line(f" RGPU-SMI {version}", f"Servers: {reachable}/{len(servers)}  Devices: {_count(servers)} "),
        rule,
        _row(" GPU  Name", "Server:Device", " Memory-Usage", " GPU-Util  Kind"),
        _rule("="),
    ]
    for server in servers:
        if server["reachable"]:
            for device in server["devices"]:
                lines += [_device_row(server, device), rule]
            if not server["devices"]:
                lines += [_line(f" {_text(server['name'])} has no devices", ""), rule]
        else:
            lines += [*_wrapped(f" ---  {server['address']}: {server['error']}"), rule]
    if not servers:
        lines += [_line(" No servers.", ""), rule]
    return "\n".join([*lines, "", *_sessions(servers)])


def _device_row(server: dict[str, Any], device: dict[str, Any]) -> str:
    where = f"{_text(server['name'])}:{device['index']}"
    where = _fit(where, 18)
    name = _fit(_text(device["name"]), _COLUMNS[0] - len(where) - 9)
    return _row(
        f" {device['pool_index']:>3}  {name}",
        where,
        f" {_mib(device['memory_used']):>8}MiB / {_mib(device['memory_total']):>8}MiB",
        f"  {device['utilization']:>4.0f}%   {_fit(_text(device['kind']), 5)}",
    )


def _sessions(servers: Servers) -> list[str]:
    lines = [
        "+" + "-" * _WIDTH + "+",
        _line(" Sessions:", ""),
        _line(" GPU  User          Client host           PID  Program", "GPU Memory "),
        "|" + "=" * _WIDTH + "|",
    ]
    rows = [
        _line(
            f" {device['pool_index']:>3}  {_fit(_text(session['user']), 12):<12}  "
            f"{_fit(_text(session['host']), 16):<16} {session['pid']:>8}  ",
            f"{_mib(session['memory_used'])}MiB ",
            _text(session["program"]),
        )
        for server in servers
        for device in server["devices"]
        for session in device["sessions"]
    ]
    return [*lines, *(rows or [_line("  No running sessions found", "")]), "+" + "-" * _WIDTH + "+"]


def listing(servers: Servers) -> str:
    """``-L``: one line a device, and one a server that did not answer."""
    lines = []
    for server in servers:
        for device in server["devices"]:
            identity = _text(str(device.get("uuid") or "none"))
            name, where = _text(device["name"]), f"{_text(server['name'])}:{device['index']}"
            lines.append(
                f"GPU {device['pool_index']}: {name} (UUID: {identity}) on {where} ({server['address']})"
            )
        if not server["reachable"]:
            lines.append(f"Server {server['address']}: {_text(server['error'])}")
    return "\n".join(lines)


def server_listing(servers: Servers) -> str:
    """``--servers``: one line a server."""
    lines = []
    for server in servers:
        if server["reachable"]:
            sessions = sum(len(device["sessions"]) for device in server["devices"])
            lines.append(
                f"{server['address']}: {_text(server['name'])}, rgpu {_text(server['version'])}, "
                f"{_plural(len(server['devices']), 'device')}, {_plural(sessions, 'session')}, "
                f"up {_duration(server.get('uptime'))}"
            )
        else:
            lines.append(f"{server['address']}: {_text(server['error'])}")
    return "\n".join(lines)


def only(servers: Servers, pool_index: int) -> list[dict[str, Any]] | None:
    """The servers reduced to one device of the pool; None when there is no such device."""
    for server in servers:
        for device in server["devices"]:
            if device["pool_index"] == pool_index:
                return [server | {"devices": [device]}]
    return None


# Pieces


def _row(left: str, right: str, *rest: str) -> str:
    cells = [left.ljust(_COLUMNS[0] - len(right) - 1) + right + " ", *rest]
    cells = [_fit(cell, width).ljust(width) for cell, width in zip(cells, _COLUMNS, strict=True)]
    return "|" + "|".join(cells) + "|"


def _rule(mark: str) -> str:
    edge = "+" if mark == "-" else "|"
    return edge + "+".join(mark * width for width in _COLUMNS) + edge


def _line(left: str, right: str, fill: str = "") -> str:
    left = _fit(left, _WIDTH - len(right))
    room = _WIDTH - len(left) - len(right)
    return "|" + left + _fit(fill, room - 1).ljust(room) + right + "|"


def _wrapped(text: str) -> list[str]:
    """As many lines as it takes: the reason and the remedy are worth reading whole."""
    lines, line = [], ""
    for word in _text(text).split(" "):
        if line and len(line) + 1 + len(word) > _WIDTH - 1:
            lines.append(line)
            line = "     "
        line = f"{line} {word}" if line else f" {word}" if word else ""
        line = line[: _WIDTH - 1]
    return [_line(line, "") for line in [*lines, line]]


def _fit(text: str, width: int) -> str:
    return text if len(text) <= width else (text[: max(0, width - 3)] + "...")[: max(0, width)]


def _text(text: Any) -> str:
    return "".join(c if c.isprintable() else "?" for c in str(text))


def _mib(size: int) -> int:
    return -(-size // _MIB)  # rounded up: nothing that uses memory shows 0


def _count(servers: Servers) -> int:
    return sum(len(server["devices"]) for server in servers)


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _duration(seconds: Any) -> str:
    if not isinstance(seconds, (int, float)):
        return "?"
    minutes, hours = int(seconds) // 60, int(seconds) // 3600
    if hours >= 48:
        return f"{hours // 24} days"
    return f"{hours}:{minutes % 60:02}:{int(seconds) % 60:02}"
