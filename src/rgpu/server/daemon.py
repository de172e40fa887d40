"""The daemon: admits clients, grants leases, keeps worker processes, describes itself.

One thread, one poll loop over the control socket, the workers' channels and a wake-up pipe. No
array data and no client code pass through here, and nothing here may block.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from rgpu import host
from rgpu.config import Address, ServerConfig
from rgpu.errors import (
    AuthenticationError,
    LeaseEnded,
    NoSuchDevice,
    ProtocolError,
    QuotaExceeded,
    RgpuError,
    VersionMismatch,
)
from rgpu.leases.terms import Client, Quotas
from rgpu.link.control import ControlServer
from rgpu.link.curve import ServerKeys
from rgpu.registry.directory import Registration
from rgpu.server.access import Access
from rgpu.server.broker import Broker, Place
from rgpu.server.confine import Quarters
from rgpu.server.device import Device
from rgpu.server.keys import EXHAUSTED, KeyRing, Person, key_id, secrets
from rgpu.server.lease import Lease, LeaseBook, Session
from rgpu.server.line import Line
from rgpu.server.onlookers import Onlookers
from rgpu.server.promises import Promises
from rgpu.server.requests import client_of, described, difference, mismatch, reason_of, terms_of
from rgpu.server.sharing import Sharing
from rgpu.server.showing import Showing, facts_of
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
TEND_SECONDS = 0.02  # between looks at leases and the queue
STANDSTILL_SECONDS = 2.0  # between two ticks, which are half a second apart at most: this host stood still
RENEWALS = 4  # of a lease in the time after which its holder counts as gone

@dataclass
class _Waiting:
    """A client whose worker is still starting."""

    asker: Any
    device: Device
    lease: Lease
    client: Client
    seals: bool
    until: float


class Daemon:
    """``parent``: end when this process is no longer our parent (0: never). ``ring``: who may come in (None: anybody
    who reaches the socket). ``entrance``: a key for the socket of a server that is one person's own; workers then open
    to who knows a session, which is told there only."""

    def __init__(
        self,
        config: ServerConfig,
        inventory: Inventory,
        *,
        ring: KeyRing | None = None,
        entrance: ServerKeys | None = None,
        parent: int = 0,
        worker_command: tuple[str, ...] = WORKER_COMMAND,
        board: Board | None = None,
    ) -> None:
        self.config, self._inventory, self._parent = config, inventory, parent
        self.devices = inventory.devices
        self.name = config.server_name
        totals = [device.memory_total for device in self.devices]
        self._leases = LeaseBook(time.monotonic, totals, factor=config.oversubscribe, grace=config.grace)
        self._broker = Broker(
            self._leases,
            [facts_of(device, config) for device in self.devices],
            lambda index: self._inventory.read(self.devices[index], self._leases.sessions_on(index)).utilization,
            Quotas({quota.user: quota for quota in config.quotas}),
            config.sessions,
            config.idle_timeout,
        )
        self._sharing = Sharing(self._leases, self._broker, [d.kind for d in self.devices], self._tell_worker)
        self._waiting: deque[_Waiting] = deque()
        self._stopping = ""
        self._board, self._shown = board, 0.0
        self._host = host.facts()  # some of it takes a while to find out
        self._access = Access(ring)
        self._ticked = time.monotonic()
        self._look_at = self._tend_at = 0.0  # when rights are looked at next, and when leases are
        self._server = ControlServer(Address(config.bind, config.port).uri, ring.server_keys if ring else entrance)
        self.endpoint = self._server.endpoint
        kinds = {device.kind: sum(d.kind == device.kind for d in self.devices) for device in self.devices}
        self._pool = WorkerPool(
            self._server,
            self,
            bind=config.bind,
            keys=ring is not None,
            clear=config.data == "clear",
            quarters=Quarters.of(config, secrets(config, ring)),
            spill_directory=config.spill_directory,
            ports=config.worker_ports,
            links=config.links,
            spares={kind: count if config.prestart is None else config.prestart for kind, count in kinds.items()},
            threads=threads_per_device(inventory.cpus),
            command=worker_command,
        )
        self._shows = Showing(self.devices, config, inventory, self._leases, self._broker, self._access, self._pool)
        self._onlookers = Onlookers(self._server.answer, self._refuse, self._tell_worker)
        self._promises: Promises | None = None
        self._answers = {
            control.Hello.Record: self._hello,
            control.Attach.Record: self._attach,
            control.Request.Record: self._request,
            control.Renew.Record: self._renew,
            control.GiveBack.Record: self._give_back,
            control.Drain.Record: self._drain,
            control.Release.Record: self._release,
            control.End.Record: self._end_named,
            control.Visit.Record: self._visit,
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
        if self._promises is not None:
            self._promises.start(lambda: _poke(waker))
        try:
            while not self._stopping:
                self._turn()
            log.info("stopping: %s", self._stopping)
        finally:
            self.close()
            signal.set_wakeup_fd(wakeup_before)
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(wake)
            os.close(waker)

    def _turn(self) -> None:
        try:
            self._server.step(self._tick(), self._on_request)
        except OSError as error:
            if error.errno not in EXHAUSTED:
                raise
            log.warning("%s: what was to be done now is done later", error.strerror)
            time.sleep(0.05)

    def register(self, registration: Registration) -> None:
        """Be found in a registry, and lend what it grants, from ``run`` on."""
        self._promises = Promises(registration, self._leases, self._broker, self._shows.reach)
        if self._board is not None:
            self._shows.line = Line(registration.url, str(registration.address), self._board.looked_at)

    @property
    def page(self) -> str:
        """The address of the web page, where there is one."""
        return self._shows.page

    @page.setter
    def page(self, url: str) -> None:
        self._shows.page = url

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
        if self._promises is not None:
            self._promises.close()
        if self._shows.line is not None:
            self._shows.line.close()
        self._pool.close()
        self._server.close()
        self._inventory.close()

    def _on_signal(self, number: int, _frame: Any) -> None:
        self.stop(signal.Signals(number).name)

    def _tick(self) -> float:
        if self._parent and os.getppid() != self._parent:
            self.stop(f"process {self._parent}, which started this server, ended")
        now = time.monotonic()
        if now - self._ticked > STANDSTILL_SECONDS:
            self._leases.forgive()
        self._ticked = now
        while self._waiting and now > self._waiting[0].until:
            waiting = self._waiting.popleft()
            self._refuse(
                waiting.asker,
                "starting",
                f"no worker of {self.name} was ready in {START_SECONDS:g} s; try again",
            )
            self._abandon(waiting.lease)
        if now >= self._look_at:
            self._look_at = now + ACCESS_SECONDS
            self._end_void()
            if self._server.tend():
                log.warning("requests without an end took too much memory: every connection was closed, clients return")
        again = TEND_SECONDS
        if now >= self._tend_at:  # not for every question: each look costs what there are leases
            self._tend_at, again = now + TEND_SECONDS, ACCESS_SECONDS
            for lease, reason in self._broker.overdue():
                self._end_lease(lease, reason)
            self._broker.pump()
        self._shows.samples.tick(now)
        if self._promises is not None:
            self._promises.tick()
            for asker, claim, person in self._promises.due():
                self._answer(asker, claim, person)
        pause = min(self._pool.tick(), self._sharing.tick(), again)
        if self._board is not None:
            if now - self._shown >= SHOW_SECONDS:
                self._shown = now
                self._board.publish([self._shows.page_picture(len(self._waiting), self.endpoint)])
            pause = min(pause, max(0.0, self._shown + SHOW_SECONDS - now))
        return pause

    def _end_void(self) -> None:
        """End the leases of those whose token was revoked or has expired."""
        for lease, reason in self._access.void(self._leases):
            self._end_lease(lease, reason)

    # Requests

    def _on_request(self, asker: Any, body: bytes, key: str) -> None:
        try:
            person = self._access.person(key)  # before a byte of the request is looked at
            message = self._decoded(unpack(body))
        except VersionMismatch as error:
            self._refuse(asker, "version", str(error))
        except ProtocolError as error:
            self._misunderstood(asker, error)
        except AuthenticationError as error:
            self._refuse(asker, "denied", f"rgpu server {self.name}: {error}")
        else:
            self._answer(asker, message, person)

    def _decoded(self, said: Any) -> Any:
        try:
            return Control.decode(said)
        except ProtocolError:
            sender = control.sender_of(said)  # of another version the message may have other fields
            if sender is not None and (why := difference(*sender, self.name)):
                raise VersionMismatch(why) from None
            raise

    def _misunderstood(self, asker: Any, error: ProtocolError) -> None:
        log.warning("refused a malformed request: %s", error)
        self._refuse(asker, "protocol", f"rgpu server {self.name} ({VERSION}) did not understand: {error}")

    def _answer(self, asker: Any, message: Any, person: Person) -> None:
        try:
            handler = self._answers.get(type(message))
            if handler is None:
                raise ProtocolError(f"{type(message).__name__} is not a request")
            answer = handler(asker, message, person)
        except ProtocolError as error:
            self._misunderstood(asker, error)
        except RgpuError as error:
            self._refuse(asker, reason_of(error), f"rgpu server {self.name}: {error}")
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

    def _hello(self, _asker: Any, message: Any, _person: Person) -> tuple:
        return mismatch(message, self.name) or control.Welcome.encode(
            name=self.name,
            version=VERSION,
            fingerprint=fingerprint(),
            devices=[self._shows.device(device) for device in self.devices],
        )

    def _attach(self, asker: Any, message: Any, person: Person) -> tuple | None:
        if refused := mismatch(message, self.name):
            return refused
        wanted = None if message.device == control.ANY_DEVICE else message.device
        client = client_of(message, person)
        if message.lease:
            lease = self._leases.renew(message.lease)
            self._check_owner(person, lease)
        else:
            lease = self._admit(client, wanted, person)
        lease.active = time.monotonic()
        device = self.devices[min(lease.parts) if wanted is None else wanted]
        if device.index not in lease.parts:
            raise NoSuchDevice(f"device {device.index} is not among those of this lease: {sorted(lease.parts)}")
        if not lease.own:  # else there was room for a session when the lease was made for it
            self._broker.check_room(client, device.index, [w.client for w in self._waiting if w.device is device])
        worker = self._pool.take(device.kind)
        if worker:
            return self._grant(worker, device, lease, client, message.seals)
        kind = device.kind
        coming = self._pool.starting(kind) - sum(w.device.kind == kind for w in self._waiting)
        if coming <= 0 and not self._pool.spawn(kind):
            self._abandon(lease)
            return control.Refused.encode(
                reason="failed",
                message=f"rgpu server {self.name} has no room for another process; see its log",
            )
        self._waiting.append(_Waiting(asker, device, lease, client, message.seals, time.monotonic() + START_SECONDS))
        return None

    def _admit(self, client: Client, wanted: int | None, person: Person) -> Lease:
        """A lease of its own for one session, within what the person's token allows."""
        lease = self._broker.admit(client, wanted)
        try:
            (device,) = lease.parts
            others = [other for other in self._leases if other is not lease]
            lease.cap = self._access.memory_limit(person, device, self._leases.lendable[device], others)
        except QuotaExceeded:
            self._leases.end(lease.id, "beyond the token")
            raise
        return lease

    def _grant(self, worker: Worker, device: Device, lease: Lease, client: Client, seals: bool) -> tuple:
        session = self._leases.open(lease, device.index, client)
        curve = [uri for uri in worker.endpoints if worker.secret and uri.startswith("zmq:")]
        others = [uri for uri in worker.endpoints if uri not in curve]
        sealed = bool(worker.secret and seals and others)
        shares = device.kind == "cuda" and self.config.mps and lease.compute
        self._pool.grant(
            worker,
            session.id,
            epoch=session.epoch,
            device=device.index,
            visible=device.visible,
            memory_limit=self._leases.limit(session),
            turns=self._sharing.joined(session),
            spill=self._sharing.spills[device.index],
            spill_memory=self.config.spill_memory,
            mps=100 * lease.compute if shares else 0,
            share=lease.compute,
            grace=self.config.grace,
            client_key=client.key,
            sealed=sealed,
            person=client.key and key_id(client.key),
        )
        log.info("%s on device %d for %s, %r", _short(session), device.index, described(client), worker)
        return control.Granted.encode(
            session=session.id,
            epoch=session.epoch,
            endpoints=others if sealed or not curve else curve,
            key=worker.key,
            secret=worker.secret if sealed else b"",
            clear=sealed and self.config.data == "clear",
            grace=self.config.grace,
            device=self._shows.device(device) | {"memory_total": self._leases.limit(session)},
            lease=lease.id,
            idle_timeout=self.config.idle_timeout,
        )

    def _abandon(self, lease: Lease) -> None:
        """A lease made for one session that does not come about."""
        if lease.own and not lease.sessions:
            self._leases.end(lease.id, "its worker did not start")

    def _release(self, _asker: Any, message: Any, person: Person) -> tuple:
        self._check_owner(person, self._leases.get(message.session))
        return self._end_session(message.session, "released by the client")

    def _check_owner(self, person: Person, held: Lease | Session | None) -> None:
        if not self._access.owns(person, held):
            raise AuthenticationError(f"that {type(held).__name__.lower()} is somebody else's")

    def _end_named(self, _asker: Any, message: Any, person: Person) -> tuple:
        found = self._named(message, person)
        if not isinstance(found, Session):
            return found
        return self._end_session(found.id, f"ended by {person.user if self.protected else message.user}")

    def _named(self, message: Any, person: Person) -> Session | tuple:
        """The session that somebody names, or why it is none of theirs."""
        session = self._leases.named(message.session)
        if session is None:
            return control.Refused.encode(
                reason="no-session", message=f"there is no session {message.session} on {self.name}; see rgpu-smi"
            )
        # Without keys a client is who it says it is: that keeps people from mistakes, not from each other.
        mine = self._access.owns(person, session) if self.protected else session.client.user == message.user
        if not mine:
            whose = "somebody else" if self.protected else session.client.user
            return control.Refused.encode(reason="not-yours", message=f"session {message.session} belongs to {whose}")
        return session

    def _visit(self, asker: Any, message: Any, person: Person) -> tuple | None:
        """Somebody wants to look into a session; its worker says where to come in."""
        found = self._named(message, person)
        if not isinstance(found, Session):
            return found
        if found.client.key != person.public_key:
            raise AuthenticationError("a worker opens to the key of its own client only")
        self._onlookers.come(found.id, asker)
        return None

    def _end_session(self, session: bytes, reason: str) -> tuple:
        self._stop_worker(session, reason)
        self._end(session, reason)
        return control.Released.encode()

    # Leases on several devices

    def _request(self, _asker: Any, message: Any, person: Person) -> tuple | None:
        if refused := mismatch(message, self.name):
            return refused
        if message.promised:
            return self._claim(_asker, message, person)
        terms = self._access.within(person, terms_of(message), self._leases.totals, self._leases)
        answer = self._broker.request(client_of(message, person), terms, ticket=message.ticket, wait=message.wait)
        return self._leased(answer)

    def _claim(self, asker: Any, message: Any, person: Person) -> tuple | None:
        """What the registry granted, asked for by its holder."""
        if self._promises is None:
            raise LeaseEnded("this server is in no registry, and knows nothing of grants there")
        if self._promises.behind(asker, message, person):
            return None  # answered when this server has seen that revision
        with self._promises.redeemed(message.promised, person.user if self.protected else message.user):
            terms = self._access.within(person, terms_of(message), self._leases.totals, self._leases)
            return self._leased(self._broker.claim(client_of(message, person), terms, message.promised))

    def _leased(self, answer: Lease | Place) -> tuple:
        if isinstance(answer, Place):
            return control.Queued.encode(answer.ticket, answer.position, answer.waiting)
        log.info("lease %s on devices %s for %s", answer.name, sorted(answer.parts), described(answer.client))
        return control.Leased.encode(
            lease=answer.id,
            seconds=self._seconds_left(answer),
            renew=0 if answer.renewed is None else self.config.grace / RENEWALS,
            devices=[self._shows.device(self.devices[index]) for index in sorted(answer.parts)],
        )

    def _renew(self, _asker: Any, message: Any, person: Person) -> tuple:
        lease = self._leases.renew(message.lease)
        self._check_owner(person, lease)
        return control.Kept.encode(seconds=self._seconds_left(lease), notice=self._broker.notice(lease)[:256])

    def _seconds_left(self, lease: Lease) -> float:
        return 0.0 if lease.until is None else max(0.001, lease.until - time.monotonic())

    def _give_back(self, _asker: Any, message: Any, person: Person) -> tuple:
        try:
            lease = self._leases.lease(message.lease)
        except LeaseEnded:
            return control.Released.encode()  # asked twice
        self._check_owner(person, lease)
        self._end_lease(lease, "given back")
        return control.Released.encode()

    def _drain(self, _asker: Any, message: Any, person: Person) -> tuple:
        if not person.admin:
            raise AuthenticationError("only an administrator's token may drain a server")
        self._broker.drain(message.on, message.seconds)
        sessions = sum(len(lease.sessions) for lease in self._leases)
        for lease in self._leases if message.on else ():
            for session in lease.sessions:
                self._tell_worker(session, control.Leave.encode())
        log.info("%s; %d sessions are left", "draining" if message.on else "no longer draining", sessions)
        return control.Drained.encode(leases=len(self._leases), sessions=sessions)

    def _end_lease(self, lease: Lease, reason: str) -> None:
        log.info("lease %s ended: %s", lease.name, reason)
        for session in list(lease.sessions.values()):
            self._stop_worker(session.id, reason)
            self._end(session.id, reason)
        self._leases.end(lease.id, reason)

    def _stop_worker(self, session: bytes, reason: str) -> None:
        if worker := self._pool.by_session(session):
            self._pool.stop(worker, reason)

    def _session_state(self, _asker: Any, message: Any, person: Person) -> tuple:
        self._check_owner(person, self._leases.get(message.session))
        return control.State.encode(state=self._leases.state(message.session)[:256])

    def _snapshot(self, _asker: Any, _message: Any, person: Person) -> tuple:
        facts = self._host | {"time": time.time(), "keys": self.protected}
        return control.Picture.encode(server=self._shows.picture(person, len(self._waiting)) | {"facts": facts})

    # What workers do (workers.Events)

    def worker_ready(self, worker: Worker) -> None:
        for waiting in self._waiting:
            if waiting.device.kind == worker.kind:
                self._waiting.remove(waiting)
                if waiting.lease.own or waiting.lease.id in {lease.id for lease in self._leases}:
                    granted = self._grant(worker, waiting.device, waiting.lease, waiting.client, waiting.seals)
                    self._server.answer(waiting.asker, pack(granted))
                else:
                    self._refuse(waiting.asker, "no-lease", "the lease ended before its worker was ready")
                return

    def worker_told(self, worker: Worker, message: Any) -> None:
        session = worker.session and self._leases.get(worker.session)
        if not session:
            return
        if isinstance(message, control.Telemetry.Record):
            if message.commands != session.commands or message.busy > 0.01:
                session.lease.active = time.monotonic()
                self._sharing.active(session)
            session.memory_used, session.resident_used = message.memory_used, message.resident
            session.busy, session.commands = message.busy, message.commands
            session.redundancy = message.whole, message.wanted
            self._shows.reach.notice(message.reach)
        elif isinstance(message, control.Opened.Record):
            self._onlookers.opened(session.id, message)
        elif isinstance(message, control.Draw.Record):
            self._sharing.drew(session, message)
        elif isinstance(message, control.Want.Record):
            self._sharing.wanted(session)
        elif isinstance(message, control.Yield.Record):
            self._sharing.yielded(session, message.used, message.again)

    def _tell_worker(self, session: bytes, message: tuple) -> None:
        if worker := self._pool.by_session(session):
            worker.tell(message)

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
                self._abandon(one.lease)
                self._refuse(
                    one.asker,
                    "failed",
                    f"rgpu server {self.name} cannot start a worker ({worker.kind}): {worker.fate()}; "
                    "see its log",
                )
        elif waiting and self._pool.starting(worker.kind) < len(waiting):
            self._pool.spawn(worker.kind)

    def _end(self, session: bytes, reason: str) -> None:
        self._onlookers.turn_away(session, f"the session ended: {reason}")
        closed = self._leases.close(session, reason)
        if closed:
            self._sharing.left(closed)
            log.info("%s on device %d ended: %s", _short(closed), closed.device, reason)


def _poke(waker: int) -> None:
    """Wake the loop from another thread."""
    with contextlib.suppress(BlockingIOError):  # it is being woken already
        os.write(waker, b"\0")


def _short(session: Session) -> str:
    return f"session {session.name}"
