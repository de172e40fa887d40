"""What `rgpu run` and `rgpu request` have in common: the options for parts of devices, and leases for a program.

Not a command itself. Imports neither NumPy nor the array side of rgpu.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

# Exit codes, those of sysexits.h: try again later; a server does not answer; the key is wrong; another version
BUSY, UNAVAILABLE, DENIED, OTHER_VERSION = 75, 69, 77, 76

#: option -> the setting that carries it to the program
SETTINGS = {
    "devices": "gpus", "memory": "memory", "compute": "compute", "filters": "filters",
    "placement": "placement", "wait_for": "wait_for",
}  # fmt: skip


def add_options(parser: argparse.ArgumentParser) -> None:
    from rgpu import config

    add = parser.add_argument
    add("-n", "--devices", type=_positive, metavar="N", help="so many devices, all or none")
    add("-m", "--memory", type=typed(config.parse_part), metavar="MEM",
        help="memory of each: 8GiB, 512MiB, or a part such as 0.5 or 50%%")  # fmt: skip
    add("-p", "--compute", "--partial", type=typed(config.parse_share), metavar="SHARE",
        help="share of each one's compute, 0.25 or 25%%")  # fmt: skip
    add("--filter", dest="filters", action="append", metavar="F",
        help="only devices with name=*A100*, memory>=40GiB, capability>=8.0, driver>=535, server=NAME, rdma=1, "
             "label.zone=a, ... (may be given again)")  # fmt: skip
    add("--placement", choices=config.PLACEMENTS, help="least used devices first, fullest first, or all on one server")
    add("--wait-for", type=typed(config.parse_duration), metavar="T", help="wait in the queue at most so long: 10m")


def repeated(options: argparse.Namespace) -> list[str]:
    """The options that were given, as arguments for another command."""
    given: list[str] = []
    for option in SETTINGS:
        value = getattr(options, option)
        flag = "--" + option.replace("filters", "filter").replace("_", "-")
        for one in value if isinstance(value, list) else () if value is None else (value,):
            given += [flag, str(one)]
    return given


def asked(options: argparse.Namespace) -> dict[str, Any]:
    """The settings that were given."""
    return {name: value for option, name in SETTINGS.items() if (value := getattr(options, option)) is not None}


def hold(options: argparse.Namespace, seconds: float = 0.0) -> tuple[list, dict[str, str]]:
    """Leases for what the options ask for, and the environment that gives them to a program: with servers in the
    pool the leases are got here; a pool of this machine alone is made by the program, which gets the wishes."""
    from rgpu import config, registry
    from rgpu.client.holding import acquire, daemons_of, lend, terms_of
    from rgpu.errors import ConfigError

    wishes = asked(options)
    settings = config.load_client(wishes)
    if settings.lease:
        if set(wishes) - {"gpus"} or seconds:
            raise ConfigError("there is a lease already (RGPU_LEASE): leave the options out, or `unset RGPU_LEASE`")
        return [], _fewer(settings, wishes)
    terms = terms_of(settings, seconds)
    if terms is None:
        return [], {}
    if registry.used(settings):
        parts, daemons = lend(settings, terms, lambda text: print(f"rgpu: {text}", file=sys.stderr, flush=True))
        for daemon in daemons:
            daemon.close()
        return parts, _variables(parts)
    if config.LOCAL in (registry.servers(settings) or (config.LOCAL,)):
        if seconds:
            raise ConfigError("devices of this machine alone cannot be held over runs: start an rgpu-server for them")
        return [], {f"RGPU_{name.upper()}": _text(value) for name, value in wishes.items()}
    daemons = daemons_of(settings)
    try:
        parts = acquire(
            daemons, terms, wait=settings.wait_for, show=settings.visible_devices, redundancy=settings.redundancy,
            told=lambda text: print(f"rgpu: {text}", file=sys.stderr, flush=True),
        )  # fmt: skip
    finally:
        for daemon in daemons:
            daemon.close()
    return parts, _variables(parts)


def _variables(parts: list) -> dict[str, str]:
    """What gives leases to a program. Their numbers are the program's: what was visible before has been heeded."""
    wanted = {f"RGPU_{name.upper()}": "" for name in SETTINGS.values()}
    return wanted | {"RGPU_LEASE": ",".join(map(str, parts)), "RGPU_VISIBLE_DEVICES": ""}


def _fewer(settings: Any, wishes: Mapping[str, Any]) -> dict[str, str]:
    """Inside a lease, ``-n`` shows its first devices."""
    if "gpus" not in wishes:
        return {}
    shown = settings.visible_devices
    if shown is None:
        shown = tuple(str(n) for n in range(wishes["gpus"]))
    return {"RGPU_VISIBLE_DEVICES": ",".join(shown[: wishes["gpus"]]) or "-1"}  # an empty text would remove it


def saying(action: Callable[[], int]) -> int:
    """The exit code of an action whose failures are sentences on stderr."""
    from rgpu.errors import AuthenticationError, ConfigError, NoSuchDevice, RgpuError, ServerBusy, VersionMismatch

    codes = {ServerBusy: BUSY, NoSuchDevice: 2, AuthenticationError: DENIED, VersionMismatch: OTHER_VERSION}

    try:
        return action()
    except ConfigError:
        raise
    except RgpuError as error:
        print(f"rgpu: {error}", file=sys.stderr)
        return next((code for kind, code in codes.items() if isinstance(error, kind)), UNAVAILABLE)


def environment(changes: Mapping[str, str]) -> dict[str, str]:
    """This process's environment with the changes; an empty text removes."""
    merged = {**os.environ, **changes}
    return {name: value for name, value in merged.items() if value or name not in changes}


def _text(value: Any) -> str:
    return ",".join(value) if isinstance(value, (list, tuple)) else str(value)


def _positive(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of devices; write 1, 2, ...")
    return number


def typed(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    def convert(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert
