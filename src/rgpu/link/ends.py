"""How the two ends of a stream link find each other: dialling and dialling again, listening, greeting.

The client introduces itself with its session's identity, which only the daemon and its worker know; a
connection of anybody else is closed unheard. Nothing here waits.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import selectors
import socket
import time
from typing import Any, Protocol

from rgpu.errors import ServerUnavailable
from rgpu.link.base import Link, Listener
from rgpu.link.stream import ASK, SILENCE, StreamLink

GREETING = b"rgpu1"  # then the identity's length and the identity
WELCOME = b"!"
IDENTITY = 64  # bytes of an identity at most
GREET_SECONDS = 2.0  # a stranger has to introduce himself
STRANGERS = 16  # connections that have not introduced themselves
LIFE = 10.0  # seconds without a word after which the client is gone: it may be busy, but not for ever
DIAL_SECONDS = 2.0
REDIAL = (0.02, 0.05, 0.1, 0.25, 0.5)  # seconds before another attempt
_NEVER = 1e9


class Place(Protocol):
    """A kind of stream link, and where to dial."""

    kind: str
    uri: str
    address: Any

    def new(self) -> socket.socket: ...
    def answered(self, sock: socket.socket) -> Any:
        """The worker's pipe over a connection of its client; says WELCOME. OSError: there will be none."""

    def welcomed(self, sock: socket.socket) -> Any:
        """The client's pipe, once it is welcome; None until then. OSError: it is not."""


def heard_welcome(sock: socket.socket) -> bool:
    """Whether the other end has said that we are welcome."""
    try:
        said = sock.recv(len(WELCOME))
    except BlockingIOError:
        return False
    if said != WELCOME:
        raise ConnectionError("nobody of ours listens there, or for somebody else")
    return True


class DialledLink(StreamLink):
    """The client's end: connects, and connects again by itself whenever the connection is gone. Tries
    the places in turn, the best first."""

    def __init__(self, identity: bytes, places: list[Place]) -> None:
        super().__init__(places[0].uri, places[0].kind)
        if len(identity) > IDENTITY:
            raise ValueError(f"an identity has at most {IDENTITY} bytes")
        self._greeting = GREETING + bytes([len(identity)]) + identity
        self._places, self._place = places, places[0]
        self._dialling: socket.socket | None = None
        self._greeted = False
        self._attempts = 0
        self._ask_at, self._asked = 0.0, False
        self._next = 0.0  # when the next attempt is due, or the present one has failed
        with self._lock:
            self._tend(time.monotonic())

    def _drop(self, linger: float = 0.0) -> None:
        if self._pipe is not None:
            self._next = time.monotonic()
        super()._drop(linger)

    def _tend(self, now: float) -> float:
        if self._closed:
            return _NEVER
        if self._pipe is not None:
            return self._listen_for_life(now)
        while self._dialling is None and now >= self._next:  # once for each place, at most
            self._begin(now)
        if self._dialling is not None:
            self._attend(now)
        return ASK if self._pipe is not None else max(0.001, self._next - now)

    def _listen_for_life(self, now: float) -> float:
        """Networks fall silent without a word: ask now and then. Only this end does, which can dial again."""
        if self._reader.heard:
            self._reader.heard = False
            self._ask_at, self._asked = now + ASK, False
        elif now >= self._ask_at:
            if self._asked:
                self._drop()
                return 0.0
            self._ask_at, self._asked = now + SILENCE, True
            with contextlib.suppress(ConnectionError):
                self._writer.sign()
        return max(0.0, self._ask_at - now)

    def _begin(self, now: float) -> None:
        self._place = self._places[self._attempts % len(self._places)]
        self.uri, self.kind = self._place.uri, self._place.kind
        self._attempts += 1
        sock = None
        try:
            sock = self._place.new()
            sock.setblocking(False)
            problem = sock.connect_ex(self._place.address)
        except OSError as error:
            problem = error.errno or errno.EINVAL
        if problem not in (0, errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EAGAIN):
            self._failed(sock, now)
            return
        self._dialling, self._greeted, self._next = sock, False, now + DIAL_SECONDS
        self._selector.register(sock, selectors.EVENT_WRITE)

    def _failed(self, sock: socket.socket | None, now: float) -> None:
        if sock is not None:
            sock.close()
        rounds, rest = divmod(self._attempts, len(self._places))
        self._next = now + (REDIAL[min(rounds, len(REDIAL)) - 1] if not rest else 0.0)

    def _attend(self, now: float) -> None:
        """Whether the attempt has come to something."""
        sock, pipe, failed = self._dialling, None, now >= self._next
        try:
            if not self._greeted and _connected(sock):
                sock.send(self._greeting)  # a few bytes into an empty buffer
                self._greeted = True
                self._selector.modify(sock, selectors.EVENT_READ)
            if self._greeted:
                pipe = self._place.welcomed(sock)
        except OSError:
            failed = True
        if pipe is not None or failed:
            self._dialling = None
            self._selector.unregister(sock)
        if pipe is not None:
            self._attempts = 0
            self._adopt(pipe)
        elif failed:
            self._failed(sock, now)

    def _hang_up(self) -> None:
        if self._dialling is not None:
            self._selector.unregister(self._dialling)
            self._dialling.close()
            self._dialling = None


