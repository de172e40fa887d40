"""Leases from the holder's side: asked for on one or several servers, all or none; kept while they are held.

Servers are asked in the order of their addresses, so that two holders who each wait for what the other has cannot
come about. Needs no array and no NumPy: `rgpu run` and `rgpu request` hold leases for the programs they start.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from rgpu import registry, tokens
from rgpu.client.control import DaemonClient, user_name
from rgpu.config import Address, ClientConfig, parse_address, parse_bytes, parse_share
from rgpu.errors import (
    ConfigError,
    LeaseEnded,
    NoSuchDevice,
    QuotaExceeded,
    RgpuError,
    ServerBusy,
    ServerUnavailable,
)
from rgpu.leases.filters import parse_filters
from rgpu.leases.placement import Room, candidates, choose
from rgpu.leases.terms import Terms
from rgpu.wire import control

ASK_SECONDS = 0.3  # between two questions for the place in the queue
ATTEMPTS = 3  # to get devices that were free when they were looked at
CLAIM_ATTEMPTS = 20  # to get from its servers what the registry granted; each one that is dead costs one
PASSING = (ServerUnavailable, ServerBusy, LeaseEnded)  # another server may do, or the same one a moment later
SLOW_SECONDS = 2.0  # that servers of a registry have to answer when one has

T = TypeVar("T")


@dataclass(frozen=True)
class Part:
    """A lease on devices of one server. As a text, for RGPU_LEASE: ``host:port/id/0+1``."""

    address: Address
    lease: bytes
    devices: tuple[int, ...]
    renew: float = 0.0

    def __str__(self) -> str:
        return f"{self.address}/{self.lease.hex()}/{'+'.join(map(str, self.devices))}"

    @property
    def name(self) -> str:
        return self.lease.hex()[:8]


def parse_part(text: str) -> Part:
    """A ``Part`` from its text."""
    try:
        address, lease, devices = text.split("/")
        part = Part(parse_address(address), bytes.fromhex(lease), tuple(map(int, devices.split("+"))))
        if len(part.lease) != 16:
            raise ValueError("a lease has 16 bytes")
    except ValueError:
        raise ConfigError(f"RGPU_LEASE: {text!r} is no lease; it is set by rgpu run and rgpu request") from None
    return part


def terms_of(settings: ClientConfig, seconds: float = 0.0) -> Terms | None:
    """What the settings ask for; None when they ask for nothing, and devices are used as far as they are free."""
    asked = (settings.gpus, settings.memory, settings.compute, settings.filters, seconds, settings.wait_for)
    if not any(asked) and settings.placement == "spread":
        return None
    memory, fraction = 0, 0.0
    if settings.memory:
        try:
            fraction = parse_share(settings.memory) if set(settings.memory) & {".", "%"} else 0.0
        except ValueError:
            pass
        memory = 0 if fraction else parse_bytes(settings.memory)
    try:
        filters = parse_filters(settings.filters)
    except ValueError as error:
        raise ConfigError(f"RGPU_FILTERS: {error}") from None
    return Terms(settings.gpus or 1, memory, fraction, settings.compute, seconds, filters, settings.placement)


def hello_all(daemons: Sequence[DaemonClient]) -> list[Any]:
    """Ask every daemon at the same time: it costs one round trip, not one a server. Raises the first failure."""
    return at_once(lambda daemon: daemon.hello(), daemons)


def at_once(ask: Callable[[T], Any], whom: Sequence[T]) -> list[Any]:
    """The answers of all, each asked in a thread of its own. Raises the first failure."""
    if len(whom) < 2:
        return [ask(one) for one in whom]
    with ThreadPoolExecutor(min(32, len(whom))) as threads:
        return list(threads.map(ask, whom))


def hello_those_there(daemons: Sequence[DaemonClient], told: Callable[[str], None]) -> list[tuple[DaemonClient, Any]]:
    """The servers that answer, with their answers: one of those that a registry names may have ended just now. When
    one has answered, the others have ``SLOW_SECONDS``. Raises the first failure when none answers."""
    answers: list[Any] = [None] * len(daemons)
    first, done = threading.Event(), threading.Semaphore(0)

    def ask(number: int) -> None:
        try:
            answers[number] = daemons[number].hello()
            first.set()
        except RgpuError as error:
            answers[number] = error
        finally:
            done.release()

    threads = [threading.Thread(target=ask, args=(number,), daemon=True) for number in range(len(daemons))]
    for thread in threads:
        thread.start()
    left = len(daemons)
    while left:
        # Nobody is waited for longer than the time limit of its client, and after the first answer not for so long.
        if done.acquire(timeout=SLOW_SECONDS if first.is_set() else 0.1):
            left -= 1
        elif first.is_set():
            break
    there = []
    for daemon, answer in zip(daemons, list(answers)):
        if isinstance(answer, RgpuError) and not isinstance(answer, ServerUnavailable):
            raise answer
        if answer is None or isinstance(answer, RgpuError):
            told(f"left out: {answer or f'rgpu server {daemon.address} did not answer within {SLOW_SECONDS:g} s'}")
        else:
            there.append((daemon, answer))
    if not there:
        raise next(answer for answer in answers if answer is not None)
    return there


def visible(entries: Sequence[str] | None, infos: Sequence[dict]) -> list[int]:
    """The positions of the devices that RGPU_VISIBLE_DEVICES shows, by CUDA's rules: numbers, UUIDs or the beginning
    of just one; what follows an entry that names none is not seen; named twice, none is."""
    if entries is None:
        return list(range(len(infos)))
    chosen: list[int] = []
    for entry in entries:
        if entry.isdecimal():
            found = [int(entry)] if int(entry) < len(infos) else []
        else:
            found = [
                number
                for number, info in enumerate(infos)
                if entry and str(info.get("uuid", "")).lower().startswith(entry.lower())
            ]
        if len(found) != 1:
            break
        chosen += found
    if not chosen or len(set(chosen)) < len(chosen):
        raise NoSuchDevice(
            f"RGPU_VISIBLE_DEVICES={','.join(entries)} shows no device: the pool has {len(infos)}, and each may be "
            "named once, by number or by UUID. See 'rgpu list'"
        )
    return chosen


def room_of(address: Any, info: dict) -> Room:
    """What a server says of a device, for planning."""
    return Room(
        str(address),
        info["memory_total"],
        info.get("memory_free", info["memory_total"]),
        info.get("compute_free", 1.0),
        info.get("load", 0),
        info.get("utilization", 0.0),
        info.get("open", True),
        {**info, "address": str(address)},
        info.get("memory_lendable", 0),
    )


def acquire(
    daemons: Sequence[DaemonClient],
    terms: Terms,
    *,
    wait: float = 0.0,
    show: Sequence[str] | None = None,
    told: Callable[[str], None] = lambda text: None,
    redundancy: int = 1,
) -> list[Part]:
    """Leases for ``terms`` on the devices that ``show`` shows; ``told`` hears of the place in the queue. With
    ``redundancy`` 2 the same again on other servers: every other one of the list.

    Raises NoSuchDevice, QuotaExceeded, or ServerBusy when there is no room within ``wait`` seconds.
    """
    if redundancy > 1:
        return _acquire_apart(daemons, terms, redundancy, wait=wait, show=show, told=told)
    deadline = 0.0
    for attempt in range(ATTEMPTS):
        places = [(d, info) for d, welcome in zip(daemons, hello_all(daemons)) for info in welcome.devices]
        deadline = deadline or time.monotonic() + wait  # what a slow server takes to say hello is no waiting
        places = [places[number] for number in visible(show, [info for _, info in places])]
        rooms = [room_of(daemon.address, info) for daemon, info in places]
        candidates(rooms, terms)
        try:
            chosen = choose(rooms, terms)
        except ServerBusy:
            if wait <= 0:
                raise
            chosen = choose([_empty(room) for room in rooms], terms)  # where to wait
        try:
            return _request(places, chosen, terms, deadline, told)
        except ServerBusy:
            if wait > 0 or attempt == ATTEMPTS - 1:  # else somebody was quicker than we
                raise
    raise AssertionError("not reached")


def lend(
    settings: ClientConfig, terms: Terms, told: Callable[[str], None] = lambda text: None
) -> tuple[list[Part], list[DaemonClient]]:
    """Leases for ``terms`` on servers of the registry, granted there and claimed at each; clients of these servers.

    ``told`` hears of the place in the queue, and of servers that are passed over because they do not answer. Raises
    NoSuchDevice, QuotaExceeded, ServerBusy, or ServerUnavailable when none of the servers that are left will do.
    """
    from rgpu.registry import grants  # what it needs costs commands time that use none

    def shown(servers: Sequence[Any]) -> Sequence[int] | None:
        registry.known(tuple(parse_address(server.address) for server in servers), settings.registry)
        every = [facts for server in servers for facts in server.facts]
        return None if settings.visible_devices is None else visible(settings.visible_devices, every)

    terms = replace(terms, count=terms.count * settings.redundancy)
    deadline = time.monotonic() + settings.wait_for
    asker = grants.Asker(settings.registry, _user(), timeout=settings.connect_timeout, told=told, shown=shown)
    try:
        for attempt in range(CLAIM_ATTEMPTS):
            grant = asker.get(terms, deadline)
            failures, claimed = _claim(grant, terms, settings.connect_timeout)
            if not failures:
                return claimed
            _undo(asker, grant, claimed)
            for address, error in failures.items():
                if not isinstance(error, PASSING) or isinstance(error, QuotaExceeded) or attempt == CLAIM_ATTEMPTS - 1:
                    raise error
                if isinstance(error, ServerUnavailable):
                    asker.skip(address)
                    told(f"passed over: {error}")
                else:
                    time.sleep(0.02 * attempt)  # what is free there is about to be said in the registry
    finally:
        asker.close()
    raise AssertionError("not reached")


def _claim(grant: Any, terms: Terms, timeout: float) -> tuple[dict[str, RgpuError], tuple[list[Part], list]]:
    """Ask every server of a grant for its part, all at once: who refused and why, and what was got."""
    wanted = grant.by_server()
    daemons = [DaemonClient(parse_address(address), timeout) for address in wanted]

    def ask(daemon: DaemonClient) -> Any:
        address = str(daemon.address)
        try:
            promised = grant.lease(address)
            return daemon.request(terms.on(wanted[address]), promised=promised, revision=grant.revision)
        except RgpuError as error:
            return error

    failures: dict[str, RgpuError] = {}
    parts, used = [], []
    for daemon, answer in zip(daemons, at_once(ask, daemons)):
        if isinstance(answer, RgpuError):
            failures[str(daemon.address)] = answer
            daemon.close()
        else:
            parts.append(Part(daemon.address, answer.lease, wanted[str(daemon.address)], answer.renew))
            used.append(daemon)
    return failures, (parts, used)


def _undo(asker: Any, grant: Any, claimed: tuple[list[Part], list[DaemonClient]]) -> None:
    """All or none: what was got is given back, and the rest of the grant taken out of the books."""
    for part, daemon in zip(*claimed):
        with contextlib.suppress(RgpuError):
            daemon.give_back(part.lease)
        daemon.close()
    got = {str(part.address) for part in claimed[0]}
    with contextlib.suppress(RgpuError):  # it ends there by itself
        asker.withdraw(grant, [address for address in grant.by_server() if address not in got])


def _user() -> str:
    """Who asks the registry: whom the servers will find us to be."""
    found = tokens.found()
    return found[0].user if found else user_name()


def _acquire_apart(daemons: Sequence[DaemonClient], terms: Terms, times: int, **how: Any) -> list[Part]:
    """Leases for the same terms on groups of servers that have none in common."""
    if len(daemons) < times:
        raise NoSuchDevice(f"redundancy={times} needs devices on {times} servers; the pool has {len(daemons)}")
    parts: list[Part] = []
    try:
        for group in range(times):
            parts += acquire(daemons[group::times], terms, **how)
    except BaseException:
        for part in parts:
            with contextlib.suppress(RgpuError):
                next(daemon for daemon in daemons if daemon.address == part.address).give_back(part.lease)
        raise
    return parts


def _empty(room: Room) -> Room:
    return Room(room.server, room.memory_total, room.lendable or room.memory_total, 1.0, room.sessions,
                room.utilization, True, room.facts, room.lendable)  # fmt: skip


def _request(places: list, chosen: list[int], terms: Terms, deadline: float, told: Callable[[str], None]) -> list[Part]:
    """Leases on the chosen devices, server by server; what was got is given back when one refuses."""
    by_server: dict[Any, list[int]] = {}
    for number in chosen:
        daemon, info = places[number]
        by_server.setdefault(daemon, []).append(info["index"])
    offered = {daemon for daemon, _ in places}
    parts: list[Part] = []
    try:
        for daemon in sorted(by_server, key=lambda d: str(d.address)):
            indices = tuple(by_server[daemon])
            # One server alone knows best which of its devices; it may be others by the time it is our turn.
            mine = tuple(info["index"] for d, info in places if d is daemon)
            wanted = terms if len(offered) == 1 and terms.count == len(indices) else terms.on(indices)
            if wanted is terms:
                wanted = Terms(**{**vars(terms), "devices": mine})
            parts.append(_wait_for(daemon, wanted, deadline, told))
    except BaseException:
        for part, daemon in zip(parts, sorted(by_server, key=lambda d: str(d.address))):
            with contextlib.suppress(RgpuError):
                daemon.give_back(part.lease)
        raise
    order = {(str(places[n][0].address), places[n][1]["index"]): position for position, n in enumerate(chosen)}
    return sorted(parts, key=lambda part: order.get((str(part.address), part.devices[0]), 0))


def _wait_for(daemon: DaemonClient, terms: Terms, deadline: float, told: Callable[[str], None]) -> Part:
    ticket, said = b"", ""
    while True:
        answer = daemon.request(terms, ticket=ticket, wait=max(0.0, deadline - time.monotonic()))
        if isinstance(answer, control.Leased.Record):
            devices = tuple(info["index"] for info in answer.devices)
            return Part(daemon.address, answer.lease, devices, answer.renew)
        ticket = answer.ticket
        text = f"waiting for {terms} on {daemon.address}: place {answer.position} of {answer.waiting} in the queue"
        if text != said:
            told(text)
            said = text
        time.sleep(ASK_SECONDS)


class Holder:
    """Keeps leases, in a thread for each server: one that does not answer must not cost a lease on another. Tells
    people on stderr what their holder should know."""

    def __init__(self, name: str = "rgpu") -> None:
        self._name = name
        self._leases: dict[bytes, tuple[DaemonClient, float]] = {}
        self._said: dict[bytes, str] = {}
        self._over = threading.Event()
        self._threads: dict[Address, tuple[threading.Thread, threading.Event]] = {}

    def add(self, daemon: DaemonClient, lease: bytes, every: float) -> None:
        self._leases[lease] = (daemon, every)
        server = daemon.address
        if server not in self._threads:
            added = threading.Event()
            thread = threading.Thread(target=self._run, args=(server, added), name="rgpu-holder", daemon=True)
            self._threads[server] = (thread, added)
            thread.start()
        self._threads[server][1].set()  # a first word at once: until then a server waits longer for us

    def forget(self, lease: bytes) -> None:
        """It is not wanted any more."""
        self._leases.pop(lease, None)

    def _run(self, server: Address, added: threading.Event) -> None:
        while not self._over.is_set():
            added.clear()
            mine = [(lease, *held) for lease, held in list(self._leases.items()) if held[0].address == server]
            for lease, daemon, every in mine:
                self.renew(daemon, lease, every)
            added.wait(min((every for _, _, every in mine), default=60.0))

    def renew(self, daemon: DaemonClient, lease: bytes, patience: float | None = None) -> None:
        """Once; a lease that is over is renewed no more. An answer that takes longer is asked for again."""
        try:
            self._say(daemon, lease, daemon.renew(lease, patience).notice)
        except LeaseEnded as error:
            self._say(daemon, lease, str(error))
            self._leases.pop(lease, None)
        except (ServerUnavailable, RgpuError):
            pass  # it may come back; what uses the devices will say it if not

    def _say(self, daemon: DaemonClient, lease: bytes, notice: str) -> None:
        kind = notice[:24]  # the rest is how long there is still time
        if notice and kind != self._said.get(lease) and sys.stderr is not None and not self._over.is_set():
            print(f"{self._name}: {daemon.address}: {notice}", file=sys.stderr, flush=True)
        self._said[lease] = kind

    def close(self, give_back: bool = False) -> None:
        self._over.set()
        for _, added in self._threads.values():
            added.set()
        end = time.monotonic() + 2.0
        for thread, _ in self._threads.values():
            thread.join(max(0.0, end - time.monotonic()))
        for lease, (daemon, _) in list(self._leases.items()):
            if give_back:
                with contextlib.suppress(RgpuError):
                    daemon.give_back(lease)
        self._leases.clear()


def daemons_of(settings: ClientConfig) -> list[DaemonClient]:
    """Clients of the servers in the settings, without the local one."""
    return [DaemonClient(a, settings.connect_timeout) for a in registry.servers(settings) if isinstance(a, Address)]
