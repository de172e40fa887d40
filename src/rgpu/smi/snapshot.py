"""Ask all servers of the pool at once; one slow or dead server costs a row, never the others' time.

Gives plain dictionaries, servers > devices > sessions: what ``--json`` prints and ``render`` draws.
Never attaches and never needs a matching version.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import rgpu.config as config
from rgpu import registry, tokens
from rgpu.config import Address
from rgpu.errors import ConfigError, RegistryUnavailable, RgpuError, ServerUnavailable
from rgpu.link.control import ControlClient
from rgpu.wire import control
from rgpu.wire.codec import pack, unpack

ANSWER_SECONDS = 2.0
_SLACK = 0.2  # for threads to be told that time is up
_REMEMBER_SECONDS = 5.0  # between notes of who answered

Entry = dict[str, Any]


def take(addresses: Iterable[Address], timeout: float = ANSWER_SECONDS) -> list[Entry]:
    """One entry a server, in order; ``pool_index`` counts devices over all that answered.

    A server that did not answer has ``reachable`` false, an ``error``, no devices, and under ``last_answer`` the
    time at which it last did (None: never, as far as is known here).
    """
    addresses = list(addresses)
    answers: dict[Address, Entry] = {}

    def work(address: Address) -> None:
        answers[address] = ask(address, timeout)

    deadline = time.monotonic() + timeout + _SLACK
    threads = [threading.Thread(target=work, args=(address,), daemon=True) for address in addresses]
    settings, waiting = config.load_client(), []
    if registry.used(settings):
        look = lambda: waiting.extend(_waiting(settings, timeout))  # noqa: E731
        threads.append(threading.Thread(target=look, daemon=True))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    late = {"error": "did not answer within the time limit", "reason": "no-answer"}
    servers = [printable(answers.get(address) or _entry(address) | late) for address in addresses]
    _last_answers(servers)
    for row in printable(waiting):
        for server in servers:
            if server["reachable"] and (not row["servers"] or server["address"] in row["servers"]):
                server.setdefault("queue", []).append(row)
    ordinal = 0
    for server in servers:
        for device in server["devices"]:
            device["pool_index"] = ordinal
            ordinal += 1
    return servers


def _waiting(settings: config.ClientConfig, timeout: float) -> list[Entry]:
    """The queue in the registry, in which one row stands for each server that it waits for."""
    try:
        return registry.queue(settings, timeout)
    except RegistryUnavailable:  # what the servers say is shown all the same
        return []


def ask(address: Address, timeout: float = ANSWER_SECONDS) -> Entry:
    """One server's entry."""
    entry = _entry(address)
    client = None
    try:
        client = ControlClient(address.host, address.port, timeout, tokens.find(address))
        answer = control.Control.decode(unpack(client.request(pack(control.Snapshot.encode()))))
        if isinstance(answer, control.Refused.Record):
            raise ServerUnavailable(answer.message)
        entry |= _checked(answer.server)
        entry |= {"reachable": True, "address": str(address), "rtt": client.round_trip}
    except RgpuError as error:
        entry["error"] = str(error).removeprefix(f"rgpu server {address}").lstrip(": ")
        entry["reason"] = error.reason
    finally:
        if client is not None:
            client.close()
    return entry


