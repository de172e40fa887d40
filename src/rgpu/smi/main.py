"""The command ``rgpu-smi``: what nvidia-smi shows, with its flags, for the whole pool.

Needs ZeroMQ and msgpack only and starts no device. Exit codes are nvidia-smi's: 0, 2 for arguments
without a meaning, 6 for a device that is not there, 9 when no server could be reached.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, TextIO

import rgpu.config as config
from rgpu._version import __version__
from rgpu.config import Address
from rgpu.errors import ConfigError, RegistryUnavailable
from rgpu.smi import snapshot

OK, INVALID, NOT_FOUND, NO_SERVER = 0, 2, 6, 9

_UNSET = (
    "RGPU_SERVERS is not set, so there is no pool to show. "
    "Set it (RGPU_SERVERS=gpuhost1:47800,gpuhost2:47800), "
    "or name the servers in rgpu.toml ([client] servers)."
)
_EPILOG = """Other forms: rgpu-smi dmon | pmon | topo | top  (-h after each for its options).
Exit codes: 0 fine, 2 bad argument, 6 no such device, 9 no server reachable."""

Servers = list[dict[str, Any]]
Picture = Callable[[Servers, bool], str]  # of the servers; the flag: the first one of a loop


class Problem(Exception):
    """Something to say, and the exit code after it; ``plain``: on the output, as nvidia-smi says it."""

    def __init__(self, code: int, message: str, plain: bool = False) -> None:
        super().__init__(message)
        self.code, self.plain = code, plain


class _Help(argparse.RawDescriptionHelpFormatter):
    """argparse makes one for every argument, to check it, and each would import shutil to ask for a width."""

    def __init__(self, prog: str) -> None:
        try:
            columns = int(os.environ.get("COLUMNS") or os.get_terminal_size().columns)
        except (OSError, ValueError):  # no terminal
            columns = 80
        super().__init__(prog, width=max(20, columns - 2))


def build_parser() -> argparse.ArgumentParser:
    about = "Show the devices and sessions of the pool in RGPU_SERVERS or RGPU_REGISTRY, as nvidia-smi shows a host's."
    parser = argparse.ArgumentParser(prog="rgpu-smi", description=about, epilog=_EPILOG, formatter_class=_Help)
    add = parser.add_argument
    add("-L", "--list-gpus", action="store_true", help="one line for each device")
    add("-s", "--short", action="store_true", help="one line for each device with its load, memory and users")
    add("--servers", action="store_true", help="one line for each server")
    add("-q", "--query", action="store_true", help="everything about each device")
    add("-d", "--display", metavar="TYPES", type=_displays, help="with -q: only MEMORY, UTILIZATION, PIDS, LEASE, ...")
    add("-x", "--xml-format", action="store_true", help="with -q: as XML")
    add("--query-gpu", metavar="FIELDS", help="these properties of each device; --help-query-gpu lists them")
    add("--query-compute-apps", metavar="FIELDS", help="of each session; --help-query-compute-apps lists them")
    add("--format", metavar="FORM", help="for the two above: csv[,noheader][,nounits] or json")
    add("--help-query-gpu", action="store_true", help=argparse.SUPPRESS)
    add("--help-query-compute-apps", action="store_true", help=argparse.SUPPRESS)
    add("--json", action="store_true", help="servers > devices > sessions as JSON")
    _common(parser)
    every = parser.add_mutually_exclusive_group()
    every.add_argument(
        "-l", "--loop", metavar="SEC", nargs="?", const=5.0, type=_seconds, help="again every SEC seconds (default: 5)"
    )
    every.add_argument("-lms", "--loop-ms", metavar="MS", type=_milliseconds, help="again every MS milliseconds")
    add("--version", action="version", version=f"rgpu-smi {__version__}")
    return parser


def _scrolling_parser(name: str, groups: str, default: str, about: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"rgpu-smi {name}", description=about, formatter_class=_Help)
    add = parser.add_argument
    add("-s", "--select", metavar="GROUPS", default=default, type=_letters(groups), help=f"any of {groups}")
    add("-d", "--delay", metavar="SEC", default=1.0, type=_seconds, help="seconds between samples (default: 1)")
    add("-c", "--count", metavar="N", type=_count, help="end after N samples")
    add("-o", "--options", metavar="DT", type=_letters("DT"), help="D: with the date, T: with the time")
    _common(parser)
    return parser


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-i", "--id", metavar="ID", help="only these devices: number in the pool, UUID, PCI bus or SERVER:INDEX, ..."
    )
    parser.add_argument("-f", "--filename", metavar="FILE", help="write there")


def _seconds(text: str) -> float:
    try:
        return config.parse_seconds(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _milliseconds(text: str) -> float:
    return _count(text) / 1000


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number; write 1, 2, ...")
    return int(text)


def _letters(allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if not text or set(text) - set(allowed):
            raise argparse.ArgumentTypeError(f"{text!r} has no meaning; choose of {allowed}")
        return text

    return parse


def _displays(text: str) -> list[str]:
    from rgpu.smi.report import DISPLAYS

    words = [word.strip().upper() for word in text.split(",")]
    for word in words:
        if word not in DISPLAYS:
            raise argparse.ArgumentTypeError(f"{word!r} is none of {', '.join(DISPLAYS)}")
    return words


def main(argv: Sequence[str] | None = None) -> int:
    argv = list(sys.argv[1:] if argv is None else argv)
    try:
        if argv[:1] == ["top"]:
            from rgpu.smi import top

            return top.main(argv[1:])
        return _scroll(argv) if argv[:1] in (["dmon"], ["pmon"]) else _once_or_often(argv)
    except ConfigError as error:
        print(f"rgpu-smi: {error}", file=sys.stderr)
        return INVALID
    except RegistryUnavailable as error:
        print(f"rgpu-smi: {error}", file=sys.stderr)
        return NO_SERVER
    except Problem as problem:
        print(problem if problem.plain else f"rgpu-smi: {problem}", file=sys.stdout if problem.plain else sys.stderr)
        return problem.code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader, like head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK


def _once_or_often(argv: list[str]) -> int:
    topo = argv[:1] == ["topo"]
    options = _topo_options(argv[1:]) if topo else build_parser().parse_args(argv)
    if not topo and (options.help_query_gpu or options.help_query_compute_apps):
        from rgpu.smi import query

        print(query.explain("gpu" if options.help_query_gpu else "compute-apps"))
        return OK
    picture = (_topo_measured if options.bandwidth else _topo) if topo else _picture(options)
    pause = None if topo else options.loop_ms or options.loop
    return _repeat(options, picture, pause, None if pause else 1, quiet=not topo and options.json)


def _topo_options(argv: list[str]) -> argparse.Namespace:
    about = "How the devices of the pool reach each other."
    parser = argparse.ArgumentParser(prog="rgpu-smi topo", description=about, formatter_class=_Help)
    parser.add_argument("-m", "--matrix", action="store_true", help="a matrix (what it shows in any case)")
    about = "measure round trip and bandwidth between the workers, with a session on each device for a moment"
    parser.add_argument("-b", "--bandwidth", action="store_true", help=about)
    _common(parser)
    return parser.parse_args(argv)


def _topo_measured(servers: Servers, first: bool) -> str:
    from rgpu.smi import between

    numbers = [device["pool_index"] for server in servers for device in server["devices"]]
    return _topo(servers, first) + "\n\n" + between.matrix(numbers, between.measure(servers))


def _topo(servers: Servers, _first: bool) -> str:
    from rgpu.smi import monitor

    return monitor.topo(servers)


def _scroll(argv: list[str]) -> int:
    from rgpu.smi import monitor

    name = argv[0]
    draw, groups, default = (
        (monitor.dmon, monitor.DEVICE_GROUPS, "puc") if name == "dmon" else (monitor.pmon, monitor.SESSION_GROUPS, "u")
    )
    what = "device" if name == "dmon" else "session"
    about = f"A line for each {what}, again and again: {monitor.GROUPS_HELP}."
    options = _scrolling_parser(name, "".join(groups), default, about).parse_args(argv[1:])

    def picture(servers: Servers, first: bool) -> str:
        return draw(servers, options.select, options.options or "", first)

    return _repeat(options, picture, options.delay, options.count)


def _picture(options: argparse.Namespace) -> Picture:
    """What the options ask to be drawn; each form loads only what draws it."""
    from rgpu.smi import render

    if options.query_gpu or options.query_compute_apps:
        from rgpu.smi import query

        what = "gpu" if options.query_gpu else "compute-apps"
        try:
            wanted = query.Query(what, options.query_gpu or options.query_compute_apps, options.format)
        except query.BadQuery as error:
            raise Problem(INVALID, str(error), plain=error.plain) from None
        return lambda servers, first: wanted.text(servers, first=first)
    if options.query or options.xml_format or options.display:
        from rgpu.smi import report

        if options.xml_format:
            return lambda servers, _: report.xml(servers)
        return lambda servers, _: report.text(servers, options.display or [])
    if options.json:
        return lambda servers, _: _json(servers)
    if options.list_gpus:
        return lambda servers, _: render.listing(servers)
    if options.short:
        color = not options.filename and sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        return lambda servers, _: render.short(servers, color)
    if options.servers:
        return lambda servers, _: render.server_listing(servers)
    return lambda servers, _: render.table(servers, __version__)


def _json(servers: Servers) -> str:
    import json

    return json.dumps({"rgpu_version": __version__, "servers": servers}, indent=2)


def _repeat(
    options: argparse.Namespace, picture: Picture, pause: float | None, times: int | None, quiet: bool = False
) -> int:
    """Draw once, ``times`` times or (None) until Ctrl-C, ``pause`` seconds from one start to the next."""
    addresses = snapshot.addresses()
    if not addresses and not quiet:
        raise Problem(NO_SERVER, _UNSET)
    file: TextIO = open(options.filename, "w") if options.filename else sys.stdout  # for the process's life
    number, code, began = 0, OK, time.monotonic()
    try:
        while times is None or number < times:
            if number:
                time.sleep(max(0.0, began + number * (pause or 0.0) - time.monotonic()))
            code = _show(options, addresses, picture, number == 0, file)
            number += 1
    except KeyboardInterrupt:
        if times is not None and not number:
            raise
        return OK
    return code


def _show(options: argparse.Namespace, addresses: list[Address], picture: Picture, first: bool, file: TextIO) -> int:
    servers = snapshot.take(addresses)
    reached = any(server["reachable"] for server in servers)
    if options.id is not None and reached:
        servers = _chosen(servers, options.id)
    text = picture(servers, first)
    if text:
        print(text, file=file, flush=True)
    if reached:
        return OK
    if not text:  # a form without a row for servers that do not answer
        for server in servers:
            print(f"rgpu-smi: server {server['address']}: {server['error']}", file=sys.stderr)
    return NO_SERVER


def _chosen(servers: Servers, wanted: str) -> Servers:
    """The servers reduced to the devices that ``-i`` names; exit code 6 for one that is not there."""
    names = {name.strip().lower() for name in wanted.split(",")}
    found: set[str] = set()
    chosen = []
    for server in servers:
        devices = []
        for device in server["devices"]:
            aliases = {str(device["pool_index"]), f"{server['name']}:{device['index']}"}
            aliases |= {str(device[key]) for key in ("uuid", "pci_bus_id") if device.get(key)}
            if hits := names & {alias.lower() for alias in aliases}:
                found |= hits
                devices.append(device)
        if devices:
            chosen.append(server | {"devices": devices})
    if missing := names - found:
        count = sum(len(server["devices"]) for server in servers)
        raise Problem(NOT_FOUND, f"no device {', '.join(sorted(missing))} was found in the pool; it has {count}")
    return chosen


if __name__ == "__main__":
    sys.exit(main())
