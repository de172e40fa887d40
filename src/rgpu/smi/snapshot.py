"""Ask all servers of the pool at once; one slow or dead server costs a row, never the others' time.

Gives plain dictionaries, servers > devices > sessions: what ``--json`` prints and ``render`` draws.
Never attaches and never needs a matching version.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import rgpu.config as config
from rgpu.config import Address
from rgpu.errors import RgpuError, ServerUnavailable
from rgpu.link.control import ControlClient
from rgpu.wire import control
from rgpu.wire.codec import pack, unpack

ANSWER_SECONDS = 2.0


def take(addresses: Iterable[Address]) -> list[dict[str, Any]]:
    """One entry a server, in order; ``pool_index`` counts devices over all that answered.

    A server that did not answer has ``reachable`` false, an ``error`` and no devices.
    """
    addresses = list(addresses)
    if not addresses:
        return []
    with ThreadPoolExecutor(min(len(addresses), 64)) as threads:
        servers = list(threads.map(ask, addresses))
    ordinal = 0
    for server in servers:
        for device in server["devices"]:
            device["pool_index"] = ordinal
            ordinal += 1
    return servers


def ask(address: Address) -> dict[str, Any]:
    """One server's entry."""
    client = ControlClient(address.host, address.port, ANSWER_SECONDS)
    entry: dict[str, Any] = {"address": str(address), "reachable": False, "error": None, "devices": []}
    try:
        answer = control.Control.decode(unpack(client.request(pack(control.Snapshot.encode()))))
        if isinstance(answer, control.Refused.Record):
            raise ServerUnavailable(answer.message)
        entry |= _checked(answer.server)
        entry["reachable"] = True
    except RgpuError as error:
        entry["error"] = str(error).removeprefix(f"rgpu server {address}").lstrip(": ")
    finally:
        client.close()
    return entry


_DEVICE: dict[str, type | tuple[type, ...]] = {
    "index": int,
    "name": str,
    "kind": str,
    "memory_total": int,
    "memory_used": int,
    "utilization": (int, float),
}
_SESSION: dict[str, type | tuple[type, ...]] = {
    "user": str,
    "host": str,
    "pid": int,
    "program": str,
    "memory_used": int,
}


def _checked(server: Any) -> dict[str, Any]:
    """The fields that are drawn are there and of the right type; a newer server may send more."""
    _require(server, {"name": str, "version": str, "devices": list})
    for device in server["devices"]:
        _require(device, _DEVICE | {"sessions": list})
        for session in device["sessions"]:
            _require(session, _SESSION)
    return server


def _require(entry: Any, fields: dict[str, type | tuple[type, ...]]) -> None:
    if not isinstance(entry, dict) or not all(
        isinstance(entry.get(name), kind) for name, kind in fields.items()
    ):
        raise ServerUnavailable("it answered with something that this rgpu-smi does not understand")


def embedded_addresses() -> list[Address]:
    """The daemons that programs of this user started for themselves; leftovers are removed."""
    found = []
    for path in sorted(config.runtime_directory().glob("embedded-*.json")):
        try:
            content = json.loads(path.read_text())
            os.kill(int(content["pid"]), 0)
            found.append(config.parse_address(content["endpoint"]))
        except FileNotFoundError:
            continue  # it ended just now
        except (ValueError, KeyError, TypeError, OSError):
            path.unlink(missing_ok=True)
    return found
