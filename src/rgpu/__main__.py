"""`python -m rgpu prog.py args`, also `-m module`, `-c code` or nothing: Python with cupy meaning rgpu.

Starts the same interpreter again, with the alias in its environment, so that everything after `-m rgpu` means
exactly what it means to Python itself. Interprets none of it.
"""

from __future__ import annotations

import os
import sys

from rgpu.launch import alias_environment, replace_process

USAGE = """usage: python -m rgpu [python options] [script.py | -m module | -c code] [arguments]

Runs Python with `import cupy` and `import cupyx` meaning rgpu. `rgpu run -- COMMAND` does the same for any
command, `rgpu --help` shows the rest.
"""


def interpreter_options(original: list[str], arguments: list[str]) -> list[str]:
    """What is between interpreter and `-m rgpu`: ['-X', 'dev'] for `python -X dev -m rgpu prog.py`."""
    options = original[1 : len(original) - len(arguments)]
    return options[:-2] if options[-2:-1] == ["-m"] else options[:-1]


def main() -> None:
    arguments = sys.argv[1:]
    if arguments in (["-h"], ["--help"]):
        print(USAGE, end="")
        return
    options = interpreter_options(sys.orig_argv, arguments)
    replace_process([sys.executable, *options, *arguments], alias_environment(os.environ))


if __name__ == "__main__":
    main()
