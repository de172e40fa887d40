"""`rgpu token`: give people keys to this server, list them, take them back. Run where the server's keys are."""

from __future__ import annotations

import argparse
import re
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

HELP = "give people keys to a server, list them, take them back"
DESCRIPTION = """Keys to a server, made on the host that has the server's own ('rgpu-server init').

  rgpu token create --user alice --memory 40GiB --compute 0.5 --devices 2 --expires 30d -o alice.rgpu
  rgpu token list
  rgpu token revoke alice

alice.rgpu is given to alice, who puts it into ~/.config/rgpu/ or names it in RGPU_TOKEN. A running server takes a new
token, and ends the sessions of a revoked one, within two seconds.
"""
_DAYS = {"m": 1 / 1440, "h": 1 / 24, "d": 1, "w": 7, "y": 365}


def arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="what", metavar="create | list | revoke", required=True)
    create = actions.add_parser("create", help="make a key for somebody")
    add = create.add_argument
    add("--user", required=True, metavar="NAME", help="whose it is; what rgpu-smi shows")
    add("--memory", metavar="BYTES", help="most memory of one device, like 40GiB (default: all of it)")
    add(
        "--compute",
        metavar="SHARE",
        type=_share,
        default=0.0,
        help="most of one device's time, 0.1 to 1 (default: all)",
    )
    add("--devices", metavar="N", type=_count, default=0, help="most devices at once (default: all)")
    add("--expires", metavar="TIME", type=_expiry, help="30d, 12h or a date like 2027-01-31 (default: never)")
    add("--admin", action="store_true", help="may see and end everybody's sessions")
    add(
        "--endpoint",
        metavar="HOST[:PORT]",
        action="append",
        help="where the server is reached (default: this host's name)",
    )
    add("-o", "--output", metavar="FILE", required=True, help="where to write the token; refuses to replace a file")
    listing = actions.add_parser("list", help="who has a key")
    revoke = actions.add_parser("revoke", help="take keys back: those of a user, or one by its id")
    revoke.add_argument("who", metavar="USER|ID")
    for action in (create, listing, revoke):
        action.add_argument("--keys", metavar="DIR", help="the server's keys (default: the usual folder)")


def run(options: argparse.Namespace) -> int:
    from rgpu import config
    from rgpu.errors import ConfigError
    from rgpu.server import keys

    settings = config.load_server({"keys": options.keys})
    ring = keys.open_ring(settings.keys)
    if ring is None:
        raise ConfigError(
            f"there are no keys in {keys.default_folder()}: 'rgpu-server init' makes them; or say --keys DIR"
        )
    return {"create": _create, "list": _list, "revoke": _revoke}[options.what](options, ring, settings)


def _create(options: argparse.Namespace, ring: Any, settings: Any) -> int:
    import platform

    from rgpu import config, tokens

    named = options.endpoint or [f"{platform.node()}:{settings.port or config.DEFAULT_PORT}"]
    user = config.given("--user", options.user, config.parse_name)
    memory = config.given("--memory", options.memory or 0, config.parse_bytes)
    endpoints = tuple(config.given("--endpoint", text, config.parse_address) for text in named)
    output = Path(options.output)
    limits = {"memory": memory, "compute": options.compute, "devices": options.devices}
    person, token = ring.create(user, endpoints, admin=options.admin, expires=options.expires, **limits)
    try:
        tokens.save(token, output)
    except OSError as error:
        ring.revoke(person)  # nobody has it
        print(f"rgpu: {output}: {error.strerror}", file=sys.stderr)
        return 1
    print(f"made {output} ({person.id}) for {user}. It is as good as a password: hand it over on a safe way")
    return 0


def _list(options: argparse.Namespace, ring: Any, settings: Any) -> int:
    rows = [("ID", "USER", "ROLE", "MEMORY", "COMPUTE", "DEVICES", "EXPIRES")]
    for person in ring.people():
        expires = person.expires.isoformat(" ", "minutes") if person.expires else "never"
        if person.expires and person.expires <= datetime.now(UTC):
            expires += " (expired)"
        limits = f"{person.memory >> 20} MiB" if person.memory else "-", str(person.compute or "-")
        rows.append(
            (person.id, person.user, "admin" if person.admin else "user", *limits, str(person.devices or "-"), expires)
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    print("\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows))
    return 0


def _revoke(options: argparse.Namespace, ring: Any, settings: Any) -> int:
    people = [person for person in ring.people() if options.who in (person.user, person.id)]
    for person in people:
        ring.revoke(person)
        print(f"revoked {person.id} of {person.user}")
    if not people:
        print(f"rgpu: nobody called {options.who!r} has a key; see 'rgpu token list'", file=sys.stderr)
    return 0 if people else 1


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share of a device; write 0.5 for the half of one")
    return share


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of devices; write 1, 2, ...")
    return int(text)


def _expiry(text: str) -> datetime | None:
    if text == "never":
        return None
    now = datetime.now(UTC).replace(microsecond=0)
    match = re.fullmatch(r"([0-9]{1,6})([mhdwy])", text)
    try:
        until = now + timedelta(days=int(match[1]) * _DAYS[match[2]]) if match else datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"{text!r} is no time; write 30d, 12h or 2027-01-31") from None
    until = until if until.tzinfo else until.astimezone(UTC)
    if until <= now:
        raise argparse.ArgumentTypeError(f"{text!r} is in the past")
    return until
