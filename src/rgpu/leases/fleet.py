"""Who gets which devices of a pool of many servers: decided by every asker alike, from what the registry says.

There is no scheduler: whoever wants devices looks at the same picture with the same rules, so all come to the same
order, and a transaction sees to it that the picture still held. Pure. Nothing here is believed of a server's own
devices: the server checks again.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rgpu.config import Quota
from rgpu.errors import NoSuchDevice, QuotaExceeded, RgpuError, ServerBusy
from rgpu.leases.placement import Room, candidates, choose
from rgpu.leases.queue import Waiting, grant_in_order, in_order, worth
from rgpu.leases.terms import Quotas, Terms

Place = tuple[str, int]  # a server's address and the index of one of its devices


@dataclass(frozen=True)
class Held:
    """A lease that a server's book lists. ``parts``: device -> bytes set aside (0: draws from what is left)."""

    user: str
    parts: Mapping[int, int]
    compute: float

    @property
    def entry(self) -> dict[str, Any]:
        """As it stands in a book."""
        parts = {str(device): memory for device, memory in sorted(self.parts.items())}
        return {"user": self.user, "parts": parts, "compute": self.compute}


def held(entry: Mapping[str, Any]) -> Held:
    """From its entry in a book; ValueError, TypeError or KeyError for what no server or client wrote."""
    return Held(str(entry["user"]), {int(d): int(m) for d, m in entry["parts"].items()}, float(entry["compute"]))


@dataclass(frozen=True)
class Listed:
    """A server as the registry knows it. ``drawn``, ``load`` and ``full`` of each device: bytes and sessions of those
    who hold no lease of the book, and whether it takes no other session."""

    address: str
    facts: Sequence[Mapping[str, Any]]
    lendable: Sequence[int]
    drawn: Sequence[int]
    load: Sequence[int]
    full: Sequence[bool]
    leases: Mapping[str, Held]
    quotas: Quotas = field(default_factory=Quotas)
    draining: bool = False

    def rooms(self, user: str) -> list[Room]:
        """What each device has left, for a user."""
        if self.quotas.named and not self.draining and self._over(user, list(self.leases.values())):
            return [replace(room, open=False) for room in self._rooms]
        return self._rooms

    @functools.cached_property
    def _rooms(self) -> list[Room]:
        holders, rooms = list(self.leases.values()), []
        for device, facts in enumerate(self.facts):
            here = [one for one in holders if device in one.parts]
            rooms.append(
                Room(
                    self.address,
                    int(facts["memory_total"]),
                    max(0, self.lendable[device] - self.drawn[device] - sum(one.parts[device] for one in here)),
                    max(0.0, 1.0 - sum(one.compute for one in here)),
                    self.load[device] + len(here),
                    0.0,
                    not self.draining and not self.full[device],
                    facts,
                    self.lendable[device],
                )
            )
        return rooms

    def _over(self, user: str, holders: Sequence[Held]) -> bool:
        """Whether a user holds all that this server lets the user hold; what exactly fits, it says itself."""
        quota = self.quotas.of(user)
        if not (quota.memory or quota.compute or quota.devices):
            return False
        mine = [one for one in holders if one.user == user]
        return (
            0 < quota.memory <= sum(sum(one.parts.values()) for one in mine)
            or 0 < quota.compute <= sum(one.compute * len(one.parts) for one in mine)
            or 0 < quota.devices <= sum(len(one.parts) for one in mine)
        )


def listed(address: str, entry: Mapping[str, Any], book: Mapping[str, Any]) -> Listed:
    """From a server's entry and its book; ValueError, TypeError, KeyError or AttributeError for what is none."""
    told = book.get("reach")
    found = {"address": address, "reach": told if isinstance(told, dict) else {}}
    facts = [{**device, **found, "memory_total": int(device["memory_total"])} for device in entry["devices"]]
    count = len(facts)

    def figures(name: str, default: Any) -> list:
        given = list(book.get(name, ()))
        return given if len(given) == count else [default] * count

    lendable = [int(device.get("memory_lendable", device["memory_total"])) for device in facts]
    quotas = {user: Quota(user, **bounds) for user, bounds in entry.get("quotas", {}).items()}
    leases = {name: held(one) for name, one in book["leases"].items()}
    return Listed(
        address, facts, lendable, figures("drawn", 0), figures("load", 0), figures("full", False), leases,
        Quotas(quotas), bool(book.get("draining")),
    )  # fmt: skip


