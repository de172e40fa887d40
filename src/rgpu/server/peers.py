"""The pairs of one worker: who may come, who is gone to, and what a client may ask for of them.

A pair is introduced by a client with a secret for this pair alone; here the places are opened and tried, over the best
link that both ends have, sealed where there are keys. What goes over a pair is ``peer``'s.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from rgpu import link
from rgpu.config import Address
from rgpu.errors import PeerLost, ServerUnavailable
from rgpu.link import seal as sealing
from rgpu.link import shm
from rgpu.server.host import host_id
from rgpu.server.peer import Pair
from rgpu.server.table import Poison

HOSTS = 64  # whose distances a worker remembers, and tells its daemon about once a second
DIAL = 2.0  # seconds to find out whether anything listens at a place
GREET = 15.0  # seconds that what listens there has to answer: its host may be busy
SEALS = "sealed "  # begins the room of a worker whose pairs may be sealed


def unprotected(_secret: bytes) -> tuple:
    """Where a server has no keys its workers have none for each other."""
    return None, None


class Peers:
    """The pairs of one worker, by the numbers their client gave them. ``listen(kinds, keys, seal)`` gives a listener;
    ``kinds`` are the links that this worker may use, ``meeting(secret)`` the keys that the two ends of a pair have: the
    listener's and the dialer's. Where there are keys pairs are sealed, or have CURVE if one end cannot."""

    def __init__(
        self,
        backend: Any,
        listen: Callable[[list[str], Any, Any], Any] | None = None,
        bind: str = "127.0.0.1",
        meeting: Callable[[bytes], tuple] = unprotected,
        kinds: Sequence[str] = ("tcp",),
    ) -> None:
        self.backend, self._listen, self._bind, self.meeting = backend, listen, bind, meeting
        self._kinds, self._keys = set(kinds), meeting is not unprotected
        self._sealing = self._keys and not sealing.missing()
        self.room = (SEALS if self._sealing else "") + (_room() if "shm" in kinds else "")
        self.pairs: dict[int, Pair] = {}
        self.others: weakref.WeakSet[Pair] = weakref.WeakSet()  # those of communicators
        self.stores: list[Any] = []  # where communicators meet
        self.visitors: weakref.WeakSet[Any] = weakref.WeakSet()  # their members here
        self.reach: dict[str, list[float]] = {}  # other host -> [seconds of a round trip, bytes a second]

    def away(self) -> Any:
        """A context in which this worker waits for another one: its turn on the device is somebody else's meanwhile."""
        allowance = self.backend.allowance
        return contextlib.nullcontext() if allowance is None else allowance.away()

    def place(self) -> str:
        """Where something else of this worker may listen."""
        if self._listen is None:
            raise ServerUnavailable("this worker takes no connections of other workers")
        return Address(self._bind, 0).uri

    def open(self, secret: bytes, name: str, room: str) -> tuple[list[str], Pair]:
        """Listen for one peer that knows the secret and is in that room; where."""
        if self._listen is None:
            raise ServerUnavailable("this worker takes no connections of other workers")
        near = room == self.room and room not in ("", SEALS)
        kinds = ["tcp", *({"shm" if near else "ucx"} & self._kinds)]
        if not self._keys:
            listener = self._listen(kinds, None, None)
        elif self._sealing and room.startswith(SEALS):
            listener = self._listen(kinds, None, _seal(secret))
        else:
            listener = self._listen([*link.CURVE], self.meeting(secret)[0], None)
        pair = Pair(listener.accept(secret), secret, name, self.away)
        pair.answer(self.backend.kind)
        return listener.uris, pair

    def dial(
        self, secret: bytes, uris: list[str], name: str, host: str, made: Callable[[Pair], None] = lambda pair: None
    ) -> Pair | None:
        """The pair with the one that listens at one of these places, or None if none is reached. ``made`` is told of
        each that is tried, and may end the trying by ending it."""
        for uri in uris:
            if not isinstance(uri, str) or not uri.startswith(("shm://", "ucx://", "tcp://", "zmq://")):
                raise ValueError(f"no place of a worker: {str(uri)[:80]!r}")
        for places in _together([uri for uri in uris if _listens(uri)]):
            pair = Pair(self._connect(places, secret), secret, name, self.away)
            made(pair)
            if pair.greet(self.backend.kind, GREET):
                pair.meet(host)
                return pair
            pair.close()
        return None

    def _connect(self, uris: list[str], secret: bytes) -> Any:
        if self._keys and not uris[0].startswith("zmq:"):
            return link.connect(uris, secret, seal=_seal(secret))
        return link.connect(uris, secret, token=self.meeting(secret)[1])

    def listen(self, number: int, secret: bytes, name: str, room: str) -> list:
        """``[where, host]`` for a peer that is in a room to come to."""
        self._check_new(number, secret)
        uris, self.pairs[number] = self.open(secret, name, room)
        return [uris, host_id()]

    def connect(self, number: int, secret: bytes, uris: list[str], name: str, host: str) -> str:
        """The kind of link to the peer that listens there; empty: it is not reached."""
        self._check_new(number, secret)
        pair = self.dial(secret, uris, name, host)
        if pair is None:
            return ""
        self.pairs[number] = pair
        return pair.connection.link.kind

    def _check_new(self, number: int, secret: bytes) -> None:
        if type(number) is not int or number in self.pairs or type(secret) is not bytes or len(secret) != 16:
            raise ValueError("a pair has a number of its own and a secret of 16 bytes")

    def forget(self, number: int) -> None:
        pair = self.pairs.pop(number, None)
        if pair is not None:
            pair.close()

    def _pair(self, number: int) -> Pair:
        pair = self.pairs.get(number)
        if pair is None:
            raise PeerLost(f"this worker knows no peer {number}")
        return pair

    def send(self, number: int, token: int, array: Callable[[], Any]) -> None:
        """What ``array()`` gives or raises, to the peer."""
        pair, backend = self._pair(number), self.backend
        try:
            source = array()
            ticket = backend.ticket(source) if pair.takes_tickets(backend.kind) else None
            if ticket is not None:
                pair.lend(token, ticket, source.nbytes, source, backend.lend)
                return
            data = backend.lend(source)
        except Poison as poison:
            pair.refuse(token, poison.kind, poison.arguments, poison.text)
            raise
        except Exception as error:
            pair.refuse(token, type(error).__name__, [str(error)[:4096]], "")
            raise
        pair.send(token, data)

    def receive(self, number: int, token: int, array: Callable[[], Any]) -> None:
        """The peer's bytes, into what ``array()`` gives; if that raises they are thrown away."""
        pair, backend = self._pair(number), self.backend
        try:
            target = array()
            if pair.takes_tickets(backend.kind) and (lent := pair.look(token)) is not None:
                taken = backend.redeem(target, *lent)
                pair.give_back(token, taken)
                if taken:
                    return
            place = backend.place(target)
        except PeerLost:
            raise
        except Exception:
            pair.drop(token)
            raise
        pair.receive(token, place)
        backend.landed(target, place)

    def measure(self, number: int) -> tuple[float, float]:
        """(seconds of a round trip, bytes a second) of the link to a peer, now."""
        pair = self._pair(number)
        rtt, bandwidth = pair.measure()
        if pair.greeting is not None:
            self.measured(pair.greeting.host, rtt, bandwidth)
        return rtt, bandwidth

    def measured(self, host: str, rtt: float, bandwidth: float) -> None:
        """What the way to a host is worth, for who places leases later."""
        if host != host_id():
            self.reach.pop(host, None)
            self.reach[host] = [rtt, bandwidth]
            while len(self.reach) > HOSTS:
                self.reach.pop(next(iter(self.reach)))

    def settle(self) -> None:
        """Wait until nothing that was sent is still read from arrays. A lost peer reads nothing."""
        for pair in [*self.pairs.values(), *self.others]:
            try:
                if pair.usable:
                    pair.settle()
            except PeerLost:
                continue

    def settled(self) -> bool:
        """Whether that is so."""
        return all(pair.settled() for pair in [*self.pairs.values(), *self.others] if pair.usable)

    def deserted(self, why: str) -> None:
        """The client of this worker is gone: members of communicators that other clients have, too, need not wait."""
        work = functools.partial(self._abort, lambda rank: f"the client of rank {rank} is gone: {why}")
        threading.Thread(target=work, name="rgpu-deserted", daemon=True).start()  # telling them may take a second

    def _abort(self, why: Callable[[int], str]) -> None:
        for visitor in list(self.visitors):
            if visitor.answerable:
                visitor.abort(why(visitor.rank))

    def close(self, seconds: float = 2.0, why: str = "", delivery: float = 0.0) -> None:
        """End. ``why``: not as the client asked for, and so other clients are told; else what was sent is delivered, to
        who comes for it within ``delivery`` seconds."""
        if why:
            self._abort(lambda rank: f"the session of rank {rank} has ended: {why}")
        else:
            deadline = time.monotonic() + delivery
            for pair in [*self.pairs.values(), *self.others]:
                pair.deliver(deadline)
        for visitor in list(self.visitors):
            visitor.leave()
        pairs, self.pairs = [*self.pairs.values(), *self.others], {}
        for pair in pairs:
            pair.close(seconds)
        for seconds in (0.0, 2.0):  # all at once
            for store in self.stores:
                store.close(seconds)


