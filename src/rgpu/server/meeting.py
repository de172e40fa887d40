"""Where the members of a communicator find each other: a small store of texts, at the worker of rank 0.

Whoever knows the secret may put a text under a key, once, and take one, waiting until it is there. That is
all: addresses and names of hosts, no array data. Members watch it for an abort, and it watches them: whose connection
ends without a word is gone, and that is an abort. It ends by itself when every member has come and gone.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from rgpu.errors import PeerLost, ProtocolError, RgpuError, ServerUnavailable
from rgpu.link.control import ControlClient, ControlServer
from rgpu.wire import codec
from rgpu.wire.peer import Found, Meeting, Put, Refused, Take

KEYS = 100_000  # texts that one store keeps
_STEP = 0.25
_ABORT = "abort"  # put: why; taken as abort/RANK: by which connection a member waits for it
_LEFT = "left/"
SIZE = "size"  # put by every member: how many there are
GRACE = 10.0  # seconds after an abort in which members that have not come yet still hear of it
_WATCH = 3.0  # seconds between two questions whether a member has aborted
_LOOK = 1.0  # seconds between two looks whether the members are there; who is missed twice is gone


class Store:
    """The store of one communicator, served by a thread of its own. ``endpoint`` is where."""

    def __init__(self, uri: str, meeting: Callable[[bytes], tuple]) -> None:
        self.secret = os.urandom(16)
        self._server = ControlServer(uri, meeting(self.secret)[0])
        self.endpoint = self._server.endpoint
        self._texts: dict[str, str] = {}
        self._askers: dict[str, dict[Any, Any]] = {}  # key -> who waits for it: connection -> latest question
        self._members: dict[str, tuple[Any, bool]] = {}  # rank -> its latest question, and whether it was missed
        self._left: set[str] = set()  # ranks of members that have said goodbye, or are gone
        self._look_at = 0.0
        self._aborted, self._aborted_at = "", 0.0
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="rgpu-meeting", daemon=True)
        self._thread.start()

    def close(self, seconds: float = 2.0) -> None:
        """End, whoever is there; the thread has so long for it."""
        self._closed = True
        self._thread.join(seconds)

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive()

    @property
    def unused(self) -> bool:
        """Whether nobody has come yet."""
        return not self._texts

    def _serve(self) -> None:
        try:
            while not self._closed and not self._over():
                self._server.step(_STEP, self._on_request)
                if time.monotonic() >= self._look_at:
                    self._look_at = time.monotonic() + _LOOK
                    self._look()
        finally:
            self._server.close(0.0 if self._closed else _STEP)  # the latest answers leave first

    def _over(self) -> bool:
        """Whether nobody can need it any more: all have come and gone. After an abort it does not wait long for who has
        not come: that one finds nobody here, which is an error as well."""
        if 0 < int(self._texts.get(SIZE, 0)) <= len(self._left):
            return True
        return bool(self._aborted) and not self._members and time.monotonic() > self._aborted_at + GRACE

    def _look(self) -> None:
        for rank, (asker, missed) in list(self._members.items()):
            there = self._server.reaches(asker)
            self._members[rank] = asker, not there
            if missed and not there:
                del self._members[rank]
                self._left.add(rank)
                self._put(_ABORT, f"the worker of rank {rank} is gone, or cannot be reached from here any more")

    def _on_request(self, asker: Any, body: bytes, _key: str) -> None:
        try:
            message = Meeting.decode(codec.unpack(body))
            if not hmac.compare_digest(message.secret, self.secret):
                raise ProtocolError("that is not the secret of this communicator")
            if isinstance(message, Put.Record):
                self._put(message.key, message.text)
                self._answer(asker, Found.encode(self._aborted if message.key == _ABORT else ""))
            elif message.key.startswith(_ABORT + "/"):
                self._watched(message.key.partition("/")[2], asker)
            elif self._aborted:
                self._answer(asker, Refused.encode(self._aborted))
            elif message.key in self._texts:
                self._answer(asker, Found.encode(self._texts[message.key]))
            else:
                self._askers.setdefault(message.key, {})[asker[0]] = asker
        except (ProtocolError, AttributeError) as error:
            self._answer(asker, Refused.encode(str(error)[:200]))

    def _watched(self, rank: str, asker: Any) -> None:
        if self._aborted or rank in self._left:
            self._answer(asker, Found.encode(self._aborted))
        elif len(self._members) < KEYS:
            self._members[rank] = asker, False

    def _put(self, key: str, text: str) -> None:
        if key == _ABORT:
            if self._aborted:
                return
            self._aborted, self._aborted_at = text, time.monotonic()
            for waiting in self._askers.values():
                for asker in waiting.values():
                    self._answer(asker, Refused.encode(text))
            self._askers = {}
            for asker, _ in self._members.values():
                self._answer(asker, Found.encode(text))
            return
        if key.startswith(_LEFT):
            rank = key.removeprefix(_LEFT)
            if len(self._left) < KEYS:
                self._left.add(rank)
            if rank in self._members:  # its thread that watches may end
                self._answer(self._members.pop(rank)[0], Found.encode(self._aborted))
            return
        if key == SIZE and not text.isdecimal():
            raise ProtocolError(f"{text[:20]!r} is no number of members")
        if len(self._texts) >= KEYS or self._texts.setdefault(key, text) != text:
            what = "differ in its size" if key == SIZE else "have the same rank"
            raise ProtocolError(f"{key!r} was put twice: two members of the communicator {what}")
        for asker in self._askers.pop(key, {}).values():
            self._answer(asker, Found.encode(text))

    def _answer(self, asker: Any, message: tuple) -> None:
        self._server.answer(asker, codec.pack(message))


class Visitor:
    """One member's way to the store, that of ``rank``. ``places`` are tried in turn; ``away``: around what waits for
    other members."""

    def __init__(
        self,
        places: list[str],
        secret: bytes,
        timeout: float,
        meeting: Callable[[bytes], tuple],
        rank: int,
        away: Callable[[], Any] = contextlib.nullcontext,
    ) -> None:
        self._secret, self._until, self._away = secret, timeout, away
        self._token = meeting(secret)[1]
        self._client, self.host = self._reach(places)
        self.rank, self._closed = rank, False
        self.shared = False  # whether devices of several clients meet here
        self._tell: list[weakref.WeakMethod] = []  # weakly: a communicator that nobody holds ends
        self._users, self._lock = 0, threading.Lock()
        self._why = ""

    def _reach(self, places: list[str]) -> tuple[ControlClient, str]:
        why = "no place was given"
        for place in places:
            host, _, port = place.rpartition(":")
            try:
                with socket.create_connection((host.strip("[]"), int(port)), timeout=2.0) as probe:
                    mine = probe.getsockname()[0]
                return ControlClient(host.strip("[]"), int(port), token=self._token), mine
            except (OSError, ValueError) as error:
                why = f"{place}: {error}"
        raise PeerLost(f"the communicator's meeting place cannot be reached from here ({why})")

    @property
    def answerable(self) -> bool:
        """Whether other clients wait for what this member does."""
        return self.shared and not self._closed

    def put(self, key: str, text: str) -> None:
        self._ask(Put.encode(self._secret, key, text), 10.0)

    def take(self, key: str, timeout: float | None = None) -> str:
        """The text of a key, as soon as somebody puts it."""
        with self._away():
            return self._ask(Take.encode(self._secret, key), self._until if timeout is None else timeout)

    def watch(self, told: Callable[[str], None]) -> None:
        """Call ``told``, a method, with the reason when a member aborts or is gone, from a thread of its own. Whoever
        watches also says ``close``."""
        with self._lock:
            self._users += 1
            self._tell = [method for method in self._tell if method() is not None] + [weakref.WeakMethod(told)]
            first = self._users == 1
        if first:
            threading.Thread(target=self._watch, name="rgpu-meeting-watch", daemon=True).start()
        elif self._why:
            told(self._why)

    def _watch(self) -> None:
        client = ControlClient(self._client.host, self._client.port, token=self._token)
        question = codec.pack(Take.encode(self._secret, f"{_ABORT}/{self.rank}"))
        try:
            while not self._closed:
                try:
                    began = time.monotonic()
                    answer = Meeting.decode(codec.unpack(client.request(question, _WATCH)))
                    if answer.text:
                        self._heard(answer.text)
                    return
                except ServerUnavailable:
                    if time.monotonic() - began < _WATCH - 0.1:
                        return  # the meeting place is gone; its members notice each other's end by themselves
        except (RgpuError, AttributeError):
            return
        finally:
            client.close()

    def _heard(self, why: str) -> None:
        """The end, for all that meet here."""
        with self._lock:
            self._why = why
            methods = list(self._tell)
        for method in methods:
            if (told := method()) is not None:
                told(why)
        self._end()

    def abort(self, why: str) -> str:
        """Nobody need wait for anybody any more. What was the first to go wrong, for any member: what others see later
        are only its consequences. By a connection of its own, for on the other one a thread may be waiting."""
        if not self._why:
            client = ControlClient(self._client.host, self._client.port, token=self._token)
            with contextlib.suppress(RgpuError, TimeoutError):
                why = self._request(client, Put.encode(self._secret, _ABORT, why), 1.0) or why
            client.close()
        return self._why or why

    def _ask(self, message: tuple, timeout: float) -> str:
        if self._closed:
            raise PeerLost(self._why or "the communicator has ended")
        return self._request(self._client, message, timeout)

    def _request(self, client: ControlClient, message: tuple, timeout: float) -> str:
        until = time.monotonic() + timeout
        try:
            answer = Meeting.decode(codec.unpack(client.request(codec.pack(message), timeout)))
        except ServerUnavailable as error:
            if time.monotonic() < until - 0.1:
                raise PeerLost("the worker of rank 0 is gone, and the communicator's meeting place with it") from error
            raise TimeoutError(f"a member of the communicator did not come within {timeout:g} s") from None
        if isinstance(answer, Refused.Record):
            raise PeerLost(answer.why)
        return answer.text

    def leave(self) -> None:
        """From now on the end of this member is none of the others' business."""
        with self._lock:
            closed, self._closed = self._closed, True
        if not closed:
            with contextlib.suppress(RgpuError, TimeoutError):
                self._request(self._client, Put.encode(self._secret, f"{_LEFT}{self.rank}", ""), 0.5)

    def close(self) -> None:
        """One of those that watch is done; the last one ends it."""
        with self._lock:
            self._users -= 1
            last = not self._users
        if last:
            self._end()

    def _end(self) -> None:
        self.leave()
        self._client.close()
