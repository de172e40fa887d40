"""Who may do what on this server: the one place where a proven key becomes a person with rights and limits.

On a server without keys everybody who reaches it is the same person, who may do and see everything. Pure but for
the key ring it asks. It never believes a field of a message.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rgpu.errors import AuthenticationError, QuotaExceeded
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

    def owns(self, person: Person, lease: Lease | None) -> bool:
        """Whether a person may end a session and see whose it is. What does not exist is nobody's secret."""
        return lease is None or person.admin or lease.client.key == person.public_key

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

    def memory_limit(self, person: Person, device: int, memory: int, leases: Sequence[Lease]) -> int:
        """Bytes that a new lease on a device may have, ``memory`` at most; QuotaExceeded when nothing is left."""
        held = [lease for lease in leases if lease.client.key == person.public_key]
        devices = {lease.device for lease in held} | {device}
        if person.devices and len(devices) > person.devices:
            raise QuotaExceeded(
                f"the token of {person.user} allows {person.devices} devices at once, and its sessions hold "
                f"{sorted(devices - {device})}; end one of them first"
            )
        if not person.memory:
            return memory
        left = person.memory - sum(lease.memory_limit for lease in held if lease.device == device)
        if left <= 0:
            raise QuotaExceeded(
                f"the token of {person.user} allows {person.memory >> 20} MiB of one device, and its other sessions "
                f"on device {device} hold all of that; end one of them, or ask for less memory in each"
            )
        return min(memory, left)
