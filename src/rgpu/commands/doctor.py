"""`rgpu doctor`: run a program and tell where it waits for the device, and what to write instead."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rgpu.commands import sharing

HELP = "run a program and tell which of its lines wait, and what to write instead"
DESCRIPTION = """Run a program as `rgpu run` does, and when it has ended say for each of its lines how many operations
it issued, how much data it moved, how often and how long it waited for the device, what made it wait, and how to avoid
that.

  rgpu doctor train.py --epochs 1
  rgpu doctor -n 2 -- python -m package.module
  rgpu doctor --json profile.json train.py

The report goes to stderr, the program's output stays as it is, the exit code is the program's. The same without this
command: RGPU_PROFILE=1 (report on stderr), RGPU_PROFILE=FILE (JSON; a folder gets a file for each process).
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "rgpu doctor [-n N] [-m MEM] [-p SHARE] [--json FILE] PROGRAM.py | -- COMMAND [ARGUMENT ...]"
    sharing.add_options(parser)
    parser.add_argument("--json", metavar="FILE", help="write the profiles there too")
    program = "a Python file, or -- and a command"
    parser.add_argument("program", nargs=argparse.REMAINDER, metavar="PROGRAM", help=program)


def run(options: argparse.Namespace) -> int:
    command = options.program[1:] if options.program[:1] == ["--"] else options.program
    if not command:
        options.parser.error("no program: rgpu doctor train.py, or rgpu doctor -- COMMAND [ARGUMENT ...]")
    if command[0].endswith(".py") and options.program[:1] != ["--"]:
        command = [sys.executable, *command]
    with tempfile.TemporaryDirectory(prefix="rgpu-doctor-") as folder:
        code = _finished(
            [sys.executable, "-m", "rgpu.cli", "run", *sharing.repeated(options), "--", *command],
            {**os.environ, "RGPU_PROFILE": folder},
        )
        profiles = [json.loads(path.read_text()) for path in sorted(Path(folder).glob("*.json"))]
    _tell(profiles, options.json)
    return code


def _finished(command: list[str], environ: dict[str, str]) -> int:
    """Run it; its exit code, as a shell gives it. Ctrl-C is the program's: it ends, and the report comes."""
    process = subprocess.Popen(command, env=environ)
    while True:
        try:
            code = process.wait()
            return 128 - code if code < 0 else code
        except KeyboardInterrupt:
            continue


def _tell(profiles: list[dict[str, Any]], file: str | None) -> None:
    from rgpu.client import report

    if not profiles:
        print("rgpu doctor: the program did nothing on a device, or was killed before it could tell", file=sys.stderr)
    for profile in sorted(profiles, key=lambda profile: -len(profile["lines"])):
        print(f"\n{report.text(profile)}", file=sys.stderr)
    if file is not None:
        try:
            Path(file).write_text(json.dumps({"profiles": profiles}, indent=2))
        except OSError as error:
            print(f"rgpu doctor: {file} cannot be written: {error.strerror}", file=sys.stderr)
