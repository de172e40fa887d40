"""`rgpu request`: hold devices over many runs, in a shell or for a time; `rgpu release` gives them back."""

from __future__ import annotations

import argparse
import os
import sys

from rgpu.commands import sharing
from rgpu.launch import alias_environment, replace_process

HELP = "hold devices over many runs"
DESCRIPTION = """Lease devices and start a shell in which every program uses them (`import cupy` means rgpu in it).
They are given back when the shell ends, or after the time of --for.

  rgpu request -n 2 -m 8GiB                        # a shell
  eval "$(rgpu request -n 2 --for 2h --print)"     # this shell, for two hours; `rgpu release` ends it before
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    from rgpu import config

    sharing.add_options(parser)
    add = parser.add_argument
    add("--for", dest="seconds", type=sharing.typed(config.parse_duration), metavar="T", help="hold them so long: 2h")
    add("--print", action="store_true", help="start no shell: print the variable that programs need (needs --for)")


def run(options: argparse.Namespace) -> int:
    if options.print and not options.seconds:
        options.parser.error("--print needs --for: without a shell nothing tells when the devices are free again")
    return sharing.saying(lambda: _hold(options))


def _hold(options: argparse.Namespace) -> int:
    from rgpu.client import held, keeper
    from rgpu.errors import ConfigError

    if options.devices is None:
        options.devices = 1
    if os.environ.get("RGPU_LEASE"):
        raise ConfigError("there is a lease already (RGPU_LEASE): `rgpu release` it first, or `unset RGPU_LEASE`")
    parts, changes = sharing.hold(options, options.seconds or 0.0)
    if not parts:
        raise ConfigError("devices of this machine alone cannot be held over runs: start an rgpu-server for them")
    held.remember(parts)
    for part in parts:
        devices = ", ".join(map(str, part.devices))
        print(f"rgpu: lease {part.name}: device {devices} of {part.address}", file=sys.stderr)
    if options.print:
        print(f"export RGPU_LEASE='{changes['RGPU_LEASE']}'")
        return 0
    environ = alias_environment(sharing.environment(changes))
    keeper.start(parts, environ)  # also of a lease that has its time: the shell may end before
    return replace_process([os.environ.get("SHELL") or os.environ.get("COMSPEC") or "/bin/sh"], environ)
