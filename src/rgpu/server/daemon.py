"""The daemon: admits clients, grants leases, keeps worker processes, describes itself.

One thread, one poll loop over the control socket, the workers' channels and a wake-up pipe. No
array data and no client code pass through here, and nothing here may block.
"""

from __future__ import annotations

import logging
import os
import platform
import signal
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from rgpu import host
from rgpu.config import Address, ServerConfig
from rgpu.errors import AuthenticationError, NoSuchDevice, ProtocolError, QuotaExceeded, ServerBusy
from rgpu.link.control import ControlServer
from rgpu.server import broker
from rgpu.server.access import Access
from rgpu.server.confine import Quarters
from rgpu.server.device import Device
from rgpu.server.keys import KeyRing, Person, key_id
from rgpu.server.lease import Client, Lease, LeaseBook
from rgpu.server.telemetry import Inventory, threads_per_device
from rgpu.server.workers import WORKER_COMMAND, Worker, WorkerPool
from rgpu.web import Board
from rgpu.wire import control
from rgpu.wire.codec import pack, unpack
from rgpu.wire.control import Control
from rgpu.wire.version import VERSION, fingerprint

log = logging.getLogger("rgpu.server")

START_ATTEMPTS = 3  # of a worker, before a waiting client is told that it fails
SHOW_SECONDS = 1.0  # between pictures for the web page
START_SECONDS = 20.0  # that a client waits for a worker to start
ACCESS_SECONDS = 0.5  # between looks whether somebody's right has ended


@dataclass
class _Waiting:
    """A client whose worker is still starting."""

    asker: Any
    device: Device
    client: Client
    memory_limit: int
    until: float


