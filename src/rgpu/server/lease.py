"""Leases: who holds how much of which device since when, and what became of those who did.

Pure: no sockets, no processes, the clock is given. The daemon is the authority over its devices, and this book is
its memory: what it lends of a device is never more than there is (times ``factor``, on a server that
oversubscribes). It must never forget a live lease and never grow without bound.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field

from rgpu.errors import LeaseEnded, NoSuchDevice
from rgpu.leases.queue import worth
from rgpu.leases.terms import Client, Terms

REMEMBERED = 4096  # ended sessions and leases whose fate can still be asked for
CLAIM_SECONDS = 30.0  # that a new lease waits for its holder's first word; from then on it is ``patience``
OVERTIME = 1.25  # times grace: a gap of the network may begin just before a renewal, and end during a futile one
WITH_SESSIONS = 3.0  # times grace, where workers serve sessions: they watch for their clients, on links of their own


@dataclass
class Lease:
    """A right to parts of devices. ``parts``: device -> bytes set aside there (0: what is left is drawn from)."""

    id: bytes
    client: Client
    parts: dict[int, int]
    compute: float
    since: float
    until: float | None  # when its time is over
    renewed: float | None  # when its holder last gave a sign of life; None: it needs none
    own: bool  # made for one session, ends with it
    active: float  # when something was last done under it
    cap: int = 0  # the most that its session may draw of what is left, by its user's token; 0: any
    sessions: dict[bytes, Session] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What people call it; the rest of its id is the right to use it, and stays a secret."""
        return self.id.hex()[:8]


@dataclass
class Session:
    """A client's conversation with the worker that serves it on one device, with what its worker last told.
    ``drawn``: bytes it may hold now; ``resident``: bytes of them in device memory."""

    id: bytes
    epoch: int
    device: int
    lease: Lease
    client: Client
    since: float
    drawn: int = 0
    resident: int = 0
    memory_used: int = 0
    resident_used: int = 0
    busy: float = 0.0
    redundancy: tuple[int, int] = (1, 1)  # workers that run its stream, and that should
    commands: int = 0

    @property
    def name(self) -> str:
        """What people call this session, in logs and rgpu-smi; the rest of its id stays a secret."""
        return self.id.hex()[:8]


class Fates:
    """Why sessions and leases ended: the latest ones. Who has had the most of them is forgotten first, so that nobody
    who comes and goes often takes from others what they may still ask for."""

    def __init__(self) -> None:
        self._whose: dict[bytes, Hashable] = {}
        self._reasons: dict[Hashable, dict[bytes, str]] = {}  # by person, the oldest first

    def note(self, whose: Hashable, what: bytes, reason: str) -> None:
        self._whose[what] = whose
        self._reasons.setdefault(whose, {})[what] = reason
        if len(self._whose) > REMEMBERED:
            whose, theirs = max(self._reasons.items(), key=lambda one: len(one[1]))
            del self._whose[oldest := next(iter(theirs))], theirs[oldest]
            if not theirs:
                del self._reasons[whose]

    def of(self, what: bytes) -> str | None:
        return self._reasons[self._whose[what]][what] if what in self._whose else None


