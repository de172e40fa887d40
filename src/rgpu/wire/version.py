"""What two peers compare in their hello: a version for people and a fingerprint for machines."""

from __future__ import annotations

import hashlib
from functools import cache

from rgpu._version import __version__ as VERSION  # noqa: N812 - a constant like the one below

PROTOCOL_VERSION = 1

__all__ = ["PROTOCOL_VERSION", "VERSION", "fingerprint"]


@cache
def fingerprint() -> str:
    """Hash of every declared message, value tag and function; differs when any of them does."""
    from rgpu.wire import control, functions, ops, peer, values

    families = (ops.Command, ops.Reply, control.Control, peer.Peer, peer.Meeting)
    lines = [line for family in families for line in family.describe()]
    lines += [*values.TAGS, *(f"{f.id} {f.name} {f.kind}" for f in functions.TABLE)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
