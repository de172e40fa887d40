"""One stream of commands to several workers: the connection of a device that is redundant, or on its way elsewhere.

To ``CommandStream`` it looks like a ``Connection``. Every message goes to each half, over a session of its own; an
answer is delivered when all halves that owe it have given it and agree. The first half sends results, the others their
digests. A half that is lost is left out; ``client.silver`` makes new ones. Never repeats a command anywhere.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from typing import Any

from rgpu.client import failures
from rgpu.client.compare import Content, difference
from rgpu.client.queue import next_reply, reserve_handles
from rgpu.client.seat import Seat
from rgpu.errors import RgpuError, ServerLost, SessionLost
from rgpu.session import Connection
from rgpu.wire import codec, ops

LOOK = 0.1  # seconds between looks at whether a half that was asked something is there
SLICE = 0.01  # seconds that one half is waited for before the others are looked at
PATIENCE = 3.0  # seconds that a half's link may be down before the other goes on alone
SERVER_LOST_AFTER = 1.5  # the same, when its server does not answer either
ANSWER = 60.0  # seconds that a half has to answer a question of ours: it may have work queued
_TOLD = 4096  # failures that are known, so that the other half's are not told again


class Half:
    """One worker of a mirrored stream, and the questions that it alone is asked."""

    peers_lost = 0

    def __init__(self, mirror: Mirror, seat: Seat, connection: Connection | None = None) -> None:
        self.joint, self.seat = mirror, seat
        self.name, self.daemon, self.device = seat.name, seat.daemon, self  # as ``client.peer`` wants them
        self.whole = True  # has the state of the stream
        self.lost: BaseException | None = None
        self.leeway = 0
        self.failures: list[Any] = []  # of what it alone was sent
        self._base = mirror.stream.batch
        self._past: list[int] = []  # which of its messages were for it alone
        self._content: dict[int, list] = {}  # reads in parts: [buffer, bytes so far]
        self.connection = connection or seat.connect(self._heard, None)
        self.connection.route(self._heard, self._sink)

    def __repr__(self) -> str:
        return f"<Half {self.name}{'' if self.whole else ' (being silvered)'}>"

    # What it alone is asked: past the queue

    def post_past(self, commands: list) -> None:
        self._past.append(self.connection.progress[0])
        self.connection.post([codec.pack([0, commands])], time.monotonic() + ANSWER)

    def submit(self, command: tuple) -> None:
        self.post_past([command])

    def inquire(self, fn: int, args: list) -> Any:
        number = next_reply()
        return self._question(number, ops.Ask.encode(number, fn, reserve_handles(), args, {}))

    def ask(self, fn: int, args: list, _kwargs: dict) -> Any:
        return self.inquire(fn, args)

    def sync(self) -> None:
        """Wait until it has done everything that it was sent; raises what went wrong with what it alone was sent."""
        number = next_reply()
        self._question(number, ops.Sync.encode(number))
        if self.failures:
            failure = failures.Failure(self.failures[0], None, self.name)
            raise SessionLost(f"the worker of {self.name} could not take over the state: {failure.line()}")

    def _question(self, number: int, command: tuple) -> Any:
        mirror = self.joint
        mirror.private[number] = self
        try:
            self.post_past([command])
            answers = mirror.stream.answers
            deadline = time.monotonic() + ANSWER
            while number not in answers and self.lost is None and time.monotonic() < deadline:
                self.connection.wait_until(lambda: number in answers, time.monotonic() + LOOK)
                self._check()
            if number not in answers:
                raise self.lost or SessionLost(f"the worker of {self.name} did not answer within {ANSWER:g} s")
        finally:
            mirror.private.pop(number, None)
        answer = answers.pop(number)
        if isinstance(answer, failures.Failure):
            raise answer.exception()
        return answer

    def _check(self) -> None:
        """Raise if it will not answer."""
        self.joint.stream.look_after()
        since, failure = self.connection.down_since, self.connection.failure
        if failure is not None:
            raise failure
        if since is not None and self not in self.joint.halves and time.monotonic() - since > 2 * PATIENCE:
            raise ServerLost(f"the worker of {self.name} cannot be reached")

    def done(self) -> int:
        """The last batch of the stream that it has executed."""
        count = self.connection.progress[2]
        return self._base + count - bisect_left(self._past, count)

    # What it says: inside its connection's lock

    def _sink(self, frames: list) -> memoryview | None:
        mirror = self.joint
        return mirror.stream.place(frames) if mirror.halves[:1] == (self,) else None

    def _heard(self, frames: list) -> None:
        self.connection.mark_done(1)
        reply = ops.Reply.decode(codec.unpack(frames[0]))
        if isinstance(reply, ops.Data.Record):
            self._heard_data(reply, frames)
        elif isinstance(reply, ops.Leeway.Record):
            self.leeway = max(self.leeway, reply.level)
        elif isinstance(reply, ops.Leave.Record):
            self.joint.stream.on_leave(self)
        elif isinstance(reply, ops.Failed.Record) and not reply.reply_to:
            self.joint.failed(self, reply)
        else:
            self.joint.answered(self, reply.reply_to, reply)

    def _heard_data(self, reply: Any, frames: list) -> None:
        """A part of a read: into its place if we are the first, else into memory of its own."""
        mirror, number = self.joint, reply.reply_to
        place = mirror.stream.place_of(number)
        if place is None:  # the reader gave up
            self._content.pop(number, None)
            mirror.forget(number)
            return
        flat, dtype = place
        if reply.offset == 0:
            first = mirror.halves[:1] == (self,)
            self._content[number] = [flat if first else memoryview(bytearray(len(flat))), 0]
        content = self._content[number]
        content[1] += mirror.stream.fill(content[0], reply.offset, frames)
        if content[1] >= len(flat):
            del self._content[number]
            mirror.answered(self, number, Content(content[0], dtype))


class Mirror:
    """``wanted``: how many halves there should be; ``find(halves)`` names a seat for another
    one, ``on_loss`` is told that one is wanted."""

    link: Any = None

    def __init__(
        self,
        stream: Any,
        seat: Seat,
        wanted: int,
        find: Callable[[list[Half]], Seat],
        on_loss: Callable[[Mirror], None] = lambda mirror: None,
    ) -> None:
        self.stream, self.wanted, self.find, self.on_loss = stream, wanted, find, on_loss
        self.failure: BaseException | None = None
        self.private: dict[int, Half] = {}
        self.note = ""  # why there are fewer halves than there should be
        self.takeovers = 0
        self._judging = threading.RLock()  # inside connections' locks, never around one
        self._answers: dict[int, dict[Half, Any]] = {}
        self._told: dict[tuple, None] = {}
        self._todo: deque[Callable[[], None]] = deque()
        self._gone = {"bytes_sent": 0, "bytes_received": 0, "reconnects": 0}  # of halves that are no more
        self.halves: tuple[Half, ...] = ()  # whole ones first; the first of all sends results
        self.healing: threading.Thread | None = None
        self.over = threading.Event()
        self.halves = (Half(self, seat, stream.connection),)

    # Members

    @property
    def whole(self) -> list[Half]:
        return [half for half in self.halves if half.whole]

    @property
    def several(self) -> bool:
        """Whether commands are run more than once, or should be."""
        return self.wanted > 1 or len(self.halves) > 1

    def alike(self) -> int:
        """The highest leeway within which all halves give equal bits."""
        kinds = {(half.seat.info["kind"], half.seat.info["name"]) for half in self.halves}
        return 0 if len(kinds) > 1 else 2 if self.halves[0].seat.info["kind"] in ("cpu", "sim") else 1

    def tell(self, half: Half) -> None:
        """A half, what it is now."""
        second = half is not self.halves[0]
        alike = self.alike()
        half.post_past([ops.Twin.encode(second, alike, len(self.whole), max(self.wanted, len(self.halves)))])

    def join(self, half: Half) -> None:
        """From the next message on it gets everything. The stream's lock is held."""
        with self._judging:
            self.halves = (*self.halves, half)

    def admit(self, half: Half) -> None:
        """From the next question on it owes answers. The stream's lock is held, and every question answered: one that
        the other halves alone had heard would be nobody's when they are lost."""
        with self._judging:
            half.whole = True
            self.halves = (*self.whole, *[other for other in self.halves if not other.whole])
        self.tell_all()

    def tell_all(self) -> None:
        for half in self.halves:
            try:
                self.tell(half)
            except (RgpuError, TimeoutError) as error:
                self.lose(half, error)

    def part(self, half: Half) -> None:
        """Let a half go that has answered everything. The stream's lock is held."""
        with self._judging:
            self.halves = tuple(other for other in self.halves if other is not half)
        self._forget(half)
        self.tell_all()

    def lose(self, half: Half, error: BaseException) -> None:
        """A half is gone: the others go on, or that was the last."""
        with self._judging:
            if half.lost is not None or half not in self.halves:
                return
            half.lost = error
            left = tuple(other for other in self.halves if other is not half)
            alive = any(other.whole for other in left)
            if alive:
                self.halves = left
        if not alive:
            self.stream.lose(error)
            return
        self._forget(half)
        half.connection.abort()
        self.takeovers += half.whole
        self.note = str(error)
        self._todo.append(self._go_on)
        with self._judging:
            for number in list(self._answers):
                self._judge(number)
        if half.whole:
            self.on_loss(self)

    def _forget(self, half: Half) -> None:
        for name in self._gone:
            self._gone[name] += half.connection.stats[name]

    def _go_on(self) -> None:
        """Those that are left hear of it; the first sends what the one before it had not sent."""
        self.tell_all()
        again = [ops.Again.encode(number) for number in self.stream.reads()]
        if again and self.failure is None:
            first = self.halves[0]
            try:
                first.post_past(again)
            except (RgpuError, TimeoutError) as error:
                self.lose(first, error)

    def tend(self) -> None:
        """Do what is to be done about a loss. The stream's lock is held."""
        while self._todo:
            self._todo.popleft()()

    @property
    def untended(self) -> bool:
        return bool(self._todo)

    # Answers

    def _owes(self, half: Half, number: int) -> bool:
        alone = self.private.get(number)
        return alone is half if alone is not None else half.whole

    def answered(self, half: Half, number: int, answer: Any) -> None:
        with self._judging:
            if self._owes(half, number) and half.lost is None:
                self._answers.setdefault(number, {})[half] = answer
                self._judge(number)

    def forget(self, number: int) -> None:
        with self._judging:
            self._answers.pop(number, None)

    def _judge(self, number: int) -> None:
        """Deliver an answer that all have given."""
        given = self._answers[number]
        alone = self.private.get(number)
        owing = [half for half in ((alone,) if alone else self.halves) if self._owes(half, number)]
        if not owing or any(half not in given for half in owing):
            return
        first, *others = owing
        answer = given[first]
        if isinstance(answer, ops.Digest.Record):
            return  # its data are asked for: it is the first only since the other is gone
        del self._answers[number]
        own = number in self.stream.own
        for other in others:
            found = difference(answer, given[other], max(first.leeway, other.leeway), own)
            if found:
                self.stream.diverged(number, f"{first.name} has {found[0]}, {other.name} has {found[1]}")
                return
        self.stream.settled(number, answer, retire=self.several)

    def failed(self, half: Half, reply: Any) -> None:
        """A command that nobody waited for has failed; both halves say so."""
        if not reply.batch:
            half.failures.append(reply)
            return
        where = reply.batch, reply.index
        with self._judging:
            if where in self._told:
                return
            self._told[where] = None
            if len(self._told) > _TOLD:
                del self._told[next(iter(self._told))]
        self.stream.heard(reply)

    # What a Connection does

    def can_send(self, nbytes: int) -> bool:
        return all(half.connection.can_send(nbytes) for half in self.halves)

    def post(self, frames: list, deadline: float | None = None) -> None:
        for half in self.halves:
            try:
                half.connection.post(frames, deadline)
            except RgpuError as error:
                self.lose(half, error)
        if self.failure is not None:
            raise self.failure

    def keep(self, posted: list[tuple[int, list]], patience: float, copy: Callable[[Any], Any] = bytes) -> None:
        """See ``Connection.keep``; the messages are those of every half."""
        for half in self.halves:
            half.connection.keep([(1 << 62, frames) for _, frames in posted], patience, copy)

    def pump(self) -> bool:
        arrived = False
        for half in self.halves:
            arrived |= half.connection.pump()
            error = half.connection.failure
            if error is not None and self.failure is None:
                self.lose(half, error)
        return arrived

    def wait_until(self, condition: Callable[[], bool], deadline: float | None = None, pumped: bool = False) -> bool:
        """See ``Connection.wait_until``."""
        while True:
            if not pumped:
                self.pump()
            pumped = False
            slowest = self._slowest()
            seen = slowest.connection.arrivals
            if condition():
                return True
            if self.failure is not None:
                raise self.failure
            left = SLICE if deadline is None else min(SLICE, deadline - time.monotonic())
            if left <= 0:
                return False
            slowest.connection.wait(left, seen)

    def _slowest(self) -> Half:
        """Whom the others wait for."""
        with self._judging:
            for given in self._answers.values():
                for half in self.whole:
                    if half not in given:
                        return half
        return max(self.halves, key=lambda half: half.connection.session.unfinished[0])

    @property
    def down_since(self) -> float | None:
        times = [since for half in self.halves if (since := half.connection.down_since) is not None]
        return min(times, default=None)

    def look_after(self) -> None:
        """Ask what became of halves whose link is down."""
        for half in self.halves:
            since = half.connection.down_since
            if since is None:
                continue
            spare = len(self.whole) > 1 or not half.whole
            error = half.seat.fate(since, SERVER_LOST_AFTER if spare else None)
            if error is None and spare and half.seat.silent > PATIENCE:
                error = ServerLost(f"the worker of {half.name} could not be reached for {half.seat.silent:.1f} s")
            if error is not None and half.connection.down_since is not None:
                self.lose(half, error)

    def held(self) -> bool:
        """As a connection's."""
        return any(half.connection.held() for half in self.halves)

    @property
    def inside(self) -> bool:
        """As a connection's."""
        return any(half.connection.inside for half in self.halves)

    @property
    def progress(self) -> tuple[int, int, int]:
        """In batches of the stream: sent, (nobody asks), done by somebody who should know."""
        done = max((half.done() for half in self.halves if half.whole), default=0)
        return self.stream.batch, done, done

    def fail(self, failure: BaseException) -> None:
        self.failure = self.failure or failure
        self.over.set()
        for half in self.halves:
            half.connection.fail(failure)

    def close(self) -> None:
        self.over.set()
        for half in self.halves:
            half.connection.close()
        self.failure = self.failure or SessionLost("the session was closed")

    def abort(self) -> None:
        self.over.set()
        for half in self.halves:
            half.connection.abort()
        self.failure = self.failure or SessionLost("the session was aborted")

    @property
    def stats(self) -> dict[str, int]:
        each = [self._gone, *[half.connection.stats for half in self.halves]]
        return {name: sum(stats[name] for stats in each) for name in self._gone}

    def __repr__(self) -> str:
        return f"<Mirror {list(self.halves)!r}>"
