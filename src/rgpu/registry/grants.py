"""Devices of several servers at once: one transaction over the books of all of them, and the queue before it.

    /rgpu/v1/books/HOST:PORT    {"leases": {NAME: {"user", "parts", "compute"}}, "drawn": [...], "load": [...], ...,
                                 "reach": {HOST: [seconds of a round trip, bytes a second]}}
    /rgpu/v1/queue/TICKET       {"user", "host", "pid", "since", "count", "memory", "fraction", "compute", "filters",
                                 "placement", "places"}

A grant is written into each server's book only while the book is as it was when the devices were chosen, so no two
askers get the same part of a device. Its revision is the fence: a server gives the devices to whoever shows the
lease's id, once it has seen that revision, if the lease is in its book then. Books go with their servers' entries,
tickets with their askers. What is leased in the end is the servers' to say (``client.holding`` claims it there).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import random
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rgpu.config import parse_address
from rgpu.errors import ConfigError, RegistryUnavailable, ServerBusy
from rgpu.leases.filters import parse_filters
from rgpu.leases.fleet import Decision, Held, Listed, Place, decide, listed, shares, weights
from rgpu.leases.queue import Waiting, in_order
from rgpu.leases.terms import Terms
from rgpu.registry.directory import BOOKS, PREFIX, QUEUE, SERVERS
from rgpu.registry.etcd import Entry, Etcd
from rgpu.registry.mirror import Mirror

TICKET_SECONDS = 5  # that a place in the queue outlives who waits
MOST_SERVERS = 100  # of one lease: etcd bounds its transactions
BUSY_ATTEMPTS = 50  # to get devices while others get some at the same time
LAST = 1 << 62  # whoever is not in the queue yet comes after all who are

Shown = Callable[[Sequence[Listed]], Sequence[int] | None]


def name_of(lease: bytes) -> str:
    """What a lease is called in a book: its id, which is the right to use it, cannot be found from this."""
    return hashlib.sha256(lease).hexdigest()[:32]


def lease_on(secret: bytes, address: str) -> bytes:
    return hashlib.sha256(secret + address.encode()).digest()[:16]


@dataclass(frozen=True)
class Grant:
    """Leases that are in the books of their servers since ``revision``, to be claimed there soon. Each has an id of its
    own: no server learns what gives a right at another."""

    secret: bytes
    revision: int
    places: tuple[Place, ...]

    def lease(self, address: str) -> bytes:
        return lease_on(self.secret, address)

    def by_server(self) -> dict[str, tuple[int, ...]]:
        found: dict[str, list[int]] = {}
        for address, device in self.places:
            found.setdefault(address, []).append(device)
        return {address: tuple(devices) for address, devices in found.items()}


@dataclass(frozen=True)
class Picture:
    """What the registry said at one revision."""

    servers: tuple[Listed, ...]
    books: Mapping[str, Entry]  # by address
    queue: tuple[Waiting, ...]


class Reader:
    """Makes pictures; a server whose entries did not change is not read again."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Entry, Entry, Listed]] = {}

    def picture(self, entries: Mapping[str, Entry]) -> Picture:
        """Servers in the order of their addresses; what nobody of ours wrote is left out."""
        known: dict[str, tuple[Entry, Entry, Listed]] = {}
        for key in sorted(key for key in entries if key.startswith(SERVERS)):
            address, about, book = key.removeprefix(SERVERS), entries[key], entries.get(BOOKS + key[len(SERVERS) :])
            before = self._known.get(address)
            try:
                if before is not None and before[0] == about and before[1] == book:
                    known[address] = before
                elif book is not None and str(parse_address(address)) == address:
                    known[address] = (about, book, listed(address, about.value, book.value))
            except (KeyError, TypeError, ValueError, AttributeError):
                continue
        self._known = known
        servers = tuple(server for _, _, server in known.values())
        books = {address: book for address, (_, book, _) in known.items()}
        return Picture(servers, books, _queue(entries, servers))


def _queue(entries: Mapping[str, Entry], servers: Sequence[Listed]) -> tuple[Waiting, ...]:
    found = {key: entry for key, entry in entries.items() if key.startswith(QUEUE)}
    numbers: dict[str, int] = {}
    for server in servers if found else ():
        for device in range(len(server.facts)):
            numbers[f"{server.address}/{device}"] = len(numbers)
    queue = []
    for key, entry in found.items():
        with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
            queue.append(_waiting(key.removeprefix(QUEUE), entry, numbers))
    return tuple(queue)


def _waiting(ticket: str, entry: Entry, numbers: Mapping[str, int]) -> Waiting:
    wish = entry.value
    devices = tuple(numbers[place] for place in wish["places"] if place in numbers)
    terms = Terms(
        max(1, int(wish["count"])), int(wish["memory"]), float(wish["fraction"]), float(wish["compute"]), 0.0,
        parse_filters(wish["filters"]), str(wish["placement"]), devices,
    )  # fmt: skip
    if wish["places"] and not devices:
        raise ValueError("waits for servers that are gone")
    return Waiting(bytes.fromhex(ticket), str(wish["user"]), entry.created, terms)


