"""`rgpu list`: the devices of every server of the pool, one line each."""

from __future__ import annotations

import argparse
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

HELP = "list the pool's devices"
DESCRIPTION = """List the devices of every server of the pool.

  rgpu list
  rgpu list --fields ordinal,server,name,memory_free,sessions
  rgpu list --json

Exit code 1 when a server could not be asked; its reason is on stderr (and in the JSON, as error and reason).
"""

Entry = dict[str, Any]
DEFAULT = "ordinal,server,device,kind,memory,name"


def _mib(size: Any) -> str:
    return "-" if size is None else f"{size >> 20} MiB"


def _percent(value: Any) -> str:
    return "-" if value is None else f"{value:.0f} %"


def _plain(value: Any) -> str:
    return "-" if value in (None, "") else str(value)


# Each column's name, what it is, and how it is found in (ordinal, server, device).
FIELDS: dict[str, tuple[str, Any]] = {
    "ordinal": ("number in the pool, as programs see it", lambda n, s, d: str(n)),
    "server": ("the server's address", lambda n, s, d: s["address"]),
    "host": ("the server's host", lambda n, s, d: _plain(s.get("host"))),
    "server_name": ("what the server is called", lambda n, s, d: _plain(s.get("name"))),
    "version": ("the server's rgpu", lambda n, s, d: _plain(s.get("version"))),
    "device": ("number on its server", lambda n, s, d: str(d["index"])),
    "kind": ("cuda or cpu", lambda n, s, d: d["kind"]),
    "name": ("the product", lambda n, s, d: d["name"]),
    "uuid": ("its identity", lambda n, s, d: _plain(d.get("uuid"))),
    "memory": ("used and total", lambda n, s, d: f"{d['memory_used'] >> 20} / {_mib(d['memory_total'])}"),
    "memory_total": ("memory", lambda n, s, d: _mib(d["memory_total"])),
    "memory_used": ("memory in use", lambda n, s, d: _mib(d["memory_used"])),
    "memory_free": ("memory not in use", lambda n, s, d: _mib(d["memory_total"] - d["memory_used"])),
    "memory_leased": ("memory promised to leases", lambda n, s, d: _mib(d.get("memory_leased"))),
    "utilization": ("share of the last second in use", lambda n, s, d: _percent(d.get("utilization"))),
    "sessions": ("sessions on it", lambda n, s, d: str(len(d["sessions"]))),
    "users": ("whose they are", lambda n, s, d: _plain(" ".join(sorted({one["user"] for one in d["sessions"]})))),
    "compute_capability": ("of CUDA", lambda n, s, d: ".".join(map(str, d.get("compute_capability") or "-"))),
    "driver": ("NVIDIA driver", lambda n, s, d: _plain(d.get("driver"))),
}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON: servers > devices")
    known = "; ".join(f"{name}: {about}" for name, (about, _) in FIELDS.items())
    parser.add_argument("--fields", metavar="A,B,...", type=_fields, default=DEFAULT, help=f"the columns ({known})")


def _fields(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in FIELDS:
            raise argparse.ArgumentTypeError(f"{name!r} is no field; there are {', '.join(FIELDS)}")
    return names


def run(options: argparse.Namespace) -> int:
    from rgpu import config, registry

    settings = config.load_client()
    addresses = [_address(server, settings) for server in registry.servers(settings) or (config.LOCAL,)]
    with ThreadPoolExecutor(max_workers=min(32, len(addresses))) as pool:
        servers = list(pool.map(lambda address: _ask(address, settings.connect_timeout), addresses))
    failed = [server["error"] for server in servers if "error" in server]
    if options.json:
        print(json.dumps({"servers": servers}, indent=2))
    else:
        print("\n".join(_lines(servers, options.fields)))
    for error in failed:
        print(f"rgpu: {error}", file=sys.stderr)
    return 1 if failed else 0


def _address(server: Any, settings: Any) -> Any:
    """Where a server of the list is; this machine's own devices get a daemon, as a program would start it."""
    from rgpu.client import embedded
    from rgpu.config import LOCAL
    from rgpu.ending import at_end

    if server != LOCAL:
        return server
    daemon = embedded.EmbeddedDaemon(settings.local_devices)
    at_end(daemon.stop)
    return daemon.address


def _ask(address: Any, timeout: float) -> Entry:
    """One server's own description, or why there is none."""
    from rgpu.client.control import DaemonClient
    from rgpu.errors import RgpuError

    daemon = DaemonClient(address, timeout)
    try:
        return {**daemon.snapshot(), "address": str(address)}
    except RgpuError as error:
        return {"address": str(address), "error": str(error), "reason": error.reason}
    finally:
        daemon.close()


def _lines(servers: list[Entry], names: list[str]) -> list[str]:
    devices = [(server, device) for server in servers for device in server.get("devices", ())]
    rows = [[name.upper() for name in names]]
    rows += [[FIELDS[name][1](n, server, device) for name in names] for n, (server, device) in enumerate(devices)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(names))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
