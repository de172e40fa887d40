"""`rgpu run`: start a program with `import cupy` meaning rgpu. The process becomes the program."""

from __future__ import annotations

import argparse
import os

from rgpu.launch import alias_environment, replace_process

HELP = "run a program on the pool's devices"
DESCRIPTION = """Run a command with `import cupy` meaning rgpu, in it and in every Python it starts.

  rgpu run -- python train.py --epochs 3
  rgpu run -n 2 -- ./train.py          # a script with a #! line
  RGPU_SERVERS=gpu1,gpu2 rgpu run -- pytest tests/

The exit code is the command's; 127: not found, 126: not executable. `python -I`, `-E` and `-S` switch the
alias off.
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "rgpu run [-n N] -- COMMAND [ARGUMENT ...]"
    parser.add_argument("-n", "--devices", type=_positive, metavar="N", help="let the program see N devices at most")
    parser.add_argument("program", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="the command and its arguments")


def _positive(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of devices; write 1, 2, ...")
    return number


def run(options: argparse.Namespace) -> int:
    command = options.program[1:] if options.program[:1] == ["--"] else options.program
    if not command:
        options.parser.error("no command: rgpu run [-n N] -- COMMAND [ARGUMENT ...]")
    replace_process(command, alias_environment(os.environ, options.devices))
