"""Who gets which device, now or later: quotas, placement and the queue around the book of leases. Pure.

Measurements come in as figures, processes and sockets are the daemon's. Nothing here may lend what the book says
is not there, nor let a user hold more than the user's quota.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rgpu.errors import QuotaExceeded, RgpuError, ServerBusy, ServerDraining
from rgpu.leases.placement import Room, candidates, choose
from rgpu.leases.queue import Waiting, grant_in_order, in_order
from rgpu.leases.terms import Client, Quotas, Terms, show_bytes
from rgpu.server.lease import Lease, LeaseBook, Session

FORGOTTEN_AFTER = 5.0  # seconds without a question about its ticket, until a request leaves the queue
MOST_REQUESTS = 64  # of one person, in the queue
MOST_WAITING = 256  # of all
MOST_LEASES = 256  # of one person, besides those that sessions have of their own
KEPT = 4  # one of so many sessions of a device is kept for others than a person who has all the rest
WARN_BEFORE = 60.0  # seconds before an idle lease ends that its holder is told, or a third of the time if that is less


@dataclass
class Request:
    """Somebody in the queue."""

    client: Client
    terms: Terms
    since: float
    until: float
    asked: float
    lease: Lease | None = None


@dataclass(frozen=True)
class Place:
    """Where a request stands: 1 is next."""

    ticket: bytes
    position: int
    waiting: int


@dataclass
class Broker:
    """``facts`` of each device for filters, ``load(device)``: its utilization in percent."""

    book: LeaseBook
    facts: Sequence[Mapping[str, Any]]
    load: Callable[[int], float]
    quotas: Quotas = field(default_factory=Quotas)
    most_sessions: int = 32
    idle_timeout: float = 0.0
    draining: bool = False
    drain_at: float | None = None
    _queue: dict[bytes, Request] = field(default_factory=dict)
    _arrivals: dict[bytes, int] = field(default_factory=dict)
    _count: int = 0

    # Leases

    def request(self, client: Client, terms: Terms, *, ticket: bytes = b"", wait: float = 0.0) -> Lease | Place:
        """A lease, or a place in the queue for those who wait.

        Raises NoSuchDevice or QuotaExceeded for what can never be, ServerBusy for what is not now.
        """
        now = self.book.clock()
        if ticket not in self._queue:
            self._refuse_if_draining()
            self._refuse_if_crowded(client)
            self._refuse_if_many(client)
            candidates(self.rooms(), terms)
            if over := self._over_quota(client.user, terms, alone=True):
                raise QuotaExceeded(over)
            ticket = secrets.token_bytes(16)
            self._queue[ticket] = Request(client, terms, now, now + wait, now)
            self._count += 1
            self._arrivals[ticket] = self._count
        request = self._queue[ticket]
        request.asked = now
        self.pump()
        if request.lease is not None or now >= request.until:
            place = self._place(ticket)
            self._leave(ticket)
            if request.lease is None:
                raise self._why_not(request, place)
            return request.lease
        return self._place(ticket)

    def claim(self, client: Client, terms: Terms, lease: bytes) -> Lease:
        """A lease that the registry granted on the devices that ``terms`` names, if they are free here as well."""
        self._refuse_if_draining()
        if over := self._over_quota(client.user, terms):
            raise QuotaExceeded(over)
        self._refuse_if_many(client)
        devices = choose(self.rooms(), terms.on(terms.devices))
        return self.book.grant(client, devices, terms, id=lease)

    def admit(self, client: Client, device: int | None) -> Lease:
        """A lease of its own for one session that asked for no share: it draws from what is left."""
        self._refuse_if_draining()
        devices = range(len(self.facts)) if device is None else (device,)
        free = tuple(d for d in devices if not self._has_its_part(client, d))
        if not free:
            raise QuotaExceeded(self._part(client, devices[0]))
        terms = Terms(devices=free)
        (chosen,) = choose(self.rooms(), terms)
        if over := self._over_quota(client.user, terms):
            raise QuotaExceeded(over)
        return self.book.grant(client, [chosen], terms, own=True)

    def check_room(self, client: Client, device: int, coming: Sequence[Client]) -> None:
        """Under one lease somebody may ask for any number of sessions; each is a process. ``coming``: on their way."""
        if len(self.book.sessions_on(device)) + len(coming) >= self.most_sessions:
            raise ServerBusy(f"device {device} has {self.most_sessions} sessions, which is the most (--sessions)")
        if self._has_its_part(client, device, coming):
            raise QuotaExceeded(self._part(client, device))

    def _has_its_part(self, client: Client, device: int, coming: Sequence[Client] = ()) -> bool:
        """Whether a person with a key has all the sessions of a device but those that are kept for others."""
        if not client.key:
            return False  # who says its name could say another
        book = self.book
        theirs = sum(session.client.key == client.key for session in book.sessions_on(device))
        theirs += sum(x.own and not x.sessions and x.client.key == client.key for x in book.on_device(device))
        theirs += sum(one.key == client.key for one in coming)
        return theirs >= self.most_sessions - self.most_sessions // KEPT

    def _part(self, client: Client, device: int) -> str:
        most = self.most_sessions
        return (
            f"{client.user} has {most - most // KEPT} of the {most} sessions of device {device} (--sessions); the rest "
            "is kept for others. End one of them, or use another device"
        )

    def pump(self) -> None:
        """Grant what can be granted, in order; drop who asks no more. A lease nobody comes for ends unrenewed."""
        now = self.book.clock()
        for ticket, request in list(self._queue.items()):
            if now - request.asked > FORGOTTEN_AFTER:
                self._leave(ticket)
        if self._queue and not self.draining:  # each look costs what there are leases
            waiting = [w for w in self._ordered() if w.item.lease is None]
            grant_in_order(waiting, self._wants, self._grant)

    def drain(self, on: bool, seconds: float = 0.0) -> None:
        """No new leases from now on; after ``seconds`` (0: never) those that are left are overdue."""
        self.draining = on
        self.drain_at = self.book.clock() + seconds if on and seconds else None

    def overdue(self) -> list[tuple[Lease, str]]:
        if self.drain_at is not None and self.book.clock() >= self.drain_at:
            return [(lease, "the server is drained") for lease in self.book]
        return self.book.overdue(self.idle_timeout)

    def notice(self, lease: Lease) -> str:
        """What its holder should know now: an end that comes near."""
        now = self.book.clock()
        if self.drain_at is not None:
            return f"the server is drained and ends this lease in {max(0.0, self.drain_at - now):.0f} s"
        idle = now - lease.active
        if self.idle_timeout and idle > self.idle_timeout - min(WARN_BEFORE, self.idle_timeout / 3):
            return (
                f"the lease has been idle for {idle:.0f} s and will be given back in "
                f"{max(0.0, self.idle_timeout - idle):.0f} s unless it is used"
            )
        return ""

    # Memory that sessions draw

    def draw(self, session: Session, wanted: int) -> int:
        """Let a session hold ``wanted`` bytes if that can be, less if it needs less now. What it may hold."""
        more = wanted - session.drawn
        if more <= 0 or (more <= self.book.drawable(session) and more <= self._quota_left(session)):
            session.drawn = max(0, wanted)
        return session.drawn

    def free_for(self, session: Session) -> int:
        """Bytes that a session could still draw."""
        return min(self.book.drawable(session), self._quota_left(session))

    def _quota_left(self, session: Session) -> int:
        if session.lease.parts[session.device]:
            return 1 << 62  # counted when it was set aside
        payer = session.lease.client.user
        quota = self.quotas.of(payer)
        return max(0, quota.memory - self.book.held(payer)[0]) if quota.memory else 1 << 62

    # The queue

    def queue(self) -> list[tuple[dict[str, Any], Request]]:
        """Who waits, in order: in plain values, and as it is."""
        now = self.book.clock()
        waiting = [w for w in self._ordered() if w.item.lease is None]
        return [
            (
                {
                    "position": number,
                    "count": w.item.terms.count,
                    "memory": w.item.terms.memory,
                    "compute": w.item.terms.compute,
                    "waited": now - w.item.since,
                },
                w.item,
            )
            for number, w in enumerate(waiting, 1)
        ]

    def rooms(self) -> list[Room]:
        """What each device has left."""
        book, rooms = self.book, []
        for device, facts in enumerate(self.facts):
            sessions = len(book.sessions_on(device))
            coming = sum(lease.own and not lease.sessions for lease in book.on_device(device))  # a worker starts for it
            rooms.append(
                Room(
                    "",
                    book.totals[device],
                    book.memory_free(device),
                    book.compute_free(device),
                    sessions + sum(not lease.sessions for lease in book.on_device(device)),
                    self.load(device),
                    sessions + coming < self.most_sessions,
                    facts,
                    book.lendable[device],
                )
            )
        return rooms

    def _ordered(self) -> list[Waiting]:
        waiting = [Waiting(t, r.client.user, self._arrivals[t], r) for t, r in self._queue.items()]
        return in_order(waiting, self.book.dominant_shares(), lambda user: self.quotas.of(user).weight)

    def _wants(self, waiting: Waiting) -> set[int]:
        """The devices that a request waits for: none, while it is its user's quota that it waits for."""
        terms = waiting.item.terms
        if self._over_quota(waiting.user, terms):
            return set()
        try:
            return set(candidates(self.rooms(), terms))
        except RgpuError:
            return set()

    def _grant(self, waiting: Waiting) -> bool:
        request = waiting.item
        if self._over_quota(waiting.user, request.terms):
            return False
        try:
            devices = choose(self.rooms(), request.terms)
        except RgpuError:
            return False
        request.lease = self.book.grant(request.client, devices, request.terms)
        return True

    def _place(self, ticket: bytes) -> Place:
        waiting = [w.ticket for w in self._ordered() if w.item.lease is None]
        return Place(ticket, waiting.index(ticket) + 1 if ticket in waiting else 0, len(waiting))

    def _leave(self, ticket: bytes) -> None:
        self._queue.pop(ticket, None)
        self._arrivals.pop(ticket, None)

    def _why_not(self, request: Request, place: Place) -> RgpuError:
        waited = request.until - request.since
        after = f" ({waited:.3g} s in the queue were not enough)" if waited else ""
        if over := self._over_quota(request.client.user, request.terms):
            return QuotaExceeded(over + after)
        try:
            choose(self.rooms(), request.terms)
        except RgpuError as error:
            return type(error)(f"{error}{after}")
        return ServerBusy(f"{place.position - 1} others wait for these devices{after}; wait for them with --wait-for")

    def _refuse_if_draining(self) -> None:
        if self.draining:
            raise ServerDraining("the server is being drained and grants no new leases; use another server")

    def _refuse_if_crowded(self, client: Client) -> None:
        """Each look at the queue costs what there is in it: one person's requests must not slow down all others'."""
        whose = sum((r.client.key, r.client.user) == (client.key, client.user) for r in self._queue.values())
        if whose >= MOST_REQUESTS or len(self._queue) >= MOST_WAITING:
            queue = f"of {len(self._queue)} in all"
            raise ServerBusy(f"{whose} requests of {client.user} are in the queue, {queue}: no more fit")

    def _refuse_if_many(self, client: Client) -> None:
        """A lease without a part costs its holder nothing, and every look at the book something."""
        mine = (client.key, client.user)
        if sum(not x.own and (x.client.key, x.client.user) == mine for x in self.book) >= MOST_LEASES:
            raise QuotaExceeded(f"{client.user} has {MOST_LEASES} leases here, which is the most; give some back")

    def _over_quota(self, user: str, terms: Terms, alone: bool = False) -> str:
        """Why a user may not hold this as well (``alone``: not even with nothing else), or nothing."""
        quota = self.quotas.of(user)
        memory, compute, devices = (0, 0.0, 0) if alone else self.book.held(user)
        asked = terms.count * max((terms.memory_of(total) for total in self.book.totals), default=0)
        if quota.memory and memory + asked > quota.memory:
            return (
                f"the quota of user {user} is {show_bytes(quota.memory)} of memory; {show_bytes(memory)} are held "
                f"and {show_bytes(asked)} asked for"
            )
        if quota.compute and compute + terms.compute * terms.count > quota.compute + 1e-9:
            return (
                f"the quota of user {user} is {quota.compute:g} devices' compute; {compute:g} are held "
                f"and {terms.compute * terms.count:g} asked for"
            )
        if quota.devices and devices + terms.count > quota.devices:
            return (
                f"the quota of user {user} is {quota.devices} devices; {devices} are held and {terms.count} asked for"
            )
        return ""

