"""How the two ends of a stream link find each other: dialling and dialling again, listening, greeting.

The client introduces itself with its session's identity, which only the daemon and its worker know; a
connection of anybody else is closed unheard. Where there are keys both prove a secret first (``link.seal``). Nothing
here waits.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import secrets
import selectors
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from rgpu.errors import ServerUnavailable
from rgpu.link import seal as sealing
from rgpu.link.base import Link, Listener
from rgpu.link.checked import checked
from rgpu.link.seal import CLIENT, WORKER, Meeting, Seal
from rgpu.link.stream import ASK, SILENCE, StreamLink

GREETING = b"rgpu1"  # then the identity's length and the identity
KEYED = b"rgpu2"  # the same and a nonce; answered by a nonce and the worker's proof, and then comes the client's
CHECKED = {GREETING: b"rgpu4", KEYED: b"rgpu7"}  # what follows has checksums; no bit makes one greeting another
WELCOME = b"!"
IDENTITY = 64  # bytes of an identity at most
GREET_SECONDS = 2.0  # a stranger has to introduce himself
STRANGERS = 16  # connections that have not introduced themselves; another one takes the place of a silent one
DIAL_SECONDS = 2.0
UNDER_WAY = {0, errno.EINPROGRESS, getattr(errno, "WSAEWOULDBLOCK", 0)}  # not EAGAIN: a unix socket that is full
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
    the places in turn, the best first; with a ``seal`` believes nobody who does not prove to have it."""

    def __init__(
        self,
        identity: bytes,
        places: list[Place],
        seal: Seal | None = None,
        checks: Callable[[Place], bool] | None = None,
    ) -> None:
        super().__init__(places[0].uri, places[0].kind)
        if len(identity) > IDENTITY:
            raise ValueError(f"an identity has at most {IDENTITY} bytes")
        self._identity = bytes([len(identity)]) + identity
        self._seal = seal
        self._checks = checks if checks is not None and (seal is None or seal.clear) else None
        self._checked = False  # what is asked for in the present attempt
        self._meeting: Meeting | None = None
        self._hello = self._heard = b""  # what was said in the present attempt
        self._places, self._place = places, places[0]
        self._dialling: Any = None
        self._greeted = False
        self._attempts = 0
        self._ask_at, self._asked = 0.0, False
        self._next = 0.0  # when the next attempt is due, or the present one has failed
        with self.lock:
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
            self._coming(now)
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
        if problem not in UNDER_WAY:
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
        made = None  # a pipe that is not guarded yet
        try:
            if not self._greeted and _connected(sock):
                self._checked = self._checks is not None and self._checks(self._place)
                greeting = GREETING if self._seal is None else KEYED
                self._hello = (CHECKED[greeting] if self._checked else greeting) + self._identity
                self._hello += b"" if self._seal is None else secrets.token_bytes(sealing.NONCE)
                sock.send(self._hello)  # a few bytes into an empty buffer
                self._greeted, self._heard, self._meeting = True, b"", None
                self._selector.modify(sock, selectors.EVENT_READ)
            if self._greeted and (self._seal is None or self._met(sock)):
                made = self._place.welcomed(sock)
                if made is not None:
                    pipe = _guarded(made, self._meeting, CLIENT, self._checked)
        except OSError:
            failed = True
            if made is not None:
                made.close(0.0)
        if pipe is not None or failed:
            self._dialling = None
            self._selector.unregister(sock)
        if pipe is not None:
            self._attempts = 0
            self._adopt(pipe)
        elif failed:
            self._failed(sock, now)

    def _met(self, sock: socket.socket) -> bool:
        """Whether the worker has proven that it has the secret, and we in turn. OSError: it has not."""
        while self._meeting is None:
            try:
                more = sock.recv(sealing.NONCE + sealing.PROOF - len(self._heard))
            except BlockingIOError:
                return False
            if not more:
                raise ConnectionError("the peer hung up")
            self._heard += more
            if len(self._heard) == sealing.NONCE + sealing.PROOF:
                nonce, proof = self._heard[: sealing.NONCE], self._heard[sealing.NONCE :]
                meeting = Meeting(self._seal, self._place.kind, self._hello, nonce)
                if not meeting.proves(WORKER, proof):
                    raise ConnectionError("somebody listens there who does not have the session's secret")
                sock.send(meeting.proof(CLIENT))
                self._meeting = meeting
        return True

    def _hang_up(self) -> None:
        if self._dialling is not None:
            self._selector.unregister(self._dialling)
            self._dialling.close()
            self._dialling = None


def _guarded(pipe: Any, meeting: Meeting | None, side: bytes, checks: bool) -> Any:
    """The pipe of a connection as it is to be used: sealed, with checksums, or as it is. OSError: it cannot be so, and
    is not to be used at all."""
    if meeting is not None:
        pipe = meeting.sealed(pipe, side)
    return checked(pipe) if checks else pipe


def _connected(sock: socket.socket) -> bool:
    if problem := sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
        raise OSError(problem, "cannot connect")
    try:
        sock.getpeername()
    except OSError:
        return False
    return True


@dataclass
class _Stranger:
    """Who has not introduced himself yet."""

    place: Place
    until: float
    said: bytes = b""
    checked: bool = False  # he asked for checksums
    meeting: Meeting | None = None  # what he has to prove yet


