"""How a program is started with `import cupy` meaning rgpu: the environment it gets, and the hand-over to it.

The process is replaced, not wrapped: exit code, signals, terminal and process id are the program's own. On Windows,
which cannot do that, we wait for the program and end as it does.
Shared by `rgpu run` and `python -m rgpu`. Must not import the rest of rgpu: the program does that when it
wants to.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

SITE = str(Path(__file__).resolve().parent / "_site")
NOT_FOUND, NOT_EXECUTABLE = 127, 126  # the shell's exit codes


def alias_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment in which every Python started, and every Python that one starts, has the alias."""
    paths = environ["PYTHONPATH"].split(os.pathsep) if environ.get("PYTHONPATH") else []
    paths = [path for path in paths if path != SITE]
    changed = {**environ, "PYTHONPATH": os.pathsep.join([SITE, *paths])}
    if sys.prefix != sys.base_prefix and not environ.get("VIRTUAL_ENV"):
        # rgpu was called by its path, no environment is activated: `python` means the one that has rgpu.
        changed["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environ.get("PATH", os.defpath)])
    return changed


def replace_process(command: list[str], environ: Mapping[str, str]) -> NoReturn:
    """Become the command. Ends with 127 or 126 and a sentence on stderr when that is impossible."""
    program = shutil.which(command[0], path=environ.get("PATH"))
    if program is None and command[0] in ("python", "python3"):  # many systems have only one of the two names
        program = sys.executable
        command = [program, *command[1:]]
    if program is None:
        there = os.path.exists(command[0])
        reason = "is not executable (chmod +x, or put `python` before it)" if there else "not found"
        print(f"rgpu: {command[0]}: {reason}", file=sys.stderr)
        sys.exit(NOT_EXECUTABLE if there and os.sep in command[0] else NOT_FOUND)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        if sys.platform == "win32":
            sys.exit(_wait_for(program, command, environ))
        os.execve(program, command, dict(environ))
    except OSError as error:
        hint = ": a script needs a first line such as `#!/usr/bin/env python3`" if error.errno == 8 else ""
        print(f"rgpu: {command[0]}: {error.strerror}{hint}", file=sys.stderr)
        sys.exit(NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE)


def _wait_for(program: str, command: list[str], environ: Mapping[str, str]) -> int:
    """The exit code of a program that gets this console and its Ctrl-C."""
    import signal
    import subprocess

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the program decides what an interrupt means
    return subprocess.run([program, *command[1:]], env=dict(environ)).returncode  # noqa: S603 - what the user asked for
