"""A session on one device of one server: opened, asked about when its link is down, told apart from others.

What a device of the pool has one of, and a redundant one two. Knows the daemon and the worker's endpoints, not what
is said over them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rgpu import config, link
from rgpu.client.control import DaemonClient
from rgpu.errors import ServerLost, ServerUnavailable, SessionExpired, WorkerLost
from rgpu.link import seal
from rgpu.session import Connection, Session

ASK = 1.0  # seconds that asking for a session's state may take: others wait for the same thread
AWAKE = 1.5  # seconds that pass between two looks at a silent worker, at most; more is a standstill of our own host
SERVER_LOST_AFTER = 2.5  # seconds without a link until a server that refuses us, or has hung up, counts as lost


def reachable(daemon: DaemonClient, endpoints: list[str]) -> list[str]:
    """A worker that listens at every address of its host names none; we know one."""
    host = daemon.address.host
    named = f"[{host}]" if ":" in host else host
    return [uri.replace("//0.0.0.0:", f"//{named}:").replace("//[::]:", f"//{named}:") for uri in endpoints]


class Seat:
    """``lease``: what the session is opened under (empty: a lease of its own). ``name``: what errors call it."""

    def __init__(
        self,
        daemon: DaemonClient,
        info: dict,
        settings: config.ClientConfig,
        lease: bytes = b"",
        holder: Any = None,
        name: str = "",
    ) -> None:
        self.daemon, self.info, self.settings = daemon, info, settings
        self.index: int = info["index"]
        self.lease, self.holder = lease, holder
        self.name = name or f"{daemon.address}, {info['kind']}:{self.index}"
        self.session: bytes | None = None
        self.memory_total: int = info["memory_total"]
        self.silent = 0.0  # seconds that the worker was not there while we were, as of the last look
        self._looked = (0.0, 0.0)  # since when it was silent at the last look, and when that was
        self._grace = 0.0  # seconds that the worker waits for us

    def __repr__(self) -> str:
        return f"<Seat {self.name}>"

    def open(self) -> tuple[Session, Any]:
        """A new session and its link, which connects by itself."""
        granted = self.daemon.attach(self.index, self.lease, self.settings.link != "zmq" and not seal.missing())
        self.session, self._grace = granted.session, granted.grace
        if granted.idle_timeout and not self.lease and self.holder is not None:  # somebody has to hear the warning
            self.holder.add(self.daemon, granted.lease, min(5.0, granted.idle_timeout / 10))
        self.memory_total = granted.device.get("memory_total", self.memory_total)
        places = reachable(self.daemon, granted.endpoints)
        kind, checksum = self.settings.link, self.settings.checksum
        wire = link.connect(places, granted.session, kind, granted.token, granted.seal, checksum)
        return Session(granted.session, granted.epoch), wire

    def connect(self, on_message: Callable[[list], None], sink: Any) -> Connection:
        """The same, as a connection."""
        return Connection(*self.open(), on_message=on_message, sink=sink)

    def fate(self, since: float, patience: float | None = None) -> Exception | None:
        """What it means that the worker's link is down ``since`` a time; None: nothing yet. Where nobody answers it may
        be the network: that is waited for as long as the worker waits, or for ``patience`` seconds. Time in which
        this process stood still (it was stopped, or its machine moved) is nobody's silence."""
        now, (before, looked) = time.monotonic(), self._looked
        if since != before:
            self.silent, looked = 0.0, since
        self.silent += min(now - looked, AWAKE)
        self._looked = since, now
        try:
            state = self.daemon.session_state(self.session, timeout=ASK)
        except ServerUnavailable as error:
            if patience is None:
                patience = SERVER_LOST_AFTER if error.reason in ("refused", "closed") else self._grace
            return ServerLost(f"{self.name} no longer answers: {error}") if self.silent > patience else None
        except PermissionError as error:  # an AuthenticationError
            return error
        if state.startswith("dead"):
            reason = state.partition(":")[2].strip()
            gone = ("for more than", "the time of the lease", "given back", "is drained")
            lost = SessionExpired if any(words in reason for words in gone) else WorkerLost
            return lost(
                f"the worker of {self.name} ended ({reason}); its arrays are gone. "
                "rgpu.reset() starts a new session, then upload the data again"
            )
        if state == "unknown":
            return SessionExpired(f"{self.name}: the server no longer knows this session")
        if self.silent > self._grace + ASK:
            reason = f"could not be reached for more than {self._grace:g} s, though its server can"
            return SessionExpired(f"the worker of {self.name} {reason}; its arrays are gone")
        return None
