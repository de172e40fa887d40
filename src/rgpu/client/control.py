"""The client's side of the control plane: asking a daemon for what it has and for a lease.

Every failure is an exception that names the server, says what happened and what to do next. No
array data passes here, and nothing here waits longer than its time limit.
"""

from __future__ import annotations

import functools
import getpass
import os
import platform
import sys
from dataclasses import dataclass, replace
from typing import Any

from rgpu import tokens
from rgpu.config import Address
from rgpu.errors import (
    AuthenticationError,
    LeaseEnded,
    NoSuchDevice,
    NoSuchSession,
    ProtocolError,
    QuotaExceeded,
    RgpuError,
    ServerBusy,
    ServerDraining,
    ServerUnavailable,
    VersionMismatch,
)
from rgpu.leases.terms import Terms
from rgpu.link.control import ControlClient
from rgpu.link.seal import Seal
from rgpu.tokens import Token
from rgpu.wire import control
from rgpu.wire.codec import pack, unpack
from rgpu.wire.control import Control
from rgpu.wire.version import VERSION, fingerprint

ATTACH_SECONDS = 30.0  # a server without a worker in store starts one first

_REFUSALS: dict[str, type[RgpuError]] = {
    "protocol": ProtocolError,
    "version": VersionMismatch,
    "no-device": NoSuchDevice,
    "full": ServerBusy,
    "quota": QuotaExceeded,
    "draining": ServerDraining,
    "no-lease": LeaseEnded,
    "starting": ServerBusy,
    "stopping": ServerUnavailable,
    "failed": ServerUnavailable,
    "no-session": NoSuchSession,
    "not-yours": NoSuchSession,
    "denied": AuthenticationError,
}


#: what must not be said twice when nobody knows whether it was heard: the second lease would find no room
_ATTEMPTS = 4  # at a question whose connections break
_ONCE = (control.Request,)


@dataclass(frozen=True)
class ServerInfo:
    """A server's answer to hello."""

    name: str
    version: str
    fingerprint: str
    devices: list[dict[str, Any]]


@dataclass(frozen=True)
class Lease:
    """What attach got: connect to one of ``endpoints`` with ``session`` as the link's identity."""

    session: bytes
    epoch: int
    endpoints: list[str]
    key: str
    secret: bytes
    clear: bool
    grace: float
    device: dict[str, Any]
    lease: bytes
    idle_timeout: float
    token: Token | None = None  # what the worker is to be shown

    @property
    def seal(self) -> Seal | None:
        """What the two ends of a sealed link share; None: there is none."""
        return Seal(self.secret, self.clear) if self.secret else None


