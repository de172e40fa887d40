"""The `rgpu` command: run a program on remote devices, list them, show versions.

Only reads arguments and prints; starting programs is launch's work, asking servers is link's. Must not import
the array side of rgpu: `rgpu run` adds its own start to every program it starts.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rgpu.launch import alias_environment, replace_process

RUN_HELP = """Run a command with `import cupy` meaning rgpu, in it and in every Python it starts.

  rgpu run -- python train.py --epochs 3
  rgpu run -n 2 -- ./train.py          # a script with a #! line
  RGPU_SERVERS=gpu1,gpu2 rgpu run -- pytest tests/

The exit code is the command's; 127: not found, 126: not executable. `python -I`, `-E` and `-S` switch the
alias off.
"""


def _positive(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of devices; write 1, 2, ...")
    return number


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="rgpu",
        description="GPUs of other hosts as local devices.",
        epilog="The pool: RGPU_SERVERS=host[:port],... or rgpu.toml.",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    run = commands.add_parser(
        "run",
        help="run a program on the pool's devices",
        description=RUN_HELP,
        formatter_class=raw,
        usage="rgpu run [-n N] -- COMMAND [ARGUMENT ...]",
    )
    run.add_argument(
        "-n", "--devices", type=_positive, metavar="N", help="let the program see N devices at most"
    )
    run.add_argument(
        "program", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="the command and its arguments"
    )
    run.set_defaults(action=_run, parser=run)
    listing = commands.add_parser(
        "list", help="list the pool's devices", description="List the devices of every server of the pool."
    )
    listing.add_argument("--json", action="store_true", help="print JSON: servers > devices")
    listing.set_defaults(action=_list)
    version = commands.add_parser("version", help="print the versions of rgpu and of the CuPy it follows")
    version.set_defaults(action=_version)
    return parser


def _run(args: argparse.Namespace) -> int:
    command = args.program[1:] if args.program[:1] == ["--"] else args.program
    if not command:
        args.parser.error("no command: rgpu run [-n N] -- COMMAND [ARGUMENT ...]")
    replace_process(command, alias_environment(os.environ, args.devices))


def _version(args: argparse.Namespace) -> int:
    from rgpu import surface
    from rgpu._version import __version__

    print(f"rgpu {__version__} (the API of CuPy {surface.cupy_version()}), Python {sys.version.split()[0]}")
    return 0


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


def _address(server: Any, settings: Any) -> Any:
    """Where a server of the list is; this machine's own devices get a daemon, as a program would start it."""
    from rgpu.client import embedded
    from rgpu.config import LOCAL

    return embedded.EmbeddedDaemon(settings.local_devices).address if server == LOCAL else server


def _memory(device: dict[str, Any]) -> str:
    return f"{device['memory_used'] >> 20} / {device['memory_total'] >> 20} MiB"


def _device_lines(servers: list[dict[str, Any]]) -> list[str]:
    rows, ordinal = [("ORDINAL", "SERVER", "DEVICE", "KIND", "MEMORY", "NAME")], 0
    for server in servers:
        for device in server.get("devices", ()):
            rows.append(
                (
                    str(ordinal),
                    server["address"],
                    str(device["index"]),
                    device["kind"],
                    _memory(device),
                    device["name"],
                )
            )
            ordinal += 1
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _list(args: argparse.Namespace) -> int:
    from rgpu import config

    settings = config.load_client()
    addresses = [_address(server, settings) for server in settings.servers or (config.LOCAL,)]
    with ThreadPoolExecutor(max_workers=min(32, len(addresses))) as pool:
        servers = list(pool.map(lambda address: _ask(address, settings.connect_timeout), addresses))
    failed = [server["error"] for server in servers if "error" in server]
    if args.json:
        print(json.dumps({"servers": servers}, indent=2))
    else:
        print("\n".join(_device_lines(servers)))
    for error in failed:
        print(f"rgpu: {error}", file=sys.stderr)
    return 1 if failed else 0


def main(argv: list[str] | None = None) -> int:
    from rgpu.errors import ConfigError

    args = _parser().parse_args(argv)
    try:
        return args.action(args)
    except ConfigError as error:
        print(f"rgpu: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