@dataclass(frozen=True)
class Decision:
    """``places``: the devices that the asker gets now; empty: it waits, at ``position`` (1 is next) of ``waiting``, for
    ``why``."""

    places: tuple[Place, ...]
    position: int
    waiting: int
    why: ServerBusy | None = None


def weights(servers: Sequence[Listed]) -> Callable[[str], float]:
    """A user's weight: the largest that any server gives."""
    named: dict[str, float] = {}
    for server in servers:
        for user, quota in server.quotas.named.items():
            named[user] = max(named.get(user, 0.0), quota.weight)
    return lambda user: named.get(user) or named.get("*") or 1.0


def shares(servers: Sequence[Listed]) -> dict[str, float]:
    """For each user, the devices' worth held: of each part, the larger of memory and compute."""
    result: dict[str, float] = {}
    for server in servers:
        for one in server.leases.values():
            totals = [facts["memory_total"] for facts in server.facts]
            result[one.user] = result.get(one.user, 0.0) + worth(one.parts, totals, one.compute)
    return result


def decide(
    servers: Sequence[Listed], waiting: Sequence[Waiting], mine: Waiting, *, skip: frozenset[str] = frozenset()
) -> Decision:
    """What ``mine`` gets, when everybody who waits is served in order. ``item`` of each is its ``Terms``, whose
    ``devices`` are positions among all devices of the servers; ``skip``: servers that ``mine`` does not want.

    Raises NoSuchDevice for what can never be.
    """
    everybody = [room for server in servers for room in server.rooms("")]
    bounded = any(server.quotas.named for server in servers)  # else all users see the same rooms
    rooms = {
        user: [room for server in servers for room in server.rooms(user)] if bounded else everybody
        for user in {mine.user, *(one.user for one in waiting)}
    }
    places = [(server.address, device) for server in servers for device in range(len(server.facts))]
    if skip:
        candidates(rooms[mine.user], mine.item)
        usable = [p for p in (mine.item.devices or range(len(places))) if places[p][0] not in skip]
        mine = replace(mine, item=mine.item.among(usable))
        try:
            candidates(rooms[mine.user] if usable else [], mine.item)
        except NoSuchDevice:
            why = ServerBusy(f"{mine.item} asked for; of the servers that have it too few answer")
            return Decision((), 1, 1, why)
    ordered = in_order([*waiting, mine], shares(servers), weights(servers)) if waiting else [mine]
    chosen: dict[bytes, list[int]] = {}

    def grant(one: Waiting) -> bool:
        try:
            # Askers do not all take the first of a thousand equal devices, yet each knows which another takes.
            ties = random.Random(one.ticket)
            chosen[one.ticket] = choose(rooms[one.user], one.item, [ties.random() for _ in places])
        except NoSuchDevice:
            if one is mine:
                raise
            return False
        except ServerBusy:
            return False
        for position in chosen[one.ticket] if one is not mine else ():
            for of_user in {id(one): one for one in rooms.values()}.values():
                of_user[position] = _less(of_user[position], one.item)
        return True

    number = ordered.index(mine) + 1
    grant_in_order(ordered[:number], lambda one: _wanted(rooms[one.user], one.item) if waiting else set(), grant)
    if mine.ticket in chosen:
        return Decision(tuple(places[position] for position in chosen[mine.ticket]), number, len(ordered))
    return Decision((), number, len(ordered), _why(rooms[mine.user], mine, number, servers))


def _less(room: Room, terms: Terms) -> Room:
    """What is left of a device that somebody else is about to get."""
    return replace(
        room,
        memory_free=room.memory_free - terms.memory_of(room.memory_total),
        compute_free=room.compute_free - terms.compute,
        sessions=room.sessions + 1,
    )


def _wanted(rooms: Sequence[Room], terms: Terms) -> set[int]:
    """The devices that somebody waits for; none that are shut for this user, whose own quota is what is waited for."""
    try:
        return {position for position in candidates(rooms, terms) if rooms[position].open}
    except RgpuError:
        return set()


def _why(rooms: Sequence[Room], mine: Waiting, number: int, servers: Sequence[Listed]) -> ServerBusy:
    try:
        choose(rooms, mine.item)
    except ServerBusy as error:
        over = [server.address for server in servers if server._over(mine.user, list(server.leases.values()))]
        if over and len(over) == len(servers):
            return QuotaExceeded(f"user {mine.user} holds what the quota allows on {', '.join(over[:3])}")
        return error
    except RgpuError as error:
        return ServerBusy(str(error))
    return ServerBusy(f"{number - 1} others wait for these devices; wait for them with --wait-for")