def printable(value: Any) -> Any:
    """The same, with every character that could steer a terminal replaced. All that is drawn has passed here."""
    if isinstance(value, str):
        return value if value.isprintable() else "".join(c if c.isprintable() else "?" for c in value)
    if isinstance(value, dict):
        return {printable(key): printable(inner) for key, inner in value.items()}
    return [printable(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def _entry(address: Address) -> Entry:
    return {"address": str(address), "reachable": False, "error": None, "rtt": None, "devices": []}


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
_HOLDER: dict[str, type | tuple[type, ...]] = {"user": str, "host": str, "pid": int}
# What is drawn where it is there: a value of another type would break the drawing, so it is left out.
_NUMBERS = """temperature temperature_memory power power_limit power_enforced_limit fan_speed age compute waited uptime
    ecc_uncorrected_volatile seconds_left idle rtt"""
_WHOLE = """memory_leased memory_limit memory_spilled memory_reserved memory bar1_total bar1_used clocks_event_reasons
    clocks_event_reasons_supported pci_device_id pci_subsystem_id pcie_sent pcie_received count position pid waiting"""
_TEXTS = """performance_state compute_mode mig_mode pci_bus_id persistence_mode display_active ecc_mode uuid link id
    user host program cuda driver page"""
_OPTIONAL: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(_NUMBERS.split(), (int, float, type(None))),
    **dict.fromkeys(_WHOLE.split(), (int, type(None))),
    **dict.fromkeys(_TEXTS.split(), (str, type(None))),
    **dict.fromkeys(("clocks", "clocks_max", "temperature_limits", "topology", "mig"), (dict, type(None))),
    **dict.fromkeys(("queue", "leases", "compute_capability"), (list, type(None))),
    "utilization": (int, float),
}


def _checked(server: Any) -> Entry:
    """The fields that are drawn are there and of the right type; a newer server may send more."""
    _require(server, {"name": str, "version": str, "devices": list})
    for device in server["devices"]:
        _require(device, _DEVICE | {"sessions": list})
        device["samples"] = _samples(device.get("samples"))
        for session in device["sessions"]:
            _require(session, _SESSION)
            pair = session.get("redundancy")
            if not (isinstance(pair, list) and len(pair) == 2 and all(isinstance(n, int) for n in pair)):
                session.pop("redundancy", None)
        for lease in _listed(device, "leases"):
            _require(lease, _HOLDER | {"sessions": int})
    for waiting in _listed(server, "queue"):
        _require(waiting, _HOLDER)
    return server


def _samples(told: Any) -> Entry:
    """By name five numbers: seconds, count, highest, lowest, mean."""
    found = told if isinstance(told, dict) else {}
    return {
        name: numbers
        for name, numbers in found.items()
        if isinstance(numbers, list) and len(numbers) == 5 and all(isinstance(n, (int, float)) for n in numbers)
    }


def _listed(entry: Entry, name: str) -> list[Any]:
    found = entry.get(name)
    return found if isinstance(found, list) else []


def _require(entry: Any, fields: dict[str, type | tuple[type, ...]]) -> None:
    if not isinstance(entry, dict) or not all(isinstance(entry.get(name), kind) for name, kind in fields.items()):
        raise ServerUnavailable("it answered with something that this rgpu-smi does not understand")
    for name, kind in _OPTIONAL.items():
        if name in entry and not isinstance(entry[name], kind):
            del entry[name]


# When each server last answered, over runs of this command


def _last_answers(servers: list[Entry]) -> None:
    """Note who answered now, and tell of the others when they last did."""
    try:
        path = config.runtime_directory() / "last-answers.json"
    except (ConfigError, OSError):  # a picture without ages is better than none
        return
    known = _read(path)
    now = time.time()
    fresh = [s["address"] for s in servers if s["reachable"] and now - known.get(s["address"], 0) > _REMEMBER_SECONDS]
    for server in servers:
        server["last_answer"] = now if server["reachable"] else known.get(server["address"])
    if fresh:
        with contextlib.suppress(OSError):
            draft = path.with_suffix(f".{os.getpid()}")
            draft.write_text(json.dumps(known | dict.fromkeys(fresh, now)))
            draft.replace(path)


def _read(path: Path) -> dict[str, float]:
    try:
        content = json.loads(path.read_text())
        return {str(address): float(moment) for address, moment in content.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def embedded_addresses() -> list[Address]:
    """The daemons that programs of this user started for themselves; leftovers are removed."""
    found = []
    if sys.platform != "linux":  # no daemon runs there
        return found
    for path in sorted(config.runtime_directory().glob("embedded-*.json")):
        try:
            content = json.loads(path.read_text())
            os.kill(int(content["pid"]), 0)
            found.append(config.parse_address(content["endpoint"]).but(own=True))
        except FileNotFoundError:
            continue  # it ended just now
        except (ValueError, KeyError, TypeError, OSError):
            path.unlink(missing_ok=True)
    return found


def addresses() -> list[Address]:
    """The servers of the pool; where nobody names any, the daemons that this user's programs started."""
    servers = registry.servers(config.load_client())
    if not servers:
        return embedded_addresses()
    found: list[Address] = []
    for server in servers:
        found += [server] if isinstance(server, Address) else embedded_addresses()
    return found
