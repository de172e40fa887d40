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
from dataclasses import dataclass
from typing import Any

from rgpu import registry
from rgpu.client.control import DaemonClient
from rgpu.config import Address, ClientConfig, parse_address, parse_bytes, parse_share
from rgpu.errors import ConfigError, LeaseEnded, NoSuchDevice, RgpuError, ServerBusy, ServerUnavailable
from rgpu.leases.filters import parse_filters
from rgpu.leases.placement import Room, candidates, choose
from rgpu.leases.terms import Terms
from rgpu.wire import control

ASK_SECONDS = 0.3  # between two questions for the place in the queue
ATTEMPTS = 3  # to get devices that were free when they were looked at


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
    if len(daemons) < 2:
        return [daemon.hello() for daemon in daemons]
    with ThreadPoolExecutor(min(32, len(daemons))) as threads:
        return list(threads.map(lambda daemon: daemon.hello(), daemons))


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
) -> list[Part]:
    """Leases for ``terms`` on the devices that ``show`` shows; ``told`` hears of the place in the queue.

    Raises NoSuchDevice, QuotaExceeded, or ServerBusy when there is no room within ``wait`` seconds.
    """
    deadline = time.monotonic() + wait
    for attempt in range(ATTEMPTS):
        places = [(d, info) for d, welcome in zip(daemons, hello_all(daemons)) for info in welcome.devices]
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
    """Keeps leases in a thread of its own, and tells people on stderr what their holder should know."""

    def __init__(self, name: str = "rgpu") -> None:
        self._name = name
        self._leases: dict[bytes, tuple[DaemonClient, float]] = {}
        self._said: dict[bytes, str] = {}
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, daemon: DaemonClient, lease: bytes, every: float) -> None:
        self._leases[lease] = (daemon, every)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="rgpu-holder", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            for lease, (daemon, _) in list(self._leases.items()):
                self.renew(daemon, lease)
            if self._over.wait(min((every for _, every in list(self._leases.values())), default=1.0)):
                return

    def renew(self, daemon: DaemonClient, lease: bytes) -> None:
        """Once; a lease that is over is renewed no more."""
        try:
            self._say(daemon, lease, daemon.renew(lease).notice)
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
        if self._thread is not None:
            self._thread.join(2.0)
        for lease, (daemon, _) in list(self._leases.items()):
            if give_back:
                with contextlib.suppress(RgpuError):
                    daemon.give_back(lease)
        self._leases.clear()


def daemons_of(settings: ClientConfig) -> list[DaemonClient]:
    """Clients of the servers in the settings, without the local one."""
    return [DaemonClient(a, settings.connect_timeout) for a in registry.servers(settings) if isinstance(a, Address)]