def _connected(sock: socket.socket) -> bool:
    if problem := sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
        raise OSError(problem, "cannot connect")
    try:
        sock.getpeername()
    except OSError:
        return False
    return True


class AnsweringLink(StreamLink):
    """The worker's end: one client, known by its identity; anybody else is not heard. Wherever the
    client comes in, the other doors stay open, for when it has to come again."""

    def __init__(self, doors: list[tuple[socket.socket, Place]], identity: bytes | None) -> None:
        super().__init__(doors[0][1].uri, doors[0][1].kind)
        self._doors, self._identity = doors, identity
        self._strangers: dict[socket.socket, tuple[Place, float, bytes]] = {}
        self.refused = 0  # connections of anybody else
        self._heard_at = 0.0
        for listening, _ in doors:
            self._selector.register(listening, selectors.EVENT_READ)

    def _tend(self, now: float) -> float:
        if self._closed:
            return _NEVER
        for listening, place in self._doors:
            while len(self._strangers) < STRANGERS:
                try:
                    sock, _ = listening.accept()
                except OSError:
                    break
                sock.setblocking(False)
                self._strangers[sock] = (place, now + GREET_SECONDS, b"")
                self._selector.register(sock, selectors.EVENT_READ)
        for sock in list(self._strangers):
            self._hear(sock, now)
        if self._pipe is not None:
            self._listen_for_life(now)
        return GREET_SECONDS if self._strangers else LIFE

    def _listen_for_life(self, now: float) -> None:
        """The client says something now and then, unless its process is stopped or its network swallows all."""
        if self._reader.heard:
            self._reader.heard, self._heard_at = False, now
        elif now - self._heard_at > LIFE:
            self._drop()

    def _give_sign(self) -> None:
        super()._give_sign()
        self._writer.sign()

    def _hear(self, sock: socket.socket, now: float) -> None:
        place, until, said = self._strangers[sock]
        whole = len(GREETING) + 1
        while True:
            length = said[len(GREETING)] if len(said) >= whole else 0
            if not GREETING.startswith(said[: len(GREETING)]) or length > IDENTITY or now >= until:
                self._refuse(sock)
                return
            if len(said) == whole + length:
                self._welcome(sock, place, said[whole:])
                return
            try:
                more = sock.recv(whole + length - len(said))
            except (BlockingIOError, InterruptedError):
                self._strangers[sock] = (place, until, said)
                return
            except OSError:
                more = b""
            if not more:
                self._refuse(sock)
                return
            said += more

    def _welcome(self, sock: socket.socket, place: Place, identity: bytes) -> None:
        if self._identity is None:
            self._identity = identity
        if not hmac.compare_digest(identity, self._identity):
            self._refuse(sock)
            return
        del self._strangers[sock]
        self._selector.unregister(sock)
        try:
            pipe = place.answered(sock)
        except OSError:
            sock.close()
            return
        self.uri, self.kind = place.uri, place.kind
        self._adopt(pipe)

    def _refuse(self, sock: socket.socket) -> None:
        self.refused += 1
        del self._strangers[sock]
        self._selector.unregister(sock)
        sock.close()

    def _hang_up(self) -> None:
        for sock in list(self._strangers):
            self._refuse(sock)
        for listening, _ in self._doors:
            self._selector.unregister(listening)
            listening.close()


class StreamListener(Listener):
    """Listening sockets that wait to be told which client is their own."""

    def __init__(self, doors: list[tuple[socket.socket, Place]]) -> None:
        self._places = [place.uri for _, place in doors]
        self.uri = self._places[0]
        self._doors: list | None = doors
        for listening, _ in doors:
            listening.setblocking(False)

    @property
    def uris(self) -> list[str]:
        return self._places

    def join(self, other: StreamListener) -> StreamListener:
        """One listener at the places of both."""
        (mine, self._doors), (theirs, other._doors) = (self._doors, None), (other._doors, None)
        return StreamListener(mine + theirs)

    def accept(self, identity: bytes | None = None) -> Link:
        if self._doors is None:
            raise ServerUnavailable(f"{self.uri} has its client already")
        doors, self._doors = self._doors, None
        return AnsweringLink(doors, identity)

    def close(self) -> None:
        for listening, _ in self._doors or ():
            listening.close()
        self._doors = None