def queue(url: str, timeout: float) -> list[dict[str, Any]]:
    """Who waits in the registry, first whoever is served first; ``servers``: of which ones (empty: of any).

    Raises RegistryUnavailable.
    """
    etcd = Etcd(url, timeout)
    try:
        _, entries = etcd.snapshot(PREFIX)
    finally:
        etcd.close()
    seen = Reader().picture(entries)
    rows = []
    for number, one in enumerate(in_order(seen.queue, shares(seen.servers), weights(seen.servers)), 1):
        wish = entries[QUEUE + one.ticket.hex()].value
        since = wish.get("since")
        rows.append(
            {
                "ticket": hashlib.sha256(one.ticket).hexdigest()[:16],
                "position": number,
                "user": one.user,
                "host": str(wish.get("host", "?")),
                "pid": wish["pid"] if type(wish.get("pid")) is int else 0,
                "count": one.item.count,
                "memory": one.item.memory,
                "compute": one.item.compute,
                "waited": max(0.0, time.time() - since) if isinstance(since, int | float) else None,
                "servers": sorted({str(place).rpartition("/")[0] for place in wish["places"]}),
            }
        )
    return rows


class Asker:
    """Asks the registry for devices, for one user; ``told`` hears of the place in the queue. ``shown(servers)``: the
    positions of the devices that may be used (None: all). Not thread-safe. ``mirror``: a copy that is kept already."""

    def __init__(
        self,
        url: str,
        user: str,
        *,
        timeout: float = 3.0,
        told: Callable[[str], None] = lambda text: None,
        shown: Shown = lambda servers: None,
        mirror: Mirror | None = None,
    ) -> None:
        self.url, self._user, self._told, self._shown = url, user, told, shown
        self._etcd = Etcd(url, timeout)
        self._mirror, self._own_mirror = mirror, mirror is None
        self._reader = Reader()
        self._skip: set[str] = set()
        self._ticket = secrets.token_bytes(16)
        self._queued = 0  # the lease of the place in the queue
        self._keep_at = 0.0
        self._said = ""
        self._since = time.time()  # shown to people on other hosts; nothing is decided by it

    def skip(self, address: str) -> None:
        """A server that did not answer is not asked for again."""
        self._skip.add(address)

    def get(self, terms: Terms, deadline: float) -> Grant:
        """Devices for ``terms``, before ``deadline`` (``time.monotonic``). Who would wait was in the queue, and was
        told the place, even where reading the registry took longer than that.

        Raises NoSuchDevice for what can never be, ServerBusy for what is not now, RegistryUnavailable.
        """
        secret, attempts, patient = secrets.token_bytes(16), 0, time.monotonic() < deadline
        tried: tuple[Place, ...] = ()
        try:
            while True:
                version, entries = self._look(deadline, fresh=attempts > 0)
                seen = self._reader.picture(entries)
                if not seen.servers:
                    raise RegistryUnavailable(f"no server that lends devices is registered in {self.url}", "empty")
                if tried and (revision := _written(secret, seen, tried)):  # the answer was lost, not what it answered
                    return Grant(secret, revision, tried)
                decision = self._decide(seen, terms)
                if decision.places:
                    tried = decision.places
                    if revision := self._take(secret, seen, decision.places, terms):
                        return Grant(secret, revision, decision.places)
                    attempts += 1  # somebody was quicker; it is decided again
                    if attempts >= BUSY_ATTEMPTS:
                        raise ServerBusy(f"others got devices at the same time, {attempts} times over; try again")
                    time.sleep(random.random() * 0.002 * min(attempts, 10))
                    continue
                attempts = 0
                if time.monotonic() >= deadline and (self._queued or not patient):
                    raise decision.why or ServerBusy("the devices are not free")
                patient = False
                self._wait(terms, seen, decision, version, deadline)
        finally:
            self._leave()

    def withdraw(self, grant: Grant, addresses: Sequence[str]) -> None:
        """Take a grant out of the books of servers that were not asked, or did not answer."""
        names = {address: name_of(grant.lease(address)) for address in addresses}
        for _ in range(BUSY_ATTEMPTS):
            _, entries = self._etcd.snapshot(PREFIX)
            unchanged, changed = {}, {}
            for address, name in names.items():
                entry = entries.get(BOOKS + address)
                if entry is not None and name in entry.value["leases"]:
                    unchanged[BOOKS + address], changed[BOOKS + address] = entry.modified, _without(entry, name)
            if not changed or self._etcd.transact(unchanged, changed, None):
                return

    def close(self) -> None:
        if self._mirror is not None and self._own_mirror:
            self._mirror.close()
        self._etcd.close()

    # One attempt

    def _look(self, deadline: float, fresh: bool) -> tuple[int, Mapping[str, Entry]]:
        """All that stands there: from the mirror where one is kept, else by asking."""
        if self._mirror is None or fresh:
            version = self._mirror.look()[0] if self._mirror else 0
            return version, self._etcd.snapshot(PREFIX)[1]
        first = time.monotonic() + self._etcd.timeout
        while True:
            version, revision, entries, failure = self._mirror.look()
            if failure is None and revision:
                return version, entries
            if time.monotonic() >= (deadline if failure else max(first, deadline)):
                raise failure or RegistryUnavailable(f"the registry {self.url} does not answer")
            if failure is not None:
                self._say(f"still waiting; {failure}")
            self._mirror.wait(version, min(1.0, max(first, deadline) - time.monotonic()))

    def _decide(self, seen: Picture, terms: Terms) -> Decision:
        positions = self._shown(seen.servers)
        mine = Waiting(self._ticket, self._user, LAST, terms if positions is None else terms.among(positions))
        others = []
        for one in seen.queue:
            if one.ticket == self._ticket:
                mine = Waiting(self._ticket, self._user, one.order, mine.item)
            else:
                others.append(one)
        return decide(seen.servers, others, mine, skip=frozenset(self._skip))

    def _take(self, secret: bytes, seen: Picture, places: Sequence[Place], terms: Terms) -> int:
        """Write the grant; 0 when a book had changed. The place in the queue goes with it."""
        books = {address: seen.books[address] for address, _ in places}
        if len(books) > MOST_SERVERS:
            raise ConfigError(f"a lease over {len(books)} servers is asked for; {MOST_SERVERS} are the most")
        facts = {server.address: server.facts for server in seen.servers}
        changed = {}
        for address, book in books.items():
            parts = {d: terms.memory_of(facts[address][d]["memory_total"]) for a, d in places if a == address}
            name, entry = name_of(lease_on(secret, address)), Held(self._user, parts, terms.compute).entry
            changed[BOOKS + address] = {**book.value, "leases": {**book.value["leases"], name: entry}}
        unchanged = {BOOKS + address: book.modified for address, book in books.items()}
        ticket = QUEUE + self._ticket.hex() if self._queued else ""
        return self._etcd.transact(unchanged, changed, None, delete=ticket)

    # The queue

    def _wait(self, terms: Terms, seen: Picture, decision: Decision, version: int, deadline: float) -> None:
        """Until something changed, at the place in the queue that is ours."""
        if self._mirror is None:
            self._mirror = Mirror(self.url, PREFIX, self._etcd.timeout)
        try:
            self._queue_up(terms, seen)
        except RegistryUnavailable as error:
            self._say(f"still waiting; {error}")
        else:
            where = f"place {decision.position} of {decision.waiting} in the queue of {self.url}"
            self._say(f"waiting for {terms}: {where}")
        self._mirror.wait(version, min(TICKET_SECONDS / 3, deadline - time.monotonic()))

    def _queue_up(self, terms: Terms, seen: Picture) -> None:
        if self._queued and time.monotonic() < self._keep_at:
            return
        self._keep_at = time.monotonic() + TICKET_SECONDS / 4
        if self._queued and self._etcd.keep(self._queued):
            return
        positions = self._shown(seen.servers)
        every = [f"{server.address}/{device}" for server in seen.servers for device in range(len(server.facts))]
        wish = {
            "user": self._user, "host": platform.node(), "pid": os.getpid(), "since": self._since,
            "count": terms.count, "memory": terms.memory, "fraction": terms.fraction,
            "compute": terms.compute, "filters": [str(one) for one in terms.filters], "placement": terms.placement,
            "places": [] if positions is None else [every[position] for position in positions],
        }  # fmt: skip
        lease = self._etcd.lease(TICKET_SECONDS)
        self._etcd.put(QUEUE + self._ticket.hex(), wish, lease)
        self._queued = lease

    def _leave(self) -> None:
        lease, self._queued = self._queued, 0
        if lease:
            try:
                self._etcd.revoke(lease)
            except RegistryUnavailable:
                pass  # the place goes by itself

    def _say(self, text: str) -> None:
        if text != self._said:
            self._told(text)
            self._said = text


def _written(secret: bytes, seen: Picture, places: Sequence[Place]) -> int:
    """The revision at which a grant was written into all of its books, as far as they show it."""
    revisions = []
    for address, _ in places:
        book = seen.books.get(address)
        if book is None or name_of(lease_on(secret, address)) not in book.value["leases"]:
            return 0
        revisions.append(book.modified)
    return max(revisions)


def _without(entry: Entry, name: str) -> dict:
    leases = {other: one for other, one in entry.value["leases"].items() if other != name}
    return {**entry.value, "leases": leases}