class Daemon:
    """``parent``: end when this process is no longer our parent (0: never). ``ring``: who may come in (None: anybody
    who reaches the socket)."""

    def __init__(
        self,
        config: ServerConfig,
        inventory: Inventory,
        *,
        ring: KeyRing | None = None,
        parent: int = 0,
        worker_command: tuple[str, ...] = WORKER_COMMAND,
        board: Board | None = None,
    ) -> None:
        self.config, self._inventory, self._parent = config, inventory, parent
        self.devices = inventory.devices
        self.name = config.server_name
        self._leases = LeaseBook(time.monotonic)
        self._waiting: deque[_Waiting] = deque()
        self._started = time.time()
        self._stopping = ""
        self._board, self._shown = board, 0.0
        self._host = host.facts()  # some of it takes a while to find out
        self.page = ""  # the address of the web page, where there is one
        self._access = Access(ring)
        self._look_at = 0.0  # when rights are looked at next
        self._server = ControlServer(Address(config.bind, config.port).uri, ring and ring.server_keys)
        self.endpoint = self._server.endpoint
        kinds = {device.kind: sum(d.kind == device.kind for d in self.devices) for device in self.devices}
        self._pool = WorkerPool(
            self._server,
            self,
            bind=config.bind,
            keys=ring is not None,
            quarters=Quarters(config.worker_user),
            ports=config.worker_ports,
            links=config.links,
            spares={
                kind: count if config.prestart is None else config.prestart for kind, count in kinds.items()
            },
            threads=threads_per_device(inventory.cpus),
            command=worker_command,
        )
        self._answers = {
            control.Hello.Record: self._hello,
            control.Attach.Record: self._attach,
            control.Release.Record: self._release,
            control.End.Record: self._end_named,
            control.SessionState.Record: self._session_state,
            control.Snapshot.Record: self._snapshot,
        }

    # The loop

    def run(self) -> None:
        """Serve until a signal, ``stop`` or the end of the parent."""
        wake, waker = os.pipe()
        os.set_blocking(waker, False)
        before = {
            number: signal.signal(number, self._on_signal) for number in (signal.SIGTERM, signal.SIGINT)
        }
        wakeup_before = signal.set_wakeup_fd(waker)
        self._server.watch(wake, lambda: os.read(wake, 64))
        try:
            while not self._stopping:
                self._server.step(self._tick(), self._on_request)
            log.info("stopping: %s", self._stopping)
        finally:
            self.close()
            signal.set_wakeup_fd(wakeup_before)
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(wake)
            os.close(waker)

    @property
    def protected(self) -> bool:
        return self._access.ring is not None

    def stop(self, reason: str) -> None:
        self._stopping = self._stopping or reason

    def close(self) -> None:
        """End the workers, tell those who wait, leave the port."""
        for waiting in self._waiting:
            self._refuse(waiting.asker, "stopping", f"rgpu server {self.name} is stopping")
        self._waiting.clear()
        self._pool.close()
        self._server.close()
        self._inventory.close()

    def _on_signal(self, number: int, _frame: Any) -> None:
        self.stop(signal.Signals(number).name)

    def _tick(self) -> float:
        if self._parent and os.getppid() != self._parent:
            self.stop(f"process {self._parent}, which started this server, ended")
        now = time.monotonic()
        while self._waiting and now > self._waiting[0].until:
            waiting = self._waiting.popleft()
            self._refuse(
                waiting.asker,
                "starting",
                f"no worker of {self.name} was ready in {START_SECONDS:g} s; try again",
            )
        if now >= self._look_at:
            self._look_at = now + ACCESS_SECONDS
            self._end_void()
        pause = min(self._pool.tick(), ACCESS_SECONDS)
        if self._board is not None:
            if now - self._shown >= SHOW_SECONDS:
                self._shown = now
                shown = self._picture(self._access.stranger)
                self._board.publish([shown | {"address": self.endpoint.removeprefix("tcp://")}])
            pause = min(pause, max(0.0, self._shown + SHOW_SECONDS - now))
        return pause

    def _end_void(self) -> None:
        """End the sessions of those whose token was revoked or has expired."""
        for lease, reason in self._access.void(self._leases):
            if worker := self._pool.by_session(lease.session):
                self._pool.stop(worker, reason)
            self._end(lease.session, reason)

    # Requests

    def _on_request(self, asker: Any, body: bytes, key: str) -> None:
        try:
            person = self._access.person(key)  # before a byte of the request is looked at
            message = Control.decode(unpack(body))
            handler = self._answers.get(type(message))
            if handler is None:
                raise ProtocolError(f"{type(message).__name__} is not a request")
            answer = handler(asker, message, person)
        except ProtocolError as error:
            log.warning("refused a malformed request: %s", error)
            self._refuse(
                asker, "protocol", f"rgpu server {self.name} ({VERSION}) did not understand: {error}"
            )
        except AuthenticationError as error:
            self._refuse(asker, "denied", f"rgpu server {self.name}: {error}")
        except NoSuchDevice as error:
            self._refuse(asker, "no-device", str(error))
        except QuotaExceeded as error:
            self._refuse(asker, "quota", f"rgpu server {self.name}: {error}")
        except ServerBusy as error:
            self._refuse(asker, "full", str(error))
        except Exception as error:  # one client's request must not end everybody's sessions
            log.exception("a request failed")
            self._refuse(
                asker, "failed", f"rgpu server {self.name} failed: {type(error).__name__}; see its log"
            )
        else:
            if answer is not None:
                self._server.answer(asker, pack(answer))

    def _refuse(self, asker: Any, reason: str, message: str) -> None:
        self._server.answer(asker, pack(control.Refused.encode(reason=reason, message=message[:4096])))

    def _mismatch(self, message: Any) -> tuple | None:
        if (message.version, message.fingerprint) == (VERSION, fingerprint()):
            return None
        return control.Refused.encode(
            reason="version",
            message=f"this client is rgpu {message.version} (protocol {message.fingerprint}), rgpu server "
            f"{self.name} is rgpu {VERSION} (protocol {fingerprint()}); install the same version on both",
        )

    def _hello(self, _asker: Any, message: Any, _person: Person) -> tuple:
        return self._mismatch(message) or control.Welcome.encode(
            name=self.name,
            version=VERSION,
            fingerprint=fingerprint(),
            devices=[self._describe(device) for device in self.devices],
        )

    def _attach(self, asker: Any, message: Any, person: Person) -> tuple | None:
        if mismatch := self._mismatch(message):
            return mismatch
        waiting = [w.device.index for w in self._waiting]
        loads = []
        for device in self.devices:
            leases = self._leases.on_device(device.index)
            reading = self._inventory.read(device, leases)
            sessions = len(leases) + waiting.count(device.index)
            loads.append(
                broker.Load(sessions, device.memory_total - reading.memory_used, reading.utilization)
            )
        wanted = None if message.device == control.ANY_DEVICE else message.device
        device = self.devices[broker.choose(loads, wanted, self.config.sessions)]
        held = [*self._leases, *(Lease(b"", 0, w.device.index, w.client, 0, w.memory_limit) for w in self._waiting)]
        memory = self._access.memory_limit(person, device.index, device.memory_total, held)
        user = person.user if person.public_key else message.user
        client = Client(user, message.host, message.pid, message.program, person.public_key)
        worker = self._pool.take(device.kind)
        if worker:
            return self._grant(worker, device, client, memory)
        kind = device.kind
        coming = self._pool.starting(kind) - sum(w.device.kind == kind for w in self._waiting)
        if coming <= 0 and not self._pool.spawn(kind):
            return control.Refused.encode(
                reason="failed",
                message=f"rgpu server {self.name} has no room for another process; see its log",
            )
        self._waiting.append(_Waiting(asker, device, client, memory, time.monotonic() + START_SECONDS))
        return None

    def _grant(self, worker: Worker, device: Device, client: Client, memory: int) -> tuple:
        lease = self._leases.grant(device.index, client, memory)
        self._pool.grant(
            worker,
            lease.session,
            epoch=lease.epoch,
            device=device.index,
            visible=device.visible,
            memory_limit=memory,
            grace=self.config.grace,
            client_key=client.key,
            person=client.key and key_id(client.key),
        )
        log.info("%s on device %d for %s, %r", _short(lease), device.index, _who(client), worker)
        return control.Granted.encode(
            session=lease.session,
            epoch=lease.epoch,
            endpoints=worker.endpoints,
            key=worker.key,
            grace=self.config.grace,
            device=self._describe(device) | {"memory_total": memory},
        )

    def _release(self, _asker: Any, message: Any, person: Person) -> tuple:
        self._check_owner(person, message.session)
        return self._end_session(message.session, "released by the client")

    def _check_owner(self, person: Person, session: bytes) -> None:
        if not self._access.owns(person, self._leases.get(session)):
            raise AuthenticationError("that session is somebody else's")

    def _end_named(self, _asker: Any, message: Any, person: Person) -> tuple:
        lease = self._leases.named(message.session)
        if lease is None:
            return control.Refused.encode(
                reason="no-session", message=f"there is no session {message.session} on {self.name}; see rgpu-smi"
            )
        # Without keys a client is who it says it is: that keeps people from mistakes, not from each other.
        mine = self._access.owns(person, lease) if self.protected else lease.client.user == message.user
        if not mine:
            whose = "somebody else" if self.protected else lease.client.user
            return control.Refused.encode(reason="not-yours", message=f"session {message.session} belongs to {whose}")
        return self._end_session(lease.session, f"ended by {person.user if self.protected else message.user}")

    def _end_session(self, session: bytes, reason: str) -> tuple:
        worker = self._pool.by_session(session)
        if worker:
            self._pool.stop(worker, reason)
        self._end(session, reason)
        return control.Released.encode()

    def _session_state(self, _asker: Any, message: Any, person: Person) -> tuple:
        self._check_owner(person, message.session)
        return control.State.encode(state=self._leases.state(message.session)[:256])

    def _snapshot(self, _asker: Any, _message: Any, person: Person) -> tuple:
        facts = self._host | {"time": time.time(), "keys": self.protected}
        return control.Picture.encode(server=self._picture(person) | {"facts": facts})

    def _picture(self, person: Person) -> dict[str, Any]:
        """This server as rgpu-smi and the web page show it to somebody."""
        return {
            "name": self.name,
            "version": VERSION,
            "fingerprint": fingerprint(),
            "host": platform.node(),
            "pid": os.getpid(),
            "uptime": time.time() - self._started,
            "page": self.page,
            "waiting": len(self._waiting),
            "devices": [
                self._describe(device) | {"sessions": self._sessions(device, person)} for device in self.devices
            ],
        }

    # Descriptions

    def _describe(self, device: Device) -> dict[str, Any]:
        reading = self._inventory.read(device, self._leases.on_device(device.index))
        return {
            "index": device.index,
            "name": device.name,
            "kind": device.kind,
            "memory_total": device.memory_total,
            "memory_used": reading.memory_used,
            "utilization": reading.utilization,
            **device.properties,
            **reading.details,
        }

    def _sessions(self, device: Device, person: Person) -> list[dict[str, Any]]:
        now = time.monotonic()
        return [
            self._names(lease, person)
            | {
                "id": lease.name,
                "memory_used": lease.memory_used,
                "utilization": round(100 * lease.busy),
                "commands": lease.commands,
                "age": now - lease.since,
            }
            for lease in self._leases.on_device(device.index)
        ]

    def _names(self, lease: Lease, person: Person) -> dict[str, Any]:
        """Whose session it is, for its owner and the administrator; others see that there is one."""
        if not self._access.owns(person, lease):
            return {"user": "-", "host": "-", "pid": 0, "program": "-", "worker_pid": 0, "link": ""}
        worker, client = self._pool.by_session(lease.session), lease.client
        return {
            "user": client.user,
            "host": client.host,
            "pid": client.pid,
            "program": client.program,
            "worker_pid": worker.process.pid if worker else 0,
            "link": worker.link if worker else "",
        }

    # What workers do (workers.Events)

    def worker_ready(self, worker: Worker) -> None:
        for waiting in self._waiting:
            if waiting.device.kind == worker.kind:
                self._waiting.remove(waiting)
                granted = self._grant(worker, waiting.device, waiting.client, waiting.memory_limit)
                self._server.answer(waiting.asker, pack(granted))
                return

    def worker_told(self, worker: Worker, memory_used: int, busy: float, commands: int) -> None:
        lease = worker.session and self._leases.get(worker.session)
        if lease:
            lease.memory_used, lease.busy, lease.commands = memory_used, busy, commands

    def worker_gone(self, worker: Worker) -> None:
        if worker.session:
            self._end(worker.session, worker.fate())
            return
        if not worker.endpoints:
            log.error("%r did not start: %s", worker, worker.fate())
        waiting = [w for w in self._waiting if w.device.kind == worker.kind]
        if waiting and self._pool.failures(worker.kind) >= START_ATTEMPTS:
            for one in waiting:
                self._waiting.remove(one)
                self._refuse(
                    one.asker,
                    "failed",
                    f"rgpu server {self.name} cannot start a worker ({worker.kind}): {worker.fate()}; "
                    "see its log",
                )
        elif waiting and self._pool.starting(worker.kind) < len(waiting):
            self._pool.spawn(worker.kind)

    def _end(self, session: bytes, reason: str) -> None:
        lease = self._leases.end(session, reason)
        if lease:
            log.info("%s on device %d ended: %s", _short(lease), lease.device, reason)


def _short(lease: Lease) -> str:
    return f"session {lease.name}"


def _who(client: Client) -> str:
    return f"{client.user}@{client.host} pid {client.pid} ({client.program})"
