"""The pictures of a pool as plain text: nvidia-smi's table, its ``-L`` list, one line a device, one line a server.

Pure: dictionaries in, text out. The table is nvidia-smi's, column for column; what belongs to a pool (server, link,
leases, who and from where) stands where nvidia-smi leaves room, and in a second line of each process.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from rgpu.smi.text import MISSING, ago, amount, bus, duration, fit, links, mib, mig_of, milliseconds, plural, where

# Inner widths of the device table's three columns, and of the whole.
_COLUMNS = (41, 24, 22)
_WIDTH = sum(_COLUMNS) + len(_COLUMNS) - 1

Entry = dict[str, Any]
Servers = Sequence[Entry]

_SWITCH = {"Enabled": "On", "Disabled": "Off"}
_MODES = {"Exclusive_Process": "E. Process", "Exclusive_Thread": "E. Thread"}


def table(servers: Servers, version: str, now: float | None = None) -> str:
    """The whole picture: header, devices, sessions, queue."""
    rule = _rule("-")
    lines = [
        time.strftime("%a %b %e %H:%M:%S %Y", time.localtime(now)),
        "+" + "-" * _WIDTH + "+",
        _header(servers, version),
        rule,
        _row(" GPU  Name                 Persistence-M ", " Bus-Id          Disp.A ", " Volatile Uncorr. ECC "),
        _row(" Fan  Temp   Perf          Pwr:Usage/Cap ", "           Memory-Usage ", " GPU-Util  Compute M. "),
        _row(" Server:Device                 Link  RTT ", "        Sessions, Lease ", "               MIG M. "),
        _rule("="),
    ]
    for server in servers:
        for device in server["devices"]:
            lines += [*_device_rows(server, device), rule]
        if not server["reachable"]:
            lines += [*_wrapped(f" ---  {server['address']}: {unreachable(server, now)}"), rule]
        elif not server["devices"]:
            lines += [_line(f" {server['name']} has no devices", ""), rule]
    if not servers:
        lines += [_line(" No servers.", ""), rule]
    return "\n".join([*lines, "", *_sessions(servers), *_leases(servers), *_queue(servers)])


def unreachable(server: Entry, now: float | None = None) -> str:
    """Why, and how old the last answer is."""
    seen = server.get("last_answer")
    age = f"; last answer {ago(max(0.0, (time.time() if now is None else now) - seen))} ago" if seen else ""
    return f"{server['error']}{age}"


def _header(servers: Servers, version: str) -> str:
    reachable = sum(server["reachable"] for server in servers)
    devices = [device for server in servers for device in server["devices"]]
    cuda = min((str(device["cuda"]) for device in devices if device.get("cuda")), default=MISSING)
    count = f"Servers: {reachable}/{len(servers)}  Devices: {len(devices)}"
    left = f" RGPU-SMI {version}"
    return _line(f"{left:<34} {count:<31}", f"CUDA Version: {fit(str(cuda), 8):<8} ")


def _device_rows(server: Entry, device: Entry) -> list[str]:
    get = device.get
    name = fit(device["name"], 26)
    persistence, display = _SWITCH.get(get("persistence_mode"), MISSING), _SWITCH.get(get("display_active"), MISSING)
    ecc = get("ecc_uncorrected_volatile") if get("ecc_mode") == "Enabled" else None
    power = f"{_whole(get('power'), 'W')} / {_whole(get('power_enforced_limit'), 'W'):>5}"
    mode = _MODES.get(get("compute_mode"), get("compute_mode")) or device["kind"]
    return [
        _row(
            f"{device['pool_index']:>4}  {name:<26} {persistence:>7} ",
            f"{fit(bus(server, device), 19):>19} {display:>3} ",
            f"{_whole(ecc):>21} ",
        ),
        _row(
            f"{_whole(get('fan_speed'), '%'):>4}{_whole(get('temperature'), 'C'):>6}"
            f"{get('performance_state') or MISSING:>6}{power:>24} ",
            f"{amount(device['memory_used']):>11} / {amount(device['memory_total']):>9} ",
            f"{_whole(device['utilization']):>7}%{fit(mode, 13):>13} ",
        ),
        _row(
            f" {fit(where(server, device), 22):<22}{fit(links(device), 8):>8}"
            f"{milliseconds(server.get('rtt')):>9} ",
            f"{_lease_words(device):>23} ",
            f"{fit(str(mig_of(device, 'profile') or get('mig_mode') or MISSING), 21):>21} ",
        ),
    ]


def _whole(value: Any, unit: str = "") -> str:
    return MISSING if value is None else f"{value:.0f}{unit}"


def _lease_words(device: Entry) -> str:
    words = plural(len(device["sessions"]), "session") if device["sessions"] else "free"
    if device.get("memory_leased"):
        words += f", {amount(device['memory_leased'])}"
    return fit(words, 23)


def _sessions(servers: Servers) -> list[str]:
    lines = [
        "+" + "-" * _WIDTH + "+",
        _line(" Processes:", ""),
        _line("  GPU   GI   CI              PID   Type   Process name", "GPU Memory "),
        _line("        ID   ID", "Usage      "),
        "|" + "=" * _WIDTH + "|",
    ]
    rows = [
        line
        for server in servers
        for device in server["devices"]
        for session in device["sessions"]
        for line in _session_rows(device, session)
    ]
    return [*lines, *(rows or [_line("  No running processes found", "")]), "+" + "-" * _WIDTH + "+"]


def _session_rows(device: Entry, session: Entry) -> list[str]:
    """nvidia-smi's line, with the client's process; then whose it is, from where, and its lease."""
    name = fit(session["program"], 36)
    instance = f"{_whole(mig_of(device, 'gpu_instance')):>6}{_whole(mig_of(device, 'compute_instance')):>5}"
    first = f"{device['pool_index']:>5}{instance}{session['pid']:>16}{'C':>7}   {name:<36}"
    parts = [f"{fit(session['user'], 24)}@{fit(session['host'], 24)}"]
    if session.get("memory_limit"):
        share = f" {100 * session['compute']:.0f}%" if session.get("compute") else ""
        parts.append(f"of {amount(session['memory_limit'])}{share}")
    if session.get("memory_spilled"):
        parts.append(f"{amount(session['memory_spilled'])} spilled")
    whole, wanted = session.get("redundancy", (1, 1))
    if wanted > 1:
        parts.append(f"{whole} of {wanted} workers" + (" (degraded)" if whole < wanted else ""))
    if "utilization" in session:
        parts.append(f"{session['utilization']:.0f}% busy")
    if session.get("link"):
        parts.append(session["link"])
    if "age" in session:
        parts.append(duration(session["age"]))
    if session.get("id"):
        parts.append(f"session {session['id']}")
    return [_line(first, f"{amount(session['memory_used']):>10} "), _line("          " + "  ".join(parts), "")]


def _leases(servers: Servers) -> list[str]:
    """Leases that are held without a session, or end by themselves: the rest is told with its session."""
    rows = [
        _line(
            f"{device['pool_index']:>5}  {fit(lease['user'], 14):<14}  {fit(lease['host'], 18):<18} {lease['pid']:>8}  "
            f"{_share(lease)}",
            f"{'no session' if not lease.get('sessions') else plural(lease['sessions'], 'session')}  {_ends(lease)} ",
        )
        for server in servers
        for device in server["devices"]
        for lease in device.get("leases") or ()
        if not lease.get("sessions") or lease.get("seconds_left") is not None
    ]
    return _box("Leases", "  GPU  User            Client host             PID  Memory, share", "Ends in ", rows)


def _share(lease: Entry) -> str:
    words = [amount(lease["memory"])] if lease.get("memory") else []
    words += [f"{100 * lease['compute']:.0f}%"] if lease.get("compute") else []
    return " ".join(words) or "what is left"


def _ends(lease: Entry) -> str:
    return "-" if lease.get("seconds_left") is None else duration(lease["seconds_left"])


def _queue(servers: Servers) -> list[str]:
    """Whoever waits in the registry waits for several servers, and has one row."""
    rows = {}
    for server in servers:
        for number, one in enumerate(server.get("queue") or (), 1):
            place = f"{server['address']}#{number}" if one.get("ticket") is None else one["ticket"]
            name = "registry" if place in rows else server["name"]
            rows[place] = _line(
                f"  {one.get('position', number):>3}  {fit(str(one.get('user', '?')), 12):<12}  "
                f"{fit(str(one.get('host', '?')), 16):<16} {one.get('pid', 0):>8}  {fit(_wanted(one), 22)}",
                f"{name}  {duration(one.get('waited'))} ",
            )
    left, right = "    #  User          Client host           PID  Wants", "Server  Waiting "
    return _box("Queue", left, right, list(rows.values()))


def _box(title: str, left: str, right: str, rows: list[str]) -> list[str]:
    """A table of its own below the others; nothing where there are no rows."""
    if not rows:
        return []
    edge = "+" + "-" * _WIDTH + "+"
    return ["", edge, _line(f" {title}:", ""), _line(left, right), "|" + "=" * _WIDTH + "|", *rows, edge]


def _wanted(one: Entry) -> str:
    words = plural(one.get("count") or 1, "device")
    return f"{words}, {amount(one['memory'])}" if one.get("memory") else words


def listing(servers: Servers) -> str:
    """``-L``: one line a device, and one a server that did not answer; MIG instances below the line of their card."""
    lines: list[str] = []
    for server in servers:
        for device in server["devices"]:
            identity = device.get("uuid") or "none"
            place = f"{where(server, device)} ({server['address']})"
            mig = device.get("mig")
            if mig:
                name = f"{mig.get('card_name')} (UUID: {mig.get('card_uuid')})"
                card = f"GPU {mig.get('card')}: {name} on {server['name']} ({server['address']})"
                lines += [] if card in lines else [card]
                number = device["pool_index"]
                lines.append(f"  MIG {mig.get('profile', ''):<12}Device {number:>2}: (UUID: {identity}) on {place}")
            else:
                lines.append(f"GPU {device['pool_index']}: {device['name']} (UUID: {identity}) on {place}")
        if not server["reachable"]:
            lines.append(f"Server {server['address']}: {unreachable(server)}")
    return "\n".join(lines)


def short(servers: Servers, color: bool = False) -> str:
    """``-s``: one line a device, as gpustat shows it, with the users and what they hold."""
    paint = _paint if color else _plain
    devices = [(server, device) for server in servers for device in server["devices"]]
    places = max((len(where(*pair)) for pair in devices), default=0)
    names = max((len(device["name"]) for _, device in devices), default=0)
    lines = []
    for server, device in devices:
        used, total, load = mib(device["memory_used"]), mib(device["memory_total"]), device["utilization"]
        sessions = " ".join(
            f"{paint(one['user'], 33)}:{one['program'].rpartition('/')[2]}"
            f"/{one['pid']}({mib(one['memory_used'])}M)"
            for one in device["sessions"]
        )
        heat = f"{_whole(device.get('temperature')):>3}°C"
        ordinal, name = f"[{device['pool_index']}]", f"{device['name']:<{names}}"
        lines.append(
            f"{paint(ordinal, 36)} {where(server, device):<{places}}  {paint(name, 34)} | {paint(heat, 31)}, "
            f"{paint(f'{load:>3.0f} %', 32)} | {paint(f'{used:>6}', 33)} / {total:>6} MB | {sessions}".rstrip()
        )
    lines += [f"[-] {server['address']}: {unreachable(server)}" for server in servers if not server["reachable"]]
    return "\n".join(lines)


def _paint(text: str, code: int) -> str:
    return f"\033[{code}m{text}\033[0m"


def _plain(text: str, _code: int) -> str:
    return text


def server_listing(servers: Servers) -> str:
    """``--servers``: one line a server."""
    lines = []
    for server in servers:
        if server["reachable"]:
            sessions = sum(len(device["sessions"]) for device in server["devices"])
            draining = ", draining" if server.get("draining") else ""
            page = f", {server['page']}" if server.get("page") else ""
            lines.append(
                f"{server['address']}: {server['name']}, rgpu {server['version']}, "
                f"{plural(len(server['devices']), 'device')}, {plural(sessions, 'session')}, "
                f"up {duration(server.get('uptime'))}, rtt {milliseconds(server.get('rtt'))}{draining}{page}"
            )
        else:
            lines.append(f"{server['address']}: {unreachable(server)}")
    return "\n".join(lines)


# Pieces of the table


def _row(*cells: str) -> str:
    return "|" + "|".join(fit(cell, width).ljust(width) for cell, width in zip(cells, _COLUMNS, strict=True)) + "|"


def _rule(mark: str) -> str:
    edge = "+" if mark == "-" else "|"
    return edge + "+".join(mark * width for width in _COLUMNS) + edge


def _line(left: str, right: str) -> str:
    right = fit(right, _WIDTH)
    return "|" + fit(left, _WIDTH - len(right)).ljust(_WIDTH - len(right)) + right + "|"


def _wrapped(text: str) -> list[str]:
    """As many lines as it takes: the reason and the remedy are worth reading whole."""
    lines, line = [], ""
    for word in text.split(" "):
        if line and len(line) + 1 + len(word) > _WIDTH - 1:
            lines.append(line)
            line = "     "
        line = f"{line} {word}" if line else f" {word}" if word else ""
        line = line[: _WIDTH - 1]
    return [_line(line, "") for line in [*lines, line]]