class AnsweringLink(StreamLink):
    """The worker's end: one client, known by its identity; anybody else is not heard. Wherever the
    client comes in, the other doors stay open, for when it has to come again."""

    def __init__(
        self, doors: list[tuple[socket.socket, Place]], identity: bytes | None, seal: Seal | None = None
    ) -> None:
        super().__init__(doors[0][1].uri, doors[0][1].kind)
        self._doors, self._identity, self._seal = doors, identity, seal
        greeting = GREETING if seal is None else KEYED
        self._greetings = greeting, CHECKED[greeting]
        self._strangers: dict[socket.socket, _Stranger] = {}
        self.refused = 0  # connections of anybody else
        self._heard_at = 0.0
        for listening, _ in doors:
            self._selector.register(listening, selectors.EVENT_READ)

    def _tend(self, now: float) -> float:
        if self._closed:
            return _NEVER
        for listening, place in self._doors:
            for _ in range(STRANGERS):
                try:
                    sock, _ = listening.accept()
                except OSError:
                    break
                sock.setblocking(False)
                if len(self._strangers) == STRANGERS:  # who came first and has said least makes room
                    self._refuse(min(self._strangers, key=lambda one: len(self._strangers[one].said)))
                self._strangers[sock] = _Stranger(place, now + GREET_SECONDS)
                self._selector.register(sock, selectors.EVENT_READ)
        for sock in list(self._strangers):
            self._hear(sock, now)
        if self._pipe is not None:
            self._listen_for_life(now)
        return GREET_SECONDS if self._strangers else self.life

    def _listen_for_life(self, now: float) -> None:
        """The client says something now and then, unless its process is stopped or its network swallows all."""
        if self._reader.heard:
            self._reader.heard, self._heard_at = False, now
            self._coming(now)
        elif now - self._heard_at > self.life:
            self._drop()
            self.silent = True

    def _give_sign(self) -> None:
        super()._give_sign()
        self._writer.sign()

    def _hear(self, sock: socket.socket, now: float) -> None:
        stranger = self._strangers[sock]
        while True:
            missing = self._missing(stranger)
            if missing < 0 or now >= stranger.until:
                self._refuse(sock)
                return
            if not missing:
                self._heard(sock, stranger)
                if stranger.meeting is None or sock not in self._strangers:
                    return
                continue
            try:
                more = sock.recv(missing)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                more = b""
            if not more:
                self._refuse(sock)
                return
            stranger.said += more

    def _missing(self, stranger: _Stranger) -> int:
        """How many bytes more he has to say before he is answered; -1: he may go."""
        said = stranger.said
        if stranger.meeting is not None:
            return sealing.PROOF - len(said)
        head = len(GREETING) + 1
        length = said[head - 1] if len(said) >= head else 0
        if not any(one.startswith(said[: head - 1]) for one in self._greetings) or length > IDENTITY:
            return -1
        if len(said) < head:
            return head - len(said)
        return head + length + (0 if self._seal is None else sealing.NONCE) - len(said)

    def _heard(self, sock: socket.socket, stranger: _Stranger) -> None:
        """He has said all that he had to."""
        said, head = stranger.said, len(GREETING) + 1
        if stranger.meeting is not None:
            if stranger.meeting.proves(CLIENT, said):
                self._welcome(sock, stranger)
            else:
                self._refuse(sock)
            return
        stranger.checked = said.startswith(self._greetings[1])
        identity = said[head : head + said[head - 1]]
        if self._identity is None:
            self._identity = identity
        if not hmac.compare_digest(identity, self._identity):
            self._refuse(sock)
        elif self._seal is None:
            self._welcome(sock, stranger)
        else:
            nonce = secrets.token_bytes(sealing.NONCE)
            stranger.meeting, stranger.said = Meeting(self._seal, stranger.place.kind, said, nonce), b""
            try:
                sock.send(nonce + stranger.meeting.proof(WORKER))  # into an empty buffer
            except OSError:
                self._refuse(sock)

    def _welcome(self, sock: socket.socket, stranger: _Stranger) -> None:
        del self._strangers[sock]
        self._selector.unregister(sock)
        made = None
        try:
            made = stranger.place.answered(sock)
            pipe = _guarded(made, stranger.meeting, WORKER, stranger.checked)
        except OSError:
            if made is not None:
                made.close(0.0)
            sock.close()
            return
        self.uri, self.kind = stranger.place.uri, stranger.place.kind
        self.silent = False
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
    """Listening sockets that wait to be told which client is their own. ``seal``: who has to prove what first."""

    def __init__(self, doors: list[tuple[socket.socket, Place]], seal: Seal | None = None) -> None:
        self._places = [place.uri for _, place in doors]
        self.uri, self.seal = self._places[0], seal
        self._doors: list | None = doors
        for listening, _ in doors:
            listening.setblocking(False)

    @property
    def uris(self) -> list[str]:
        return self._places

    def join(self, other: StreamListener) -> StreamListener:
        """One listener at the places of both."""
        if self.seal != other.seal:
            raise ValueError("listeners of one link are protected alike")
        (mine, self._doors), (theirs, other._doors) = (self._doors, None), (other._doors, None)
        return StreamListener(mine + theirs, self.seal)

    def accept(self, identity: bytes | None = None) -> Link:
        if self._doors is None:
            raise ServerUnavailable(f"{self.uri} has its client already")
        doors, self._doors = self._doors, None
        return AnsweringLink(doors, identity, self.seal)

    def close(self) -> None:
        for listening, _ in self._doors or ():
            listening.close()
        self._doors = None