def _seal(secret: bytes) -> sealing.Seal:
    """What the two ends of a pair share."""
    return sealing.Seal(hashlib.sha256(b"rgpu pair\0" + secret).digest())


def _room() -> str:
    """Who has the same one can share memory with this worker: a host and its names of sockets. Empty: nobody can."""
    if shm.missing():
        return ""
    with contextlib.suppress(OSError):
        return f"{os.stat('/proc/self/ns/net').st_ino}/{host_id()}"
    return ""


def _together(uris: list[str]) -> list[list[str]]:
    """Places that one link can try in turn; it cannot with those of ZeroMQ."""
    streams = [uri for uri in uris if not uri.startswith("zmq:")]
    return [*([streams] if streams else []), *[[uri] for uri in uris if uri.startswith("zmq:")]]


def _listens(uri: str) -> bool:
    """Whether something takes connections there: a place in another network is given up soon, a slow one is not."""
    scheme, _, place = uri.partition("://")
    host, _, port = place.rpartition(":")
    if scheme == "shm" or not port.isdigit():
        return True
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=DIAL).close()
    except OSError:
        return False
    return True


#: by declared name; the first argument is the backend
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "peer.room": lambda backend: backend.peers.room,
    "peer.listen": lambda backend, *args: backend.peers.listen(*args),
    "peer.connect": lambda backend, *args: backend.peers.connect(*args),
    "peer.measure": lambda backend, number: [*backend.peers.measure(number)],
    "peer.forget": lambda backend, number: backend.peers.forget(number),
}
