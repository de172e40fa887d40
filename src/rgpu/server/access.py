"""Who may do what on this server: the one place where a proven key becomes a person with rights and limits.

On a server without keys everybody who reaches it is the same person, who may do and see everything. Pure but for
the key ring it asks. It never believes a field of a message.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from rgpu.errors import AuthenticationError, QuotaExceeded
from rgpu.leases.terms import Terms
from rgpu.server.keys import KeyRing, Person
from rgpu.server.lease import Lease

ANYBODY = Person("", "anybody", admin=True)
STRANGER = Person("-", "nobody")


class Access:
    """``ring`` None: a server without keys."""

    def __init__(self, ring: KeyRing | None) -> None:
        self.ring = ring

    def person(self, key: str) -> Person:
        """Who has proven this key; AuthenticationError when nobody may (any more)."""
        person = self.ring.who(key) if self.ring else ANYBODY
        if person is None:
            raise AuthenticationError("your token was revoked or has expired; ask the administrator for a new one")
        return person

    @property
    def stranger(self) -> Person:
        """Somebody who looks at what this server shows without asking for keys, its web page."""
        return STRANGER if self.ring else ANYBODY

    def owns(self, person: Person, held: Any) -> bool:
        """Whether a person may end a session, a lease or a place in the queue, and see whose it is. What does not
        exist is nobody's secret."""
        return held is None or person.admin or held.client.key == person.public_key

    def void(self, leases: Iterable[Lease]) -> list[tuple[Lease, str]]:
        """The leases whose right has ended, and why: the list of keys may have changed, and time passes."""
        if self.ring is None:
            return []
        self.ring.refresh()
        return [
            (lease, f"the token of {lease.client.user} was revoked or has expired")
            for lease in leases
            if not self.ring.allows(lease.client.key)
        ]

    def memory_limit(self, person: Person, device: int, memory: int, leases: Iterable[Lease]) -> int:
        """Bytes that a new lease on a device may have, ``memory`` at most; QuotaExceeded when nothing is left."""
        held = [lease for lease in leases if lease.client.key == person.public_key]
        self._check_devices(person, held, {device})
        if not person.memory:
            return memory
        left = person.memory - _held_on(device, held)
        if left <= 0:
            raise QuotaExceeded(
                f"the token of {person.user} allows {person.memory >> 20} MiB of one device, and its other sessions "
                f"on device {device} hold all of that; end one of them, or ask for less memory in each"
            )
        return min(memory, left)

    def within(self, person: Person, terms: Terms, totals: Sequence[int], leases: Iterable[Lease]) -> Terms:
        """The terms of a request, narrowed to what a person's token allows; QuotaExceeded where that is not enough."""
        held = [lease for lease in leases if lease.client.key == person.public_key]
        if person.compute and terms.compute > person.compute:
            raise QuotaExceeded(f"the token of {person.user} allows a share of {person.compute:g} of one device")
        if person.devices and terms.count > person.devices - len({d for lease in held for d in lease.parts}):
            self._check_devices(person, held, set(), terms.count)
        if not person.memory:
            return terms
        if not terms.memory and not terms.fraction:
            terms = replace(terms, memory=min(person.memory, *totals))
        room = [
            d for d, total in enumerate(totals) if terms.memory_of(total) <= person.memory - _held_on(d, held)
        ]
        devices = tuple(d for d in terms.devices or range(len(totals)) if d in room)
        if len(devices) < terms.count:
            raise QuotaExceeded(
                f"the token of {person.user} allows {person.memory >> 20} MiB of one device, less than is asked for "
                "and held already"
            )
        return replace(terms, devices=devices)

    def _check_devices(self, person: Person, held: list[Lease], wanted: set[int], more: int = 0) -> None:
        have = {device for lease in held for device in lease.parts}
        if person.devices and len(have | wanted) + more > person.devices:
            raise QuotaExceeded(
                f"the token of {person.user} allows {person.devices} devices at once, and its sessions hold "
                f"{sorted(have - wanted)}; end one of them first"
            )


def _held_on(device: int, leases: Iterable[Lease]) -> int:
    return sum(lease.parts[device] or lease.cap for lease in leases if device in lease.parts)
