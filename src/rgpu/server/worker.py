"""The bootstrap of a worker process: from ``python -m`` to the first command of a session.

It makes ready what every session needs, tells the daemon, waits for its grant and hands over to
the service. It also watches, in a thread, for the reasons to end: the daemon is gone, the lease was
given back, the client was silent for longer than grace. It never executes a command itself.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import logging
import os
import select
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from rgpu import config
from rgpu._native import die_with_parent, tune_malloc
from rgpu.config import Address
from rgpu.errors import ServerUnavailable, SessionExpired, SessionLost
from rgpu.server import confine, landlock, numa, readable
from rgpu.server.allowance import Allowance
from rgpu.wire import ops
from rgpu.wire.codec import pack, unpack
from rgpu.wire.control import Admit, Control, Finished, Grant, Leave, Opened, Ready, Stop, Telemetry

log = logging.getLogger("rgpu.worker")

BACKENDS = {"cpu": "rgpu.server.backend_cpu", "sim": "rgpu.server.backend_sim", "cuda": "rgpu.server.backend_cupy"}
MESSAGE_BYTES = 1 << 16
WATCH_SECONDS = 0.25
BUSY_SECONDS = 0.02  # between looks at the daemon while a command runs
ASKING_SECONDS = 0.005  # between looks at the client while an answer of the daemon's is waited for
TELL_SECONDS = 1.0  # between two reports to the daemon
GRANT_SECONDS = 1.5  # that somebody at the door waits for the grant; a handshake may take 2
STANDSTILL_SECONDS = 1.0  # between two looks of the guard, which takes a fraction of that
DESERTED_SECONDS = 2.5  # that a client whose connection has ended may take to come back before it fails other clients
END_SECONDS = 1.0  # that a session has to end by itself before the process does


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="rgpu-worker", description="Started by rgpu-server, not by hand.")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--backend", required=True, choices=BACKENDS)
    parser.add_argument("--bind", required=True)
    parser.add_argument("--ports", default="0-0")
    parser.add_argument("--links", default="auto")
    parser.add_argument("--peers", default="auto", help="links to other workers of an open server, or of one host")
    parser.add_argument("--keys", action="store_true", help="let in nobody but the client of the grant")
    parser.add_argument("--alone", action="store_true", help="no other process has this one's user")
    parser.add_argument("--write", action="append", default=[], help="beneath these files are made, and nowhere else")
    parser.add_argument("--read", action="append", default=[], help="with --write: what may be read besides the needed")
    parser.add_argument("--hide", action="append", default=[], help="what may not be read, also where it lies in that")
    parser.add_argument("--clear", action="store_true", help="with keys: data is not sealed")
    options = parser.parse_args(argv)
    logging.basicConfig(
        format="%(asctime)s %(name)s[%(process)d] %(levelname)s %(message)s", level=logging.WARNING
    )
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warnings.simplefilter("ignore")  # NumPy's remarks on a client's numbers are no concern of this host's log
    die_with_parent()
    native = config.parse_flag(os.environ.get(config.NATIVE_KERNELS, "0"))
    read = readable.places(options.read, options.hide) if options.write else None
    programs = options.backend != "cpu" or native
    confine.confine(programs=programs, alone=options.alone, write=options.write, read=read)
    tune_malloc()  # before NumPy works: fresh pages cost as much as the work done in them
    channel = socket.socket(fileno=options.fd)
    channel.set_inheritable(False)  # a compiler started by this worker must not keep it open
    try:
        first, _, last = options.ports.partition("-")
        ports = range(int(first), int(last) + 1)
        door = Door(options.clear) if options.keys else None
        links, between = options.links.split(","), options.peers.split(",")
        return run(channel, options.backend, options.bind, ports, links, between, door, options.write, read)
    except Exception as error:
        log.exception("worker failed")
        if read is not None and "denied" in str(error):
            log.error("workers of this server read what they need and no more; --readable names folders that they miss")
        tell(channel, Finished.encode(reason=f"{type(error).__name__}: {error}"[:200]))
        return 1


def run(
    channel: socket.socket,
    kind: str,
    bind: str,
    ports: range,
    links: list[str],
    between: list[str],
    door: Door | None = None,
    write: Sequence[str] = (),
    read: Sequence[str] | None = None,
) -> int:
    """Make ready, wait for a grant, serve it."""
    # These imports are what pre-starting is for; the message to the daemon says they are done.
    from rgpu.link import offered
    from rgpu.server import backend, peers, spill, visit
    from rgpu.server.service import BYE, Service
    from rgpu.session.connection import Connection
    from rgpu.session.session import Session

    importlib.import_module(BACKENDS[kind])
    listeners = entrances(bind, ports, links, door)
    uris = [uri for listener in listeners for uri in listener.uris]
    tell(channel, Ready.encode(uris, *(door.keys.pair.public, door.seal.secret) if door else ("", b"")))
    data = channel.recv(MESSAGE_BYTES)
    grant = Control.decode(unpack(data)) if data else None
    if not isinstance(grant, Grant.Record):  # stopped before anybody came, or the daemon is gone
        for listener in listeners:
            listener.close()
        return 0
    listener = listeners.pop(0 if grant.sealed else -1)
    for other in listeners:
        other.close()
    confine.settle_in(grant.folder)
    if write and grant.folder:
        shared = [place for place in write if place == landlock.SHARED_MEMORY]
        landlock.keep_to([grant.folder, *shared, *[place for place in (grant.spill_directory,) if place]], read)
    confine.confine_files(grant.memory_limit if grant.spill and grant.spill_directory else 0)
    if kind == "cpu":
        confine.confine_memory(grant.memory_limit)
    if door:
        door.open_to(grant.client_key)
    device = grant.device
    if grant.visible:  # CUDA reads this at its first call: the session's process sees no other card
        os.environ["CUDA_VISIBLE_DEVICES"], device = grant.visible, 0
    os.environ.update(mps_settings(grant.mps, grant.memory_limit))
    connection = Connection(Session(grant.session, grant.epoch), listener.accept(grant.session))
    allowance = Allowance(
        lambda message: tell(channel, message),
        limit=grant.memory_limit,
        turns=grant.turns,
        wake=connection.link.wake,
    )
    with Guard(channel, connection, grant.grace, allowance) as guard:
        allowance.more(1)  # a first part, so that small programs never ask
        device_backend = backend.load(kind, device, grant.memory_limit)
        numa.settle(numa.near(grant.device, device_backend.pci))
        store = spill.Store(grant.spill_directory, grant.spill_memory) if grant.spill else None
        device_backend.entitle(allowance, store)
        pairs = peers.Peers(
            device_backend,
            lambda kinds, keys, seal: listen_at(bind, ports, kinds, keys, seal),
            bind,
            door.meeting if door else peers.unprotected,
            kinds=offered(between),
        )
        service = Service(connection, device_backend, pairs)

        def admit(name: bytes) -> None:
            def opened() -> visit.Visitor:
                entrance = entrances(bind, ports, links, door)[-1]
                visitor = visit.Visitor(Connection(Session(name, 1), entrance.accept(name)))
                tell(channel, Opened.encode(name, entrance.uris, door.keys.pair.public if door else ""))
                return visitor

            with contextlib.suppress(ServerUnavailable):  # who waits is told that there is no answer
                service.expect(opened)

        guard.telemetry, guard.admit, guard.deserted = service.telemetry, admit, pairs.deserted
        reason = service.run()
        guard.deserted = lambda why: None  # what was sent may be delivered still
        pairs.close(why="" if reason == BYE else reason, delivery=grant.grace)
        guard.tell(0.0)  # what was measured last
        tell(channel, Finished.encode(reason=reason[:200]))
        connection.close()
    return 0


class Door:
    """This worker's own keys, made here, and the secret of its sealed links, which the client of the grant is told by
    the daemon; opens to that client."""

    def __init__(self, clear: bool = False) -> None:
        from rgpu.link.curve import ServerKeys, meeting, new_pair
        from rgpu.link.seal import Seal, new_secret

        self.seal = Seal(new_secret(), clear)
        self.client = ""  # nobody yet
        self.meeting = meeting
        self.keys = ServerKeys(new_pair(), self._allows)
        self._granted = threading.Event()

    def open_to(self, client: str) -> None:
        self.client = client
        self._granted.set()

    def _allows(self, key: str) -> bool:
        self._granted.wait(GRANT_SECONDS)  # the client may hear of the grant a moment before we do
        return key == self.client


def entrances(bind: str, ports: range, links: list[str], door: Door | None) -> list:
    """The listeners that a grant has the choice of: with keys sealed links, where this host can, and CURVE."""
    from rgpu.link import CURVE, STREAMS, offered, seal

    if door is None:
        return [listen_at(bind, ports, links)]
    found = []
    streams = [kind for kind in offered(links) if kind in STREAMS]
    if streams and not seal.missing():
        found.append(listen_at(bind, ports, streams, seal=door.seal))
    return [*found, listen_at(bind, ports, [*CURVE], door.keys)]


def listen_at(bind: str, ports: range, links: list[str], keys: Any = None, seal: Any = None) -> Any:
    """A listener for these kinds of links, each that needs one on a free port of ``ports`` (0: any)."""
    from rgpu.link import listen, offered

    listener = None
    for kind in offered(links):
        for port in ports:
            try:
                found = listen(f"{kind}://{Address(bind, port)}", keys, seal)
                break
            except ServerUnavailable:
                if port == ports[-1]:
                    raise
        listener = listener.join(found) if listener is not None else found
    if listener is None:
        raise ServerUnavailable(f"none of the links {', '.join(links)} is possible here")
    return listener


def mps_settings(percentage: float, memory: int) -> dict[str, str]:
    """What CUDA's Multi-Process Service reads when CUDA starts: the session's part of the threads and of memory."""
    if not percentage:
        return {}
    return {
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": f"{percentage:g}",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={memory >> 20}M",
    }


def tell(channel: socket.socket, message: tuple) -> None:
    """To the daemon; when it is gone the guard knows what to do."""
    with contextlib.suppress(OSError):
        channel.send(pack(message), socket.MSG_NOSIGNAL)


class Guard(threading.Thread):
    """Ends the session when the daemon says so or is gone, or the client is gone for too long. Tells
    the daemon how the session is, which may be inside one command for minutes."""

    def __init__(self, channel: socket.socket, connection: Any, grace: float, allowance: Allowance) -> None:
        super().__init__(name="rgpu-guard", daemon=True)
        self._channel, self._connection, self._grace = channel, connection, grace
        self._allowance = allowance
        self._over = threading.Event()
        self._told = self._looked = self._woke = time.monotonic()
        self._executed = 0  # messages, when we last looked
        self.telemetry: Callable[[], dict] | None = None
        self.admit: Callable[[bytes], None] = lambda name: None  # somebody comes to look
        self.deserted: Callable[[str], None] = lambda why: None  # other clients need not wait for this one
        self._deserted = False  # they know

    def __enter__(self) -> Guard:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def run(self) -> None:
        ending: Exception | None = None
        try:
            while ending is None:
                # A busy session does not look at its link: moving it on from here keeps the peer
                # informed, and tells whether there still is one. One message at a time: the session wants it back.
                self._connection.pump(one=True)
                self.tell()
                self._look_after_others()
                ending = self._heard() or self._silent()
        except Exception as error:  # a session without a guard would outlive its client
            log.exception("the guard failed")
            ending = error
        self._connection.fail(ending)
        # A session inside a long kernel does not look at its connection; its memory is wanted back.
        if not self._over.wait(END_SECONDS):
            tell(self._channel, Finished.encode(reason=str(ending)[:200]))
            os._exit(0)

    def tell(self, pause: float = TELL_SECONDS) -> None:
        if self.telemetry is not None and time.monotonic() - self._told >= pause:
            self._told = time.monotonic()
            self._allowance.tidy()
            tell(self._channel, Telemetry.encode(**self.telemetry(), link=self._connection.link.kind))

    def _heard(self) -> Exception | None:
        """What the daemon says, waiting a little for it."""
        patience, before = WATCH_SECONDS, self._executed
        self._executed = self._connection.executed
        if not self._connection.session.idle:
            patience = BUSY_SECONDS
            if self._allowance.asking:
                patience = ASKING_SECONDS
            elif self._executed == before:  # what comes while a long command runs is taken in by us
                self._connection.listen(BUSY_SECONDS)
                patience = 0.0
        if not select.select([self._channel], [], [], patience)[0]:
            return None
        try:
            data = self._channel.recv(MESSAGE_BYTES)
        except OSError:
            data = b""
        if not data:
            return SessionLost("the server ended")
        message = Control.decode(unpack(data))
        if isinstance(message, Stop.Record):
            return SessionLost(message.reason)
        if isinstance(message, Admit.Record):
            self.admit(message.visit)
            return None
        if isinstance(message, Leave.Record):
            self._ask_to_leave()
            return None
        self._allowance.heard(message)
        return None

    def _ask_to_leave(self) -> None:
        """A client that takes no answers now is told of the end, when it comes."""
        with contextlib.suppress(SessionLost, TimeoutError):
            self._connection.post([pack(ops.Leave.encode())], time.monotonic() + WATCH_SECONDS)

    def _look_after_others(self) -> None:
        """Devices of other clients may wait for this one in a collective. When nothing is left to do here and the
        client has hung up, for a process that ends does that, they are told before grace is over; where only the
        network is silent it may go on."""
        connection, since = self._connection, self._connection.down_since
        if since is None:
            self._deserted = False
        elif connection.session.idle and not (connection.link.silent or self._deserted):
            self._deserted = time.monotonic() - max(since, self._woke) > DESERTED_SECONDS
            if self._deserted:
                self.deserted("its connection ended and did not come back")

    def _silent(self) -> Exception | None:
        now, since = time.monotonic(), self._connection.down_since
        # Where this host stood still (a virtual machine that was moved, a stopped process) nobody could be heard. That
        # ends while we wait, so it is noticed here, before anybody is judged.
        if now - self._looked > STANDSTILL_SECONDS:
            self._woke = now
        self._looked = now
        if since is None or now - max(since, self._woke) <= self._grace:
            return None
        return SessionExpired(f"the client was gone for more than {self._grace:g} s")


if __name__ == "__main__":
    sys.exit(main())
