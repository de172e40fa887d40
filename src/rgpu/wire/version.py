"""What two peers compare in their hello: a version for people and a fingerprint for machines."""

from __future__ import annotations

import hashlib
from functools import cache

PROTOCOL_VERSION = 1


@cache
def fingerprint() -> str:
    """Hash of every declared message, value tag and function; differs when any of them does."""
    from rgpu.wire import functions, ops, values

    lines = [*ops.Command.describe(), *ops.Reply.describe(), *values.TAGS]
    lines += [f"{f.id} {f.name} {f.kind}" for f in functions.TABLE]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