class DaemonClient:
    """One daemon. Connects at the first question, and again after a failure. Thread-safe."""

    def __init__(self, address: Address, timeout: float = 5.0, token: Token | None = None) -> None:
        self.address, self.timeout = address, timeout
        self.token = token or tokens.find(address)
        self._link = ControlClient(address.host, address.port, timeout, self.token)

    def hello(self, numpy_version: str = "") -> ServerInfo:
        """What the server is and which devices it has; VersionMismatch when we do not fit together."""
        answer = self._ask(control.Hello, control.Welcome, VERSION, fingerprint(), numpy_version)
        return ServerInfo(*answer)

    def attach(self, device: int | None = None, lease: bytes = b"", seals: bool = False) -> Lease:
        """A session on a device (None: the server chooses), under a lease or one of its own, and its worker. ``seals``:
        we can use a sealed link."""
        wanted = control.ANY_DEVICE if device is None else device
        if not 0 <= wanted <= control.ANY_DEVICE:
            raise NoSuchDevice(f"rgpu server {self.address}: there is no device {device}")
        answer = self._ask(
            control.Attach,
            control.Granted,
            VERSION,
            fingerprint(),
            wanted,
            lease,
            *_who_we_are(),
            seals,
            timeout=max(self.timeout, ATTACH_SECONDS),
        )
        token = None if self.token and self.token.own else self.token
        if (token is None) != (answer.key == ""):
            raise AuthenticationError(f"rgpu server {self.address} and its worker are not protected alike")
        if answer.clear:
            _warn_of_clear(self.address)
        return replace(Lease(*answer), token=token and token.but(server_key=answer.key))

    def request(
        self, terms: Terms, *, ticket: bytes = b"", wait: float = 0.0, promised: bytes = b"", revision: int = 0
    ) -> Any:
        """A lease on several devices (``Leased``), or a place in the queue (``Queued``) with whose ticket to ask
        again, often. ``promised``: the lease that the registry granted at a ``revision``. Raises NoSuchDevice,
        QuotaExceeded, LeaseEnded for a promise that is over, or ServerBusy when ``wait`` is over."""
        return self._ask(
            control.Request,
            (control.Leased, control.Queued),
            VERSION,
            fingerprint(),
            ticket,
            terms.count,
            terms.devices,
            terms.memory,
            terms.fraction,
            terms.compute,
            terms.seconds,
            wait,
            [str(f) for f in terms.filters],
            terms.placement,
            promised,
            revision,
            *_who_we_are(),
        )

    def renew(self, lease: bytes, timeout: float | None = None) -> Any:
        """Keep a lease: ``seconds`` left and a ``notice``. LeaseEnded with the reason when it is over."""
        return self._ask(control.Renew, control.Kept, lease, timeout=timeout)

    def give_back(self, lease: bytes) -> None:
        """End a lease and its sessions. Giving it back twice is harmless."""
        self._ask(control.GiveBack, control.Released, lease)

    def drain(self, on: bool = True, seconds: float = 0.0) -> Any:
        """No new leases (or, off, new ones again); ``seconds`` later (0: never) the others end. What is left."""
        return self._ask(control.Drain, control.Drained, on, seconds)

    def release(self, session: bytes) -> None:
        """End a session; its worker ends. Twice is harmless."""
        self._ask(control.Release, control.Released, session)

    def end(self, session: str) -> None:
        """End a session of ours by the name that rgpu-smi shows; NoSuchSession when it is not there or not ours."""
        self._ask(control.End, control.Released, session, user_name())

    def visit(self, session: str) -> Any:
        """Look into a session of ours by the name that rgpu-smi shows: ``visit``, ``endpoints`` and ``key`` to come by.
        NoSuchSession when it is not there or not ours."""
        return self._ask(control.Visit, control.Visiting, session, user_name())

    def session_state(self, session: bytes, timeout: float | None = None) -> str:
        """ "alive", "dead: why" or "unknown" (the daemon was restarted, or forgot)."""
        return self._ask(control.SessionState, control.State, session, timeout=timeout).state

    def snapshot(self) -> dict[str, Any]:
        """What rgpu-smi shows of this server."""
        return self._ask(control.Snapshot, control.Picture).server

    def close(self) -> None:
        self._link.close()

    def abandon(self) -> None:
        """Close without waiting for a thread that asks something just now; it sees to itself."""
        self._link.abort()

    def _ask(self, request: type, expected: Any, *fields: Any, timeout: float | None = None) -> Any:
        body = pack(request.encode(*fields))
        broke: ServerUnavailable | None = None
        for attempt in range(_ATTEMPTS):
            try:
                data = self._link.request(body, timeout)
                break
            except ServerUnavailable as error:
                if broke is not None and error.reason == "refused":
                    raise broke from None  # it has stopped
                if error.reason != "closed" or request in _ONCE or attempt == _ATTEMPTS - 1:
                    raise
                broke = error  # a connection that broke says nothing about its server
        answer = self._decoded(unpack(data))
        kinds = expected if isinstance(expected, tuple) else (expected,)
        if isinstance(answer, tuple(kind.Record for kind in kinds)):
            return answer
        if isinstance(answer, control.Refused.Record):
            raise _REFUSALS.get(answer.reason, RgpuError)(f"rgpu server {self.address}: {answer.message}")
        raise ProtocolError(f"rgpu server {self.address} answered {request.__name__} with {type(answer).__name__}")

    def _decoded(self, said: Any) -> Any:
        try:
            return Control.decode(said)
        except ProtocolError:
            sender = control.sender_of(said)
            if sender is None or sender == (VERSION, fingerprint()):
                raise
            version, mark = sender
            raise VersionMismatch(
                f"rgpu server {self.address} is rgpu {version} (protocol {mark}), this client is rgpu {VERSION} "
                f"(protocol {fingerprint()}); install the same version on both"
            ) from None

    def __repr__(self) -> str:
        return f"<DaemonClient {self.address}>"


@functools.cache
def _warn_of_clear(address: Address) -> None:
    """Once a server and process."""
    print(
        f'rgpu: WARNING: {address} is set to data = "clear": arrays and commands pass the network unencrypted, and '
        "whoever is on it can read and change them",
        file=sys.stderr,
        flush=True,
    )


def user_name() -> str:
    """Who we say we are."""
    try:
        return getpass.getuser()[:256]
    except (KeyError, OSError, ImportError):  # a user id without an entry, as in containers
        return str(os.getuid()) if hasattr(os, "getuid") else "unknown"


def _who_we_are() -> tuple[str, str, int, str]:
    """User, host, process and program, for people who look at rgpu-smi."""
    program = sys.argv[0] if sys.argv and sys.argv[0] not in ("", "-c", "-m") else os.path.basename(sys.executable)
    return user_name(), platform.node()[:256], os.getpid(), (program or "python")[-256:]
