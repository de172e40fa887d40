"""``rgpu-smi`` as a process: its start and its end cost more than its work, and are kept short here."""

from __future__ import annotations

import gc
import os
import sys


def command() -> None:
    """Run the command and end this process.

    Nothing of what is imported is garbage, so nobody looks for it meanwhile; and Python's own end, a sixth of the time
    of `rgpu-smi -L`, would take apart what the system takes back anyway. Not where sessions were open: they end in
    their own way.
    """
    gc.disable()
    from rgpu.smi.main import main

    gc.enable()
    code = main()
    if sys.argv[1:2] not in (["top"], ["topo"]):
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except OSError:  # nobody reads it any more; Python says so, and how, at its own end
            sys.exit(code)
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    command()
