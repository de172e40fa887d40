"""Keeps the leases of a program that was started with them, and gives them back when it ends.

`rgpu run` becomes the program, so somebody else has to hold its leases: a process of its own that is not the
program's child, sees its end at once, and ends then. If it is killed the servers take the leases back by themselves.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rgpu.client.holding import Part, parse_part

LOOK_SECONDS = 0.5  # between looks, on kernels without process descriptors


def start(parts: Sequence[Part], environ: Mapping[str, str]) -> None:
    """Keep ``parts`` until this process, whatever program it becomes, ends."""
    texts = ",".join(f"{part}/{part.renew:g}" for part in parts)
    if not hasattr(os, "fork"):  # there this process stays and waits for the program
        atexit.register(_holder(texts).close, give_back=True)
        return
    # By the environment: arguments can be read by everybody on this machine, and who knows a lease may use it.
    subprocess.run(
        [sys.executable, "-P", "-m", "rgpu.client.keeper", str(os.getpid())],
        env={**environ, "RGPU_KEEP": texts},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        check=True,
    )


def main() -> int:
    pid = int(sys.argv[1])
    ended = _watch(pid)
    if os.fork():
        return 0  # who started us goes on
    os.setsid()
    holder = _holder(os.environ["RGPU_KEEP"])
    try:
        ended()
    finally:
        holder.close(give_back=True)
    return 0


def _holder(texts: str) -> Any:
    from rgpu.client.control import DaemonClient
    from rgpu.client.holding import Holder

    holder = Holder("rgpu")
    for text in texts.split(","):
        part, _, every = text.rpartition("/")
        found = parse_part(part)
        holder.add(DaemonClient(found.address), found.lease, float(every) or 60.0)
    return holder


def _watch(pid: int):
    """A function that returns when the process has ended."""
    try:
        fd = os.pidfd_open(pid)
    except (AttributeError, OSError):

        def poll() -> None:
            with contextlib.suppress(ProcessLookupError):
                while True:
                    os.kill(pid, 0)
                    select.select([], [], [], LOOK_SECONDS)

        return poll
    return lambda: select.select([fd], [], [])


if __name__ == "__main__":
    sys.exit(main())
