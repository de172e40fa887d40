"""`rgpu checkpoint`: a running session's arrays and random states into a file, without its program's help."""

from __future__ import annotations

import argparse
import sys

from rgpu.commands import sharing

HELP = "save the arrays and random states of a running session"
DESCRIPTION = """Save what a session holds at one point of its commands. The program waits meanwhile, and goes on.

  rgpu checkpoint 5f0c2a91 run.ckpt      # the session's name, as rgpu-smi shows it; your own sessions only

rgpu.restore("run.ckpt") gives the arrays back by the numbers of their handles, in the order in which they were
made. A program that wants names uses rgpu.checkpoint itself.
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("session", metavar="SESSION", help="its name in rgpu-smi")
    parser.add_argument("file", metavar="FILE", help="where to; replaced when the new one is whole")


def run(options: argparse.Namespace) -> int:
    return sharing.saying(lambda: _save(options))


def _save(options: argparse.Namespace) -> int:
    from rgpu import config
    from rgpu.client import checkpoint, visit
    from rgpu.client.holding import daemons_of
    from rgpu.errors import NoSuchSession

    settings = config.load_client()
    daemons = daemons_of(settings)
    try:
        for daemon in daemons:
            try:
                visiting = daemon.visit(options.session)
            except NoSuchSession as error:
                if "belongs" in str(error):
                    raise
                continue
            with visit.Visit(daemon, visiting, settings.link) as line:
                entries, missing = visit.kept(line)
                checkpoint.save(options.file, [(0, line, entries)], {"names": {}, "defaults": visit.defaults(entries)})
            print(f"rgpu: {len(entries)} arrays and random states are in {options.file}", file=sys.stderr)
            if missing:
                print(f"rgpu: not in it, to be made again by the program: {missing}", file=sys.stderr)
            return 0
        raise NoSuchSession(f"no server of the pool has a session {options.session}; see rgpu-smi")
    finally:
        for daemon in daemons:
            daemon.close()
