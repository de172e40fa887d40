"""The `rgpu` command: a table of its commands.

Each command is a module of `rgpu.commands` with `HELP`, `arguments(parser)` and `run(options)`; only the one
that is asked for is imported. Must not import the array side of rgpu: `rgpu run` adds its own start to every
program it starts.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys

COMMANDS = (
    *("run", "request", "release", "drain", "checkpoint", "list", "health", "netperf", "doctor", "token", "web"),
    "version",
)
_RAW = argparse.RawDescriptionHelpFormatter


def _parser(wanted: str | None) -> argparse.ArgumentParser:
    """The parser of all commands, or of the one that is wanted."""
    parser = argparse.ArgumentParser(
        prog="rgpu",
        description="GPUs of other hosts as local devices.",
        epilog="The pool: RGPU_SERVERS=host[:port],..., RGPU_REGISTRY=etcd://host[:port],... or rgpu.toml.",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in (wanted,) if wanted in COMMANDS else COMMANDS:
        command = importlib.import_module(f"rgpu.commands.{name}")
        about = getattr(command, "DESCRIPTION", command.HELP)
        sub = commands.add_parser(name, help=command.HELP, description=about, formatter_class=_RAW)
        command.arguments(sub)
        sub.set_defaults(action=command.run, parser=sub)
    return parser


def main(argv: list[str] | None = None) -> int:
    from rgpu.errors import ConfigError, RegistryUnavailable

    argv = sys.argv[1:] if argv is None else argv
    options = _parser(argv[0] if argv else None).parse_args(argv)
    try:
        return options.action(options)
    except ConfigError as error:
        print(f"rgpu: {error}", file=sys.stderr)
        return 2
    except RegistryUnavailable as error:
        print(f"rgpu: {error}", file=sys.stderr)
        return 69  # sysexits.h: unavailable, as where a server does not answer
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader, like head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


if __name__ == "__main__":
    sys.exit(main())
