"""What a server says of itself: its devices, sessions, leases and queue, as this person may see them.

Reads and never changes anything; whose sessions there are is told to their owners and to administrators.
"""

from __future__ import annotations

import functools
import os
import platform
import time
from collections.abc import Sequence
from typing import Any

from rgpu import host, link
from rgpu.config import ServerConfig
from rgpu.leases.nearness import Reach
from rgpu.server.access import Access
from rgpu.server.broker import Broker
from rgpu.server.device import Device, Reading
from rgpu.server.host import host_id, runs_kernels
from rgpu.server.keys import Person
from rgpu.server.lease import Lease, LeaseBook, Session
from rgpu.server.line import Line
from rgpu.server.samples import Samples
from rgpu.server.telemetry import Inventory
from rgpu.server.workers import WorkerPool
from rgpu.wire.version import VERSION, fingerprint

_NOBODY = {"user": "-", "host": "-", "pid": 0, "program": "-"}  # somebody else, whom this person may not see


def facts_of(device: Device, config: ServerConfig) -> dict[str, Any]:
    """What filters may ask for."""
    return {
        "server": config.server_name,
        "host": platform.node(),
        "host_id": host_id(),
        "address": config.bind,
        "labels": dict(config.labels),
        **_network(config.links),
        "index": device.index,
        "name": device.name,
        "kind": device.kind,
        "memory_total": device.memory_total,
        "kernels": device.kind == "cuda" or runs_kernels(),  # whether clients' kernels run there
        **device.properties,
    }


@functools.cache
def _network(links: tuple[str, ...]) -> dict[str, Any]:
    """The links that workers offer, and whether this host has an RDMA card; looked up once."""
    return {"link": ",".join(link.offered(links)), "rdma": bool(host.rdma())}


class Showing:
    """``page``: the address of the server's web page, where there is one; ``line``: who waits in the registry."""

    def __init__(
        self,
        devices: Sequence[Device],
        config: ServerConfig,
        inventory: Inventory,
        leases: LeaseBook,
        broker: Broker,
        access: Access,
        workers: WorkerPool,
    ) -> None:
        self._devices, self._config, self._inventory = devices, config, inventory
        self._leases, self._broker, self._access, self._workers = leases, broker, access, workers
        self._started = time.monotonic()
        self.page = ""
        self.line: Line | None = None
        self.reach = Reach()
        self.samples = Samples(devices, self._reading)

    def picture(self, person: Person, waiting: int) -> dict[str, Any]:
        """This server as rgpu-smi and the web page show it to somebody; ``waiting`` for a worker."""
        return {
            "name": self._config.server_name,
            "version": VERSION,
            "fingerprint": fingerprint(),
            "host": platform.node(),
            "pid": os.getpid(),
            "uptime": time.monotonic() - self._started,
            "page": self.page,
            "waiting": waiting,
            "draining": self._broker.draining,
            "oversubscribe": self._config.oversubscribe,
            "queue": [place | self._names(request, person) for place, request in self._broker.queue()],
            "devices": [
                self.device(device)
                | {
                    "sessions": self._sessions(device, person),
                    "leases": self._held(device, person),
                    "samples": self.samples.summary(device.index),
                }
                for device in self._devices
            ],
        }

    def page_picture(self, waiting: int, endpoint: str) -> dict[str, Any]:
        """The same as everybody may see it, with the queue of the registry, whose rows `rgpu-smi` reads there."""
        stranger = self._access.stranger
        shown = self.picture(stranger, waiting)
        nobody = dict(_NOBODY) if self._access.ring is not None else {}
        queued = [row | nobody for row in self.line.rows] if self.line is not None else []
        return shown | {"address": endpoint.removeprefix("tcp://"), "queue": shown["queue"] + queued}

    def _reading(self, device: Device) -> Reading:
        return self._inventory.read(device, self._leases.sessions_on(device.index))

    def device(self, device: Device) -> dict[str, Any]:
        """A device with what is left of it."""
        reading = self._reading(device)
        room = self._broker.rooms()[device.index]
        return {
            **facts_of(device, self._config),
            **reading.details,
            "memory_used": reading.memory_used,
            "memory_leased": self._leases.reserved(device.index),
            "memory_free": room.memory_free,
            "memory_lendable": room.lendable,
            "compute_free": room.compute_free,
            "open": room.open and not self._broker.draining,
            "draining": self._broker.draining,
            "load": room.sessions,
            "utilization": reading.utilization,
            "reach": dict(self.reach.hosts),
        }

    def _held(self, device: Device, person: Person) -> list[dict[str, Any]]:
        """The leases that hold a part of a device; ``memory`` and ``compute`` 0: what is left."""
        now = time.monotonic()
        return [
            {
                "id": lease.name,
                **self._names(lease, person),
                "memory": lease.parts[device.index],
                "compute": lease.compute,
                "age": now - lease.since,
                "idle": now - lease.active,
                "seconds_left": None if lease.until is None else lease.until - now,
                "sessions": sum(s.device == device.index for s in lease.sessions.values()),
            }
            for lease in self._leases.on_device(device.index)
        ]

    def _sessions(self, device: Device, person: Person) -> list[dict[str, Any]]:
        now = time.monotonic()
        return [
            {
                "id": session.name,
                **self._names(session, person),
                **self._process(session, person),
                "lease": session.lease.name,
                "memory_limit": self._leases.limit(session),
                "memory_used": session.memory_used,
                "memory_spilled": max(0, session.memory_used - session.resident_used),
                "compute": session.lease.compute,
                "utilization": round(100 * session.busy),
                "commands": session.commands,
                "redundancy": list(session.redundancy),
                "age": now - session.since,
            }
            for session in self._leases.sessions_on(device.index)
        ]

    def _names(self, held: Lease | Session | Any, person: Person) -> dict[str, Any]:
        """Whose it is, for its owner and the administrator; others see that there is one."""
        client = held.client
        if not self._access.owns(person, held):
            return dict(_NOBODY)
        return {"user": client.user, "host": client.host, "pid": client.pid, "program": client.program}

    def _process(self, session: Session, person: Person) -> dict[str, Any]:
        worker = self._workers.by_session(session.id) if self._access.owns(person, session) else None
        return {"worker_pid": worker.process.pid if worker else 0, "link": worker.link if worker else ""}
