"""`rgpu drain`: take a server out of use without hurting who is at work."""

from __future__ import annotations

import argparse
import time

from rgpu.commands import sharing

HELP = "let a server grant nothing new, and wait until it is free"
DESCRIPTION = """Tell a server to grant no new leases, and wait until the present ones have ended. Sessions move to
other servers of their programs' pools by themselves, where there is room; the programs go on meanwhile.

  rgpu drain gpuhost:47800               # wait as long as it takes; Ctrl-C leaves the server draining
  rgpu drain gpuhost --deadline 1h       # leases that are left then are ended; their holders are warned
  rgpu drain gpuhost --off               # grant leases again
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    from rgpu import config

    add = parser.add_argument
    add("server", type=sharing.typed(config.parse_address), metavar="SERVER", help="host or host:port")
    add("--deadline", type=sharing.typed(config.parse_duration), metavar="T", help="end what is left after so long")
    add("--no-wait", action="store_true", help="return at once")
    add("--off", action="store_true", help="grant leases again")


def run(options: argparse.Namespace) -> int:
    return sharing.saying(lambda: _drain(options))


def _drain(options: argparse.Namespace) -> int:
    from rgpu.client.control import DaemonClient

    daemon = DaemonClient(options.server)
    try:
        daemon.drain(not options.off, options.deadline or 0.0)
        if options.off:
            print(f"{options.server} grants leases again")
            return 0
        said = None
        while True:
            leases = sum(len(device["leases"]) for device in daemon.snapshot()["devices"])
            if leases != said:
                print(f"{options.server} is draining; {leases} leases are left" if leases else
                      f"{options.server} is drained", flush=True)  # fmt: skip
                said = leases
            if not leases or options.no_wait:
                return 0
            time.sleep(0.5)
    finally:
        daemon.close()
