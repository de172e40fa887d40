"""What the registry lends of this server: grants that stand in its book there become leases here, and are claimed.

The book in the registry is kept like the leases: what others wrote into it is taken in where there is room, what has
ended is taken out. The registry is never believed about more than that somebody may come: who comes shows the
lease's id and a key, and is asked for the same as without a registry. Never waits; a thread does.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

from rgpu.errors import AuthenticationError, LeaseEnded, ServerBusy, ServerUnavailable
from rgpu.leases.fleet import Held, held
from rgpu.leases.nearness import Reach
from rgpu.leases.terms import Client
from rgpu.registry.directory import Registration
from rgpu.registry.grants import name_of
from rgpu.server.broker import Broker
from rgpu.server.keys import Person
from rgpu.server.lease import Lease, LeaseBook

log = logging.getLogger("rgpu.server")

CLAIM_SECONDS = 10.0  # that a grant waits for its holder
BEHIND_SECONDS = 5.0  # that a holder waits for this server to see its grant
MOST_EARLY = 64  # holders who wait so, of one person
SHOW_SECONDS = 1.0  # between two writings that no lease is the reason for
REMEMBERED = 8192  # names of leases that were here; whatever has another name is new


class Promises:
    """Grants in the registry, as leases in ``book`` that nobody has come for yet. ``reach``: what this server's workers
    measured, which stands in the book there for whoever chooses among several hosts."""

    def __init__(self, registration: Registration, book: LeaseBook, broker: Broker, reach: Reach) -> None:
        self._registration, self._book, self._broker, self._reach = registration, book, broker, reach
        self._promised: dict[str, Lease] = {}
        self._known: OrderedDict[str, None] = OrderedDict()
        self._names: dict[bytes, str] = {}
        self._revision = 0
        self._said: Any = None
        self._say_at = 0.0
        self._early: list[tuple[float, Any, Any, Person]] = []

    def start(self, changed: Callable[[], None]) -> None:
        self._registration.start(self._content(), changed)

    def close(self) -> None:
        self._registration.close()

    def tick(self) -> None:
        """Take in what was granted, and see to it that the book says what there is."""
        revision, content = self._registration.seen()
        if content is not None and revision != self._revision:
            self._revision = revision
            self._take_in(content.get("leases") if isinstance(content, dict) else None)
        wanted = self._content()
        if content is None:
            self._revision = 0  # after a loss of etcd revisions may begin again
        elif wanted == content:
            return
        said, now = (revision, wanted), time.monotonic()
        urgent = not isinstance(content, dict) or wanted["leases"] != content.get("leases")
        if said != self._said and (urgent or now >= self._say_at):
            self._say_at = now + SHOW_SECONDS
            self._said = said
            self._registration.publish(*said)

    def _take_in(self, leases: Any) -> None:
        leases = leases if isinstance(leases, dict) else {}
        for name, lease in list(self._promised.items()):
            if name not in leases:
                self._drop(name, lease, "the grant was withdrawn")
        for name, entry in leases.items():
            if name in self._known:
                continue
            self._remember(name)
            try:
                grant, id = held(entry), bytes.fromhex(name)
            except (KeyError, TypeError, ValueError, AttributeError):
                continue  # not written by us; it is taken out
            if self._room_for(grant) and len(id) == 16:
                client = Client(grant.user, "-", 0, "promised by the registry")
                lease = self._book.promise(id, client, dict(grant.parts), grant.compute, CLAIM_SECONDS)
                self._promised[name] = lease

    def _room_for(self, grant: Held) -> bool:
        devices = range(len(self._book.totals))
        return (
            not self._broker.draining
            and bool(grant.parts)
            and 0 <= grant.compute <= 1
            and all(d in devices and 0 <= memory <= self._book.memory_free(d) for d, memory in grant.parts.items())
            and all(grant.compute <= self._book.compute_free(device) + 1e-9 for device in grant.parts)
        )

    def _drop(self, name: str, lease: Lease, reason: str) -> None:
        self._promised.pop(name, None)
        self._book.end(lease.id, reason)

    def _remember(self, name: str) -> None:
        self._known[name] = None
        while len(self._known) > REMEMBERED:
            self._known.popitem(last=False)

    def _content(self) -> dict[str, Any]:
        """What the book should say."""
        leases, names = {}, {}
        for lease in self._book:
            if lease.own:
                continue
            name = lease.id.hex() if self._promised.get(lease.id.hex()) is lease else self._names.get(lease.id)
            name = name or name_of(lease.id)
            names[lease.id] = name
            if name not in self._known:
                self._remember(name)
            leases[name] = Held(lease.client.user, lease.parts, lease.compute).entry
        self._names = names
        self._promised = {name: lease for name, lease in self._promised.items() if lease.id in names}
        devices = range(len(self._book.totals))
        sessions = [self._book.sessions_on(device) for device in devices]
        return {
            "leases": leases,
            "drawn": [self._book.drawn_from_rest(device) for device in devices],
            "load": [sum(session.lease.own for session in here) for here in sessions],
            "full": [len(here) >= self._broker.most_sessions for here in sessions],
            "draining": self._broker.draining,
            "reach": self._reach.outline(),
        }

    # Holders who come

    def behind(self, asker: Any, message: Any, person: Person) -> bool:
        """Whether this server has yet to see the revision of a grant; then its holder is answered later (``due``).

        Raises ServerUnavailable when it was waited for in vain, ServerBusy for one person's crowd."""
        if self._revision >= message.revision:
            return False
        early = [one for one in self._early if one[1] == asker]
        if not early:
            if sum(one[3].public_key == person.public_key for one in self._early) >= MOST_EARLY:
                raise ServerBusy(f"{MOST_EARLY} holders of grants wait already for this server to see its registry")
            self._early.append((time.monotonic() + BEHIND_SECONDS, asker, message, person))
        elif time.monotonic() >= early[0][0]:
            self._early.remove(early[0])
            raise ServerUnavailable(
                f"this server has not seen revision {message.revision} of its registry within {BEHIND_SECONDS:g} s: it "
                "has lost etcd, or etcd was set back. Use another server; check that etcd can be reached from there"
            )
        return True

    def due(self) -> list[tuple[Any, Any, Person]]:
        """The holders who can be answered now."""
        now = time.monotonic()
        found = [one for one in self._early if self._revision >= one[2].revision or now >= one[0]]
        self._early = [one for one in self._early if one not in found or now >= one[0]]
        return [(asker, message, person) for _, asker, message, person in found]

    @contextlib.contextmanager
    def redeemed(self, lease: bytes, user: str) -> Iterator[None]:
        """A promise is over while its holder gets the lease itself, in its place; LeaseEnded when there is none."""
        name = name_of(lease)
        promise = self._promised.get(name)
        if promise is None:
            raise LeaseEnded(
                "the grant of the registry is over: it was not claimed in time, was withdrawn, or this server has no "
                "room for it; ask again"
            )
        if promise.client.user != user:
            raise AuthenticationError(f"the grant of the registry is for {promise.client.user}, not for {user}")
        self._drop(name, promise, "claimed")
        yield
        self._names.setdefault(lease, name)
