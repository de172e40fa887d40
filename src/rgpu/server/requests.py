"""What a request says: who asks and for what; and what is answered to one that cannot be served. Pure.

Nothing a client sends has a meaning before it has passed here; what has none is the client's mistake (ProtocolError).
"""

from __future__ import annotations

from typing import Any

from rgpu.config import parse_placement
from rgpu.errors import (
    AuthenticationError,
    LeaseEnded,
    NoSuchDevice,
    ProtocolError,
    QuotaExceeded,
    RgpuError,
    ServerBusy,
    ServerDraining,
)
from rgpu.leases.filters import parse_filter
from rgpu.leases.terms import Client, Terms
from rgpu.server.keys import Person
from rgpu.wire import control
from rgpu.wire.version import VERSION, fingerprint

#: what a client is told of an exception; the first class that fits
_REASONS: tuple[tuple[type[RgpuError], str], ...] = (
    (AuthenticationError, "denied"),
    (NoSuchDevice, "no-device"),
    (QuotaExceeded, "quota"),
    (ServerDraining, "draining"),
    (ServerBusy, "full"),
    (LeaseEnded, "no-lease"),
)


def reason_of(error: RgpuError) -> str:
    """The word for programs that a refusal carries."""
    return next((reason for kind, reason in _REASONS if isinstance(error, kind)), "failed")


def difference(version: str, mark: str, server: str) -> str:
    """What to tell a client of another version; empty: it is of ours."""
    if (version, mark) == (VERSION, fingerprint()):
        return ""
    return (
        f"this client is rgpu {version} (protocol {mark}), rgpu server "
        f"{server} is rgpu {VERSION} (protocol {fingerprint()}); install the same version on both"
    )


def mismatch(message: Any, server: str) -> tuple | None:
    """The refusal of a client of another version; None for one of ours."""
    why = difference(message.version, message.fingerprint, server)
    return control.Refused.encode(reason="version", message=why) if why else None


def client_of(message: Any, person: Person) -> Client:
    """Who asks; of somebody with a key, the key says the user."""
    user = person.user if person.public_key else message.user
    return Client(user, message.host, message.pid, message.program, person.public_key)


def described(client: Client) -> str:
    """For the log."""
    return f"{client.user}@{client.host} pid {client.pid} ({client.program})"


def terms_of(message: Any) -> Terms:
    """What is asked for."""
    numbers = (message.fraction, message.compute, message.seconds, message.wait)
    if not 1 <= message.count <= control.DEVICES or not all(0 <= number < 1e9 for number in numbers):
        raise ProtocolError("a request has a number that cannot be meant")
    if message.fraction > 1 or message.compute > 1:
        raise ProtocolError("a part of a device is at most 1")
    try:
        return Terms(
            message.count,
            message.memory,
            message.fraction,
            message.compute,
            message.seconds,
            tuple(parse_filter(text) for text in message.filters),
            parse_placement(message.placement),
            tuple(message.devices),
        )
    except ValueError as error:
        raise ProtocolError(str(error)) from None
