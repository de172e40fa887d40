"""`rgpu release`: give leases back before their time."""

from __future__ import annotations

import argparse
import os
import sys

from rgpu.commands import sharing

HELP = "give back devices that rgpu request holds"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="LEASE", help="as rgpu request printed it (default: this shell's)")
    parser.add_argument("--all", action="store_true", help="all that this user asked for on this machine")


def run(options: argparse.Namespace) -> int:
    return sharing.saying(lambda: _release(options))


def _release(options: argparse.Namespace) -> int:
    from rgpu.client import held
    from rgpu.client.control import DaemonClient
    from rgpu.client.holding import parse_part

    here = [parse_part(text) for text in os.environ.get("RGPU_LEASE", "").split(",") if text]
    known = {part.lease: part for part in [*held.remembered(), *here]}
    chosen = list(known.values())
    if not options.all:
        names = options.names or [part.name for part in here] or ([chosen[0].name] if len(chosen) == 1 else [])
        chosen = [part for part in chosen if part.name in names]
        missing = sorted(set(names) - {part.name for part in chosen})
        if missing or not names:
            have = ", ".join(part.name for part in known.values()) or "none"
            what = f"there is no lease {', '.join(missing)}" if missing else "which lease?"
            print(f"rgpu: {what}; held from this machine: {have}", file=sys.stderr)
            return 2
    for part in chosen:
        daemon = DaemonClient(part.address)
        try:
            daemon.give_back(part.lease)
        finally:
            daemon.close()
        held.forget(part)
        print(f"rgpu: lease {part.name} on {part.address} is given back", file=sys.stderr)
    return 0
