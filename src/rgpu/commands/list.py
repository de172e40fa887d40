"""`rgpu list`: the devices of every server of the pool, one line each."""

from __future__ import annotations

import argparse
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

HELP = "list the pool's devices"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON: servers > devices")


def run(options: argparse.Namespace) -> int:
    from rgpu import config

    settings = config.load_client()
    addresses = [_address(server, settings) for server in settings.servers or (config.LOCAL,)]
    with ThreadPoolExecutor(max_workers=min(32, len(addresses))) as pool:
        servers = list(pool.map(lambda address: _ask(address, settings.connect_timeout), addresses))
    failed = [server["error"] for server in servers if "error" in server]
    if options.json:
        print(json.dumps({"servers": servers}, indent=2))
    else:
        print("\n".join(_lines(servers)))
    for error in failed:
        print(f"rgpu: {error}", file=sys.stderr)
    return 1 if failed else 0


def _address(server: Any, settings: Any) -> Any:
    """Where a server of the list is; this machine's own devices get a daemon, as a program would start it."""
    from rgpu.client import embedded
    from rgpu.config import LOCAL

    return embedded.EmbeddedDaemon(settings.local_devices).address if server == LOCAL else server


def _ask(address: Any, timeout: float) -> dict[str, Any]:
    """One server's own description, or why there is none."""
    from rgpu.client.control import DaemonClient
    from rgpu.errors import RgpuError

    daemon = DaemonClient(address, timeout)
    try:
        return {"address": str(address), **daemon.snapshot()}
    except RgpuError as error:
        return {"address": str(address), "error": str(error)}
    finally:
        daemon.close()


def _memory(device: dict[str, Any]) -> str:
    return f"{device['memory_used'] >> 20} / {device['memory_total'] >> 20} MiB"


def _lines(servers: list[dict[str, Any]]) -> list[str]:
    rows, ordinal = [("ORDINAL", "SERVER", "DEVICE", "KIND", "MEMORY", "NAME")], 0
    for server in servers:
        for device in server.get("devices", ()):
            where = (str(ordinal), server["address"], str(device["index"]))
            rows.append((*where, device["kind"], _memory(device), device["name"]))
            ordinal += 1
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
