"""Direct connections between workers: arrays go from device to device without passing the client.

A pair is a session of its own between two workers, which ``peers`` opens. Sending never waits for the other
side; receiving waits in the order of the commands, so that a copy is ordered on both devices. A peer that is
gone for ``PATIENCE`` seconds is an error, never a hang.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from rgpu.errors import PeerLost, ProtocolError, RgpuError, SessionLost
from rgpu.link import shaped
from rgpu.server.host import host_id
from rgpu.server.table import Poison
from rgpu.session import Connection, Session
from rgpu.wire import codec, limits
from rgpu.wire.peer import Answer, Ask, Broken, Greeting, Lent, Peer, Piece, Returned

log = logging.getLogger("rgpu.worker")

PATIENCE = 2.5  # seconds that a peer's link may be down before the peer counts as lost
SILENCE = 2.0  # seconds without a word from the one that dials after which the link is down: its thread asks sooner
WELCOME = 20.0  # seconds that a listener waits for the one it was told of
SOON = 0.002  # seconds that a wait for a peer may take before others may use the device meanwhile
LOOK = 0.25  # seconds between looks at a quiet link
WINDOW = 32 << 20  # bytes of a pair that may be under way, and so wait in memory at the receiver
SNAPSHOT = 1 << 20  # bytes up to which what is sent is copied; more stays in the array until it has arrived
MEASURED = 32 << 20  # bytes that a measurement of a link sends, or as many as leave in a second
_ROUNDS, _AT_ONCE = 5, 4
OUTSTANDING = 256 << 20  # bytes promised to one peer and not gone, above which a sender waits
_EPOCH = 1


class _Arrival:
    """What has come, and is to come, under one token. ``place`` None: nobody has asked for it yet."""

    __slots__ = ("place", "missing", "held", "error", "dropped", "ticket")

    def __init__(self) -> None:
        self.place: memoryview | None = None
        self.missing = -1
        self.held: list[tuple[int, Any]] = []
        self.error: BaseException | None = None
        self.dropped = False  # wanted by nobody any more: bytes are thrown away as they come
        self.ticket: Any = None  # what was lent in place of bytes


class Pair:
    """One end of a direct connection. Usable from several threads; has one that keeps it moving."""

    def __init__(
        self, wire: Any, secret: bytes, name: str, away: Callable[[], Any] = contextlib.nullcontext
    ) -> None:
        self.name, self._away = name, away
        wire.life = SILENCE
        self._wire = shaped.wrap(wire)
        self.connection = Connection(
            Session(secret, _EPOCH, window_bytes=WINDOW), self._wire, on_message=self._arrived, sink=self._sink
        )
        self.greeting: Any = None  # what the other end said of itself
        self._hello: list | None = None  # what this end answers to that
        self._tickets = True  # whether what is lent has been of use
        self._lent: dict[int, tuple[Any, Callable[[], memoryview]]] = {}  # token -> what must stay, and its bytes
        self._owed: deque[tuple[int, Callable[[], memoryview]]] = deque()  # to be sent, a ticket was of no use
        self._born = time.monotonic()
        self._met = False
        self._queue: deque[list] = deque()  # messages that the window has not taken yet
        self._queued = 0  # their bytes
        self._replies: deque[list] = deque()  # messages from inside the connection's lock, where nothing is sent
        self._sending = threading.Lock()
        self._arrivals: dict[int, _Arrival] = {}
        self._answered = 0  # the latest question that the peer has answered
        self._given_up: Poison | None = None  # what the peer said when it gave up
        self._lock = threading.Lock()  # of the arrivals; inside the connection's, never around it
        self._movers: list[None] = []  # one entry for each thread that waits for something
        self._alone = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name=f"rgpu-peer {name}", daemon=True)
        self._thread.start()

    # ---- sending: never waits, but for a peer that takes nothing at all -----------------------------

    def answer(self, kind: str) -> None:
        """Tell the one that comes what we are, once it has said who it is."""
        self._hello = [codec.pack(Greeting.encode(host_id(), kind))]

    def greet(self, kind: str, seconds: float) -> bool:
        """Say who we are; whether the other end heard it in time."""
        self._post([codec.pack(Greeting.encode(host_id(), kind))])
        try:
            return self.connection.flush(time.monotonic() + seconds)
        except RgpuError:
            return False

    def meet(self, host: str) -> None:
        """The other end is on this host."""
        if host != host_id() and isinstance(self._wire, shaped.ShapedLink):
            self._wire.narrow(host)

    def send(self, token: int, data: memoryview) -> None:
        """Bytes for whoever asks for ``token``. Memory of more than SNAPSHOT bytes must stay as it is
        until ``settle``."""
        if len(data) <= SNAPSHOT:
            data = memoryview(bytes(data))
            if self._queued > OUTSTANDING:
                self.wait_until(lambda: self._queued <= OUTSTANDING)
        step = self.connection.link.chunk
        for start in range(0, max(len(data), 1), step):
            head = codec.pack(Piece.encode(token, start, len(data)))
            self._queue_up([head, data[start : start + step]])
        self._drain()

    def takes_tickets(self, kind: str) -> bool:
        """Whether the peer can read the memory of a device of this kind by itself."""
        said = self.greeting
        return self._tickets and said is not None and (said.host, said.kind) == (host_id(), kind)

    def lend(self, token: int, ticket: bytes, nbytes: int, array: Any, lend: Callable[[Any], memoryview]) -> None:
        """A ticket in place of the bytes. The array stays as it is until ``settle``."""
        self._lent[token] = array, lambda: lend(array)
        self._post([codec.pack(Lent.encode(token, ticket, nbytes))])

    def measure(self) -> tuple[float, float]:
        """(seconds of a round trip, bytes a second towards the peer), of messages in a row. Takes a second at most
        for each; copies that go on meanwhile count as part of the link's load."""
        times = [self._asked([]) for _ in range(_ROUNDS)]
        rtt, began, sent = min(times), time.perf_counter(), 0
        block = memoryview(bytes(limits.CHUNK_BYTES))
        while sent < MEASURED and (not sent or time.perf_counter() - began < 1.0):
            self._asked([block] * _AT_ONCE)
            sent += len(block) * _AT_ONCE
        seconds = time.perf_counter() - began - rtt * (sent // len(block) // _AT_ONCE)
        return rtt, sent / max(seconds, 1e-9)

    def _asked(self, blocks: list) -> float:
        """Seconds until the peer has answered these messages."""
        began, number = time.perf_counter(), self._answered
        for block in [[block] for block in blocks] or [[]]:
            number += 1
            self._queue_up([codec.pack(Ask.encode(number)), *block])
        self.wait_until(lambda: self._answered >= number)
        return time.perf_counter() - began

    def refuse(self, token: int, kind: str, args: list, text: str) -> None:
        """An error in place of the bytes."""
        self._post([codec.pack(Broken.encode(token, kind, args, text[-limits.LONG_TEXT // 4 :]))])

    def give_up(self, why: str) -> None:
        """The peer gets this error, whatever it waits for."""
        if self.usable:
            with contextlib.suppress(RgpuError):  # it may be lost by now, or have told us the same
                self.refuse(0, "PeerLost", [why], "")

    def _post(self, frames: list) -> None:
        self._queue_up(frames)
        self._drain()

    def _queue_up(self, frames: list) -> None:
        with self._sending:
            self._queue.append(frames)
            self._queued += sum(map(len, frames))

    def _drain(self) -> None:
        """Give the session what its window takes."""
        queue, session = self._queue, self.connection.session
        with self._sending:
            while self._replies:
                queue.append(self._replies.popleft())
                self._queued += len(queue[-1][0])
            while queue and session.can_send(nbytes := sum(map(len, queue[0]))):
                self.connection.post(queue.popleft())
                self._queued -= nbytes

    def settle(self) -> None:
        """Wait until the peer holds everything sent so far: its memory may change again."""
        target = [0]

        def held() -> bool:
            progress = self.connection.session.progress
            target[0] = progress[0]
            return not self._queue and not self._lent and progress[1] >= target[0]

        if not held():
            self.wait_until(held)

    def settled(self) -> bool:
        """Whether it does."""
        sent, received, _ = self.connection.session.progress
        return not self._queue and sent == received

    def deliver(self, deadline: float) -> None:
        """Wait until the peer, which may still be on its way here, holds everything; not for one that is lost."""
        with contextlib.suppress(RgpuError):
            while not self.delivered() and self.usable and time.monotonic() < deadline:
                self._drain()
                self.connection.wait_until(self.delivered, min(deadline, time.monotonic() + LOOK))

    def delivered(self) -> bool:
        """Whether that is so. Who has just come waits for the answer to its greeting, whatever it has by then."""
        sent, received, _ = self.connection.session.progress
        if self._queue or self._replies or sent != received:
            return False
        return not sent or self._hello is None

    # ---- receiving -------------------------------------------------------------------------------

    def receive(self, token: int, place: memoryview) -> None:
        """Wait for the bytes of a token; they fill ``place`` exactly. Raises what the sender sent instead."""
        self._await(token, self._open(token, place), lambda arrival: arrival.missing == 0)

    def look(self, token: int) -> tuple[bytes, int] | None:
        """Wait for the first of a token: ``(ticket, bytes)`` if something is lent, None if bytes come."""
        with self._lock:
            arrival = self._arrivals.setdefault(token, _Arrival())
        self._await(token, arrival, lambda arrival: arrival.ticket is not None or arrival.missing >= 0)
        return arrival.ticket

    def give_back(self, token: int, done: bool) -> None:
        """What was lent has been copied, or could not be: then its bytes come."""
        with self._lock:
            self._arrivals[token].ticket = None
            if done:
                del self._arrivals[token]
        self._post([codec.pack(Returned.encode(token, done))])

    def _await(self, token: int, arrival: _Arrival, there: Callable[[_Arrival], bool]) -> None:
        try:
            self.wait_until(lambda: there(arrival) or arrival.error is not None or self._given_up is not None)
            if not there(arrival):
                raise arrival.error or self._given_up  # type: ignore[misc]
        except BaseException:
            self.drop(token)
            raise
        with self._lock:
            if not arrival.missing:
                self._arrivals.pop(token, None)

    def _open(self, token: int, place: memoryview) -> _Arrival:
        with self._lock:
            arrival = self._arrivals.setdefault(token, _Arrival())
            arrival.place = place
            if arrival.missing not in (-1, len(place)):
                arrival.error = ValueError(f"{arrival.missing} bytes came for an array of {len(place)}")
                arrival.place = None
                return arrival
            arrival.missing = len(place)
            held, arrival.held = arrival.held, []
        for offset, chunk in held:
            place[offset : offset + len(chunk)] = chunk
        with self._lock:
            arrival.missing -= sum(len(chunk) for _, chunk in held)
        if held:
            self.connection.mark_done(len(held))
        return arrival

    def drop(self, token: int) -> None:
        """Nobody will ask for this token: what comes is thrown away."""
        with self._lock:
            arrival = self._arrivals.setdefault(token, _Arrival())
            held, arrival.held, arrival.dropped = arrival.held, [], True
            lent = arrival.ticket is not None
            arrival.missing -= sum(len(chunk) for _, chunk in held)
            if held and arrival.missing <= 0:
                del self._arrivals[token]
        if held:
            self.connection.mark_done(len(held))
        if lent:
            self.give_back(token, True)

    def _sink(self, frames: list) -> memoryview | None:
        """Where a piece belongs, so that it is received in place."""
        if len(frames) != 1:
            return None
        message = Peer.decode(codec.unpack(frames[0]))
        if type(message) is not Piece.Record:
            return None
        arrival = self._arrivals.get(message.token)
        if arrival is None or arrival.place is None or arrival.dropped or message.total != len(arrival.place):
            return None
        return arrival.place[message.offset : message.offset + limits.FRAME_BYTES] or None

    def _arrived(self, frames: list) -> None:
        """One message of the peer, in whichever thread moved the connection on, inside its lock."""
        message = Peer.decode(codec.unpack(frames[0]))
        if isinstance(message, Piece.Record):
            if self._take_piece(message, frames):
                self.connection.mark_done(1)
            return
        if isinstance(message, Greeting.Record):
            self.greeting = message
            self.meet(message.host)
            if self._hello is not None:
                self._replies.append(self._hello)
                self._hello = None
        elif isinstance(message, Ask.Record):
            self._replies.append([codec.pack(Answer.encode(message.number))])
        elif isinstance(message, Answer.Record):
            self._answered = message.number
        elif isinstance(message, Lent.Record):
            self._take_ticket(message)
        elif isinstance(message, Returned.Record):
            array, lend = self._lent.pop(message.token, (None, None))
            if lend is not None and not message.done:
                self._tickets = False
                self._owed.append((message.token, lend))
        elif isinstance(message, Broken.Record):
            error = Poison((0, 0), message.kind, list(message.args), message.traceback)
            with self._lock:
                if message.token:
                    self._arrivals.setdefault(message.token, _Arrival()).error = error
                else:
                    self._given_up = error
        self.connection.mark_done(1)

    def _take_ticket(self, message: Any) -> None:
        with self._lock:
            arrival = self._arrivals.setdefault(message.token, _Arrival())
            if not arrival.dropped:
                arrival.ticket = message.ticket, message.total
                return
            del self._arrivals[message.token]
        self._replies.append([codec.pack(Returned.encode(message.token, True))])

    def _take_piece(self, piece: Any, frames: list) -> bool:
        """Whether the piece is done with; one that nobody has asked for yet keeps its place in the window."""
        chunk = memoryview(frames[1]).cast("B") if len(frames) > 1 else memoryview(b"")
        if piece.offset + len(chunk) > piece.total:
            raise ProtocolError("a piece reaches beyond its array")
        with self._lock:
            arrival = self._arrivals.setdefault(piece.token, _Arrival())
            if arrival.missing < 0:
                arrival.missing = piece.total
            if arrival.dropped:
                arrival.missing -= len(chunk)
                if arrival.missing <= 0:
                    del self._arrivals[piece.token]
                return True
            if arrival.place is None:
                arrival.held.append((piece.offset, chunk))
                return False
            place = arrival.place
            if piece.total != len(place):
                arrival.error = ValueError(f"{piece.total} bytes came for an array of {len(place)}")
                return True
            target = place[piece.offset : piece.offset + len(chunk)]
            if len(chunk) and _address(chunk) != _address(target):
                target[:] = chunk
            arrival.missing -= len(chunk)
            return True

    # ---- waiting and the end -----------------------------------------------------------------------

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Move the connection on until the condition holds; PeerLost when there is nobody any more."""
        self._movers.append(None)
        self._alone.clear()

        def done() -> bool:
            if self._queue or self._replies:
                self._drain()
            return condition()

        try:
            if self.connection.wait_until(done, time.monotonic() + SOON):
                return
            with self._away():
                while not self.connection.wait_until(done, time.monotonic() + LOOK):
                    self._look()
        except SessionLost as error:
            raise self._lost() from error
        finally:
            self._movers.pop()
            self._alone.set()

    def _look(self) -> None:
        since = self.connection.down_since
        if since is None:
            self._met = True
            return
        patience = PATIENCE if self._met else WELCOME
        if time.monotonic() - since > patience and self.connection.failure is None:
            self.connection.fail(self._lost())

    def _lost(self) -> PeerLost:
        found = self.connection.failure
        if isinstance(found, PeerLost):
            return PeerLost(*found.args)
        why = f": {found}" if found is not None else ""
        return PeerLost(f"the worker of {self.name} is gone, or cannot be reached from here any more{why}")

    @property
    def usable(self) -> bool:
        return self.connection.failure is None

    def _serve(self) -> None:
        connection = self.connection
        try:
            while connection.failure is None:
                if self._movers:  # whoever waits moves the connection on by itself
                    self._alone.wait(LOOK)
                else:
                    connection.wait(LOOK)
                # Even if somebody began to wait meanwhile: our waiting may have used up the signal of a message.
                connection.pump()
                self._drain()
                while self._owed:
                    token, lend = self._owed.popleft()
                    self.send(token, lend())
                self._look()
        except SessionLost:
            pass
        except Exception as error:
            log.warning("the connection to %s ended: %s", self.name, error)
            connection.fail(PeerLost(f"the connection to {self.name} failed: {error}"))
        if not self._closed:
            connection.abort()

    def close(self, seconds: float = 0.0) -> None:
        """End; what was sent leaves within ``seconds``."""
        self._closed = True
        deadline = time.monotonic() + seconds
        while self._queue and self.usable and time.monotonic() < deadline:
            try:
                self._drain()
                self.connection.wait_until(lambda: not self._queue, time.monotonic() + 0.02)
            except RgpuError:
                break
        self.connection.close()
        if threading.current_thread() is not self._thread:
            self._thread.join(2.0)


def _address(data: memoryview) -> int:
    return np.frombuffer(data, np.uint8).__array_interface__["data"][0]
