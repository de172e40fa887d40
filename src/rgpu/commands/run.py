"""`rgpu run`: start a program with `import cupy` meaning rgpu, on leased devices. The process becomes the program."""

from __future__ import annotations

import argparse
import os
import sys

from rgpu.commands import sharing
from rgpu.launch import alias_environment, replace_process

HELP = "run a program on the pool's devices"
DESCRIPTION = """Run a command with `import cupy` meaning rgpu, in it and in every Python it starts.

  rgpu run -- python train.py --epochs 3
  rgpu run -n 2 -- ./train.py                   # two devices, a script with a #! line
  rgpu run -n 2 -m 8GiB -p 0.25 -- python x.py  # 8 GiB and a quarter of the compute of each
  rgpu run --ha -- python train.py              # goes on when a server dies
  rgpu run -n 1 --filter 'name=*A100*' --wait-for 10m -- pytest tests/

Devices that are asked for are leased before the program starts, all of them or none, and given back when it ends.
The exit code is the command's; 127: not found, 126: not executable, 75: the devices are not free, 69: a server does
not answer, 77: the key is wrong or missing, 76: another version. `python -I`, `-E` and `-S` switch the alias off.
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "rgpu run [-n N] [-m MEM] [-p SHARE] [OPTIONS] -- COMMAND [ARGUMENT ...]"
    sharing.add_options(parser)
    parser.add_argument("--ha", action="store_true", help="each device is two workers on two servers")
    parser.add_argument("-v", "--verbose", action="store_true", help="say which devices the program got")
    parser.add_argument("program", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="the command and its arguments")


def run(options: argparse.Namespace) -> int:
    command = options.program[1:] if options.program[:1] == ["--"] else options.program
    if not command:
        options.parser.error("no command: rgpu run [-n N] [-m MEM] [-p SHARE] -- COMMAND [ARGUMENT ...]")

    if options.ha:
        os.environ["RGPU_REDUNDANCY"] = "2"

    def start() -> int:
        parts, changes = sharing.hold(options)
        environ = alias_environment(sharing.environment(changes))
        if parts:
            from rgpu.client import keeper

            keeper.start(parts, environ)
        for part in parts if options.verbose else ():
            devices = ", ".join(map(str, part.devices))
            print(f"rgpu: lease {part.name}: device {devices} of {part.address}", file=sys.stderr)
        replace_process(command, environ)

    return sharing.saying(start)
