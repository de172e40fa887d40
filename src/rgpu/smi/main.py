"""The command ``rgpu-smi``: what nvidia-smi shows, for the whole pool.

Needs ZeroMQ and msgpack only and starts no device. Exit codes are nvidia-smi's: 0, 2 for arguments
without a meaning, 6 for a device that is not there, 9 when no server could be reached.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import rgpu.config as config
from rgpu._version import __version__
from rgpu.config import Address
from rgpu.errors import ConfigError
from rgpu.smi import render, snapshot

OK, INVALID, NOT_FOUND, NO_SERVER = 0, 2, 6, 9

_UNSET = (
    "RGPU_SERVERS is not set, so there is no pool to show. "
    "Set it (RGPU_SERVERS=gpuhost1:47800,gpuhost2:47800), "
    "or name the servers in rgpu.toml ([client] servers)."
)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rgpu-smi",
        description="Show the devices and sessions of the pool in RGPU_SERVERS.",
        epilog="Exit codes: 0 fine, 2 bad argument, 6 no such device, 9 no server reachable.",
    )
    add = parser.add_argument
    add("-L", "--list-gpus", action="store_true", help="one line for each device")
    add(
        "-l",
        "--loop",
        metavar="SEC",
        nargs="?",
        const=5.0,
        type=_seconds,
        help="again every SEC seconds (default: 5)",
    )
    add("-i", "--id", metavar="ID", type=int, help="only the device with this number in the pool")
    add("--json", action="store_true", help="servers > devices > sessions as JSON")
    add("--servers", action="store_true", help="one line for each server")
    add("--version", action="version", version=f"rgpu-smi {__version__}")
    return parser


def _seconds(text: str) -> float:
    try:
        return config.parse_seconds(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def main(argv: Sequence[str] | None = None) -> int:
    options = build_parser().parse_args(argv)
    try:
        addresses = _addresses()
        while True:
            code = _show(options, addresses)
            if options.loop is None:
                return code
            time.sleep(options.loop)
    except ConfigError as error:
        print(f"rgpu-smi: {error}", file=sys.stderr)
        return INVALID
    except KeyboardInterrupt:
        return OK if options.loop is not None else 130
    except BrokenPipeError:  # the reader, like head, has seen enough
        sys.stderr.close()
        return OK


def _addresses() -> list[Address]:
    servers = config.load_client().servers
    if not servers:
        local = snapshot.embedded_addresses()
        if not local:
            print(f"rgpu-smi: {_UNSET}", file=sys.stderr)
        return local
    addresses: list[Address] = []
    for server in servers:
        addresses += [server] if isinstance(server, Address) else snapshot.embedded_addresses()
    return addresses


def _show(options: argparse.Namespace, addresses: list[Address]) -> int:
    servers = snapshot.take(addresses)
    if not servers and not options.json:
        return NO_SERVER
    code = OK if any(server["reachable"] for server in servers) else NO_SERVER
    if options.id is not None and code == OK:
        chosen = render.only(servers, options.id)
        if chosen is None:
            count = sum(len(server["devices"]) for server in servers)
            print(f"rgpu-smi: no device {options.id} was found in the pool; it has {count}", file=sys.stderr)
            return NOT_FOUND
        servers = chosen
    print(_text(options, servers), flush=True)
    return code


def _text(options: argparse.Namespace, servers: list[dict[str, Any]]) -> str:
    if options.json:
        return json.dumps({"rgpu_version": __version__, "servers": servers}, indent=2)
    if options.list_gpus:
        return render.listing(servers)
    if options.servers:
        return render.server_listing(servers)
    return render.table(servers, __version__)
