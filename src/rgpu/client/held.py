"""The leases that this user asked for on this machine and that outlive a program: a file of the user's own.

Only a memory for `rgpu release`; what is leased is known to the servers. Forgets leases that are over.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from rgpu import config
from rgpu.client.holding import Part, parse_part
from rgpu.errors import ConfigError


def _directory() -> Path:
    return config.runtime_directory()


def remember(parts: Iterable[Part]) -> None:
    for part in parts:
        path = _directory() / f"lease-{part.name}"
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(str(part))


def remembered() -> list[Part]:
    found = []
    for path in sorted(_directory().glob("lease-*")):
        with contextlib.suppress(OSError, ConfigError):
            found.append(parse_part(path.read_text()))
    return found


def forget(part: Part) -> None:
    (_directory() / f"lease-{part.name}").unlink(missing_ok=True)
