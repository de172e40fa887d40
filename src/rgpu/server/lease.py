"""Leases: who holds which device since when, and what became of those who did.

Pure: no sockets, no processes, the clock is given. The daemon is the authority over its devices,
and this book is its memory; it must never forget a live lease and never grow without bound.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

REMEMBERED = 4096  # ended sessions whose fate can still be asked for


@dataclass(frozen=True)
class Client:
    """Who asked. ``key`` was proven ("": a server without keys); the rest is as they said, shown in rgpu-smi and never
    trusted for anything."""

    user: str
    host: str
    pid: int
    program: str
    key: str = ""


@dataclass
class Lease:
    """A session's right to a device, with what its worker last told."""

    session: bytes
    epoch: int
    device: int
    client: Client
    since: float
    memory_limit: int = 0
    memory_used: int = 0
    busy: float = 0.0
    commands: int = 0

    @property
    def name(self) -> str:
        """What people call this session, in logs and rgpu-smi; the rest of its id stays a secret."""
        return self.session.hex()[:8]


@dataclass
class LeaseBook:
    clock: Callable[[], float]
    _live: dict[bytes, Lease] = field(default_factory=dict)
    _ended: OrderedDict[bytes, str] = field(default_factory=OrderedDict)

    def grant(self, device: int, client: Client, memory_limit: int = 0) -> Lease:
        """A lease under a session id that nobody can guess."""
        lease = Lease(secrets.token_bytes(16), 1, device, client, self.clock(), memory_limit)
        self._live[lease.session] = lease
        return lease

    def end(self, session: bytes, reason: str) -> Lease | None:
        """Close a lease; None when it was closed before. The first reason is the one kept."""
        lease = self._live.pop(session, None)
        if lease is not None:
            self._ended[session] = reason
            while len(self._ended) > REMEMBERED:
                self._ended.popitem(last=False)
        return lease

    def state(self, session: bytes) -> str:
        if session in self._live:
            return "alive"
        reason = self._ended.get(session)
        return "unknown" if reason is None else f"dead: {reason}"

    def get(self, session: bytes) -> Lease | None:
        return self._live.get(session)

    def named(self, name: str) -> Lease | None:
        return next((lease for lease in self._live.values() if lease.name == name), None)

    def on_device(self, device: int) -> list[Lease]:
        """The leases of one device, oldest first."""
        return [lease for lease in self._live.values() if lease.device == device]

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[Lease]:
        return iter(list(self._live.values()))