class LeaseBook:
    """The leases on devices of ``totals`` bytes each."""

    def __init__(
        self, clock: Callable[[], float], totals: Sequence[int], *, factor: float = 1.0, grace: float = 8.0
    ) -> None:
        self.clock, self.grace, self.patience = clock, grace, grace * OVERTIME
        self.totals = tuple(totals)
        self.lendable = tuple(int(total * factor) for total in totals)
        self._leases: dict[bytes, Lease] = {}
        self._sessions: dict[bytes, Session] = {}
        self._fates = Fates()

    # Beginning and ending

    def grant(
        self, client: Client, devices: Sequence[int], terms: Terms, *, own: bool = False, id: bytes = b""
    ) -> Lease:
        """A lease under an id that nobody can guess. The caller has looked whether there is room."""
        now = self.clock()
        lease = Lease(
            id or secrets.token_bytes(16),
            client,
            {device: terms.memory_of(self.totals[device]) for device in devices},
            terms.compute,
            now,
            now + terms.seconds if terms.seconds else None,
            None if own or terms.seconds else now + max(0.0, CLAIM_SECONDS - self.patience),
            own,
            now,
        )
        self._leases[lease.id] = lease
        return lease

    def promise(self, id: bytes, client: Client, parts: dict[int, int], compute: float, seconds: float) -> Lease:
        """Room kept for whoever comes for it within so many seconds. The caller has looked whether there is any."""
        now = self.clock()
        self._leases[id] = Lease(id, client, parts, compute, now, now + seconds, None, False, now)
        return self._leases[id]

    def open(self, lease: Lease, device: int, client: Client) -> Session:
        """A session of a lease on one of its devices."""
        if device not in lease.parts:
            raise NoSuchDevice(f"device {device} is not among those of this lease: {sorted(lease.parts)}")
        session = Session(secrets.token_bytes(16), 1, device, lease, client, self.clock())
        self._sessions[session.id] = lease.sessions[session.id] = session
        lease.active = session.since
        return session

    def close(self, session: bytes, reason: str) -> Session | None:
        """End a session; None when it had ended. The first reason is the one kept."""
        closed = self._sessions.pop(session, None)
        if closed is not None:
            lease = closed.lease
            lease.sessions.pop(session, None)
            lease.active = self.clock()
            self._fates.note((closed.client.key, closed.client.user), session, reason)
            if lease.own:
                self._forget(lease, reason)
        return closed

    def end(self, lease: bytes, reason: str) -> list[Session]:
        """End a lease; its sessions, which are over with it."""
        found = self._leases.get(lease)
        if found is None:
            return []
        sessions = list(found.sessions.values())
        for session in sessions:
            self.close(session.id, reason)
        self._forget(found, reason)
        return sessions

    def _forget(self, lease: Lease, reason: str) -> None:
        if self._leases.pop(lease.id, None):
            self._fates.note((lease.client.key, lease.client.user), lease.id, reason)

    def renew(self, lease: bytes) -> Lease:
        """Its holder is there; LeaseEnded with the reason when it is over."""
        found = self.lease(lease)
        if found.renewed is not None:
            found.renewed = self.clock()
        return found

    def forgive(self) -> None:
        """We could hear nobody for a while: what holders did not say in it is not held against them."""
        now = self.clock()
        for lease in self._leases.values():
            if lease.renewed is not None:
                lease.renewed = max(lease.renewed, now)

    def overdue(self, idle_timeout: float = 0.0) -> list[tuple[Lease, str]]:
        """The leases that have to end now, and why."""
        now, over = self.clock(), []
        for lease in self._leases.values():
            if lease.until is not None and now >= lease.until:
                over.append((lease, "the time of the lease is over"))
            elif lease.renewed is not None and now - lease.renewed > self._patience_with(lease):
                over.append((lease, f"the holder of the lease was gone for more than {self._patience_with(lease):g} s"))
            elif idle_timeout and now - lease.active > idle_timeout:
                over.append((lease, f"the lease was idle for more than {idle_timeout:g} s"))
        return over

    def _patience_with(self, lease: Lease) -> float:
        return self.grace * WITH_SESSIONS if lease.sessions else self.patience

    # Looking up

    def state(self, session: bytes) -> str:
        if session in self._sessions:
            return "alive"
        reason = self._fates.of(session)
        return "unknown" if reason is None else f"dead: {reason}"

    def lease(self, lease: bytes) -> Lease:
        if found := self._leases.get(lease):
            return found
        unknown = "the server does not know it; it was restarted, or the lease is another server's"
        raise LeaseEnded(f"the lease is over: {self._fates.of(lease) or unknown}")

    def get(self, session: bytes) -> Session | None:
        return self._sessions.get(session)

    def named(self, name: str) -> Session | None:
        return next((session for session in self._sessions.values() if session.name == name), None)

    def sessions_on(self, device: int) -> list[Session]:
        """The sessions of one device, oldest first."""
        return [session for session in self._sessions.values() if session.device == device]

    def on_device(self, device: int) -> list[Lease]:
        """The leases that hold a part of one device, oldest first."""
        return [lease for lease in self._leases.values() if device in lease.parts]

    def __len__(self) -> int:
        return len(self._leases)

    def __iter__(self) -> Iterator[Lease]:
        return iter(list(self._leases.values()))

    # What is lent

    def reserved(self, device: int) -> int:
        """Bytes set aside by leases."""
        return sum(lease.parts.get(device, 0) for lease in self._leases.values())

    def drawn_from_rest(self, device: int) -> int:
        """Bytes that sessions without a part of their own hold of what is left."""
        return sum(s.drawn for s in self._sessions.values() if s.device == device and not s.lease.parts[device])

    def memory_free(self, device: int) -> int:
        """Bytes that may still be lent; below 0 never."""
        return max(0, self.lendable[device] - self.reserved(device) - self.drawn_from_rest(device))

    def compute_free(self, device: int) -> float:
        return max(0.0, 1.0 - sum(lease.compute for lease in self.on_device(device)))

    def resident_free(self, device: int) -> int:
        """Bytes of device memory that no session holds, where more is lent than there is."""
        return max(0, self.totals[device] - sum(s.resident for s in self.sessions_on(device)))

    def limit(self, session: Session) -> int:
        """The most that a session can ever hold: what its lease has, or all that the device lends."""
        part, lendable = session.lease.parts[session.device], self.lendable[session.device]
        return part or min(session.lease.cap or lendable, lendable)

    def drawable(self, session: Session) -> int:
        """How much more a session may hold now."""
        part = session.lease.parts[session.device]
        if not part:
            return min(self.memory_free(session.device), max(0, self.limit(session) - session.drawn))
        return max(0, part - sum(s.drawn for s in session.lease.sessions.values() if s.device == session.device))

    def held(self, user: str) -> tuple[int, float, int]:
        """Memory, compute and devices that a user's leases hold."""
        memory, compute, devices = 0, 0.0, 0
        for lease in self._leases.values():
            if lease.client.user == user:
                compute += lease.compute * len(lease.parts)
                devices += len(lease.parts)
                memory += sum(lease.parts.values())
                memory += sum(s.drawn for s in lease.sessions.values() if not lease.parts[s.device])
        return memory, compute, devices

    def dominant_shares(self) -> dict[str, float]:
        """For each user, the devices' worth held: of each part, the larger of memory and compute."""
        shares: dict[str, float] = {}
        for lease in self._leases.values():
            value = worth(lease.parts, self.totals, lease.compute)
            shares[lease.client.user] = shares.get(lease.client.user, 0.0) + value
        return shares
