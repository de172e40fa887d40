"""The door that commands leave by: one ``CommandStream`` per leased device.

``submit`` queues a command and never waits; ``ask``, ``read`` and ``sync`` wait for an answer and
are the only round trips. Batches leave by size, by a wait, or by the idle tick, never by the
user. Errors of commands nobody waited for are kept until the next wait.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rgpu.client import failures
from rgpu.client.compare import Content
from rgpu.client.profile import Profile
from rgpu.client.queue import BATCH, FORKED, Queue, next_handle, next_reply, reserve_handles
from rgpu.client.reading import COMMANDS, Reading
from rgpu.client.shield import shield
from rgpu.client.stats import Counters
from rgpu.client.ticker import ticker
from rgpu.client.uploads import Uploads
from rgpu.client.writing import Writing
from rgpu.errors import ForkError, ProtocolError, SessionLost
from rgpu.link.base import PLACED
from rgpu.session import Connection, Session
from rgpu.wire import codec, limits, ops, values
from rgpu.wire.functions import MEETING, OWN, TABLE

GROWTH = 8  # times as many commands in each batch that follows an early one, up to BATCH
_LOOKS = 3  # ticks after which a batch leaves though it still grows
_PATIENCE = 0.05  # seconds between looks at the link's health and at Ctrl-C while waiting
CLOSE = 1.0  # seconds that closing waits for the last answers
INTERRUPTS = "a finalizer that interrupts the sending of a message cannot wait for the device"

__all__ = ["BATCH", "CommandStream", "forked", "next_handle", "reserve_handles"]
_T_EXPECT = ops.Expect.tag
_streams: weakref.WeakSet[CommandStream] = weakref.WeakSet()


class CommandStream(Reading, Writing, Queue):
    """Commands to one worker, in one session."""

    def __init__(
        self,
        session: Session,
        link: Any,
        *,
        name: str = "",
        blocking: bool = False,
        check: bool = False,
        on_silence: Callable[[CommandStream], None] | None = None,
        profile: Profile | None = None,
        replay: bool = False,
        uploads: str = "off",
    ) -> None:
        super().__init__()
        self.connection: Any = Connection(session, link, on_message=self._receive, sink=self.place)
        self.mirror: Any = None  # the connection, when there is more than one worker (``client.mirror``)
        self.own: set[int] = set()  # questions that each worker answers for itself
        self.on_leave: Callable[[Any], None] = lambda half: None  # the server is being drained
        self.name = name
        self.blocking, self.check, self._profile = blocking, check, profile
        self.replay = replay and profile is None  # a profile looks at each command
        self.uploads = Uploads(uploads)
        self.noted: tuple | None = None  # see ``client.quick``
        self.counters = Counters()
        self.lock = threading.RLock()
        self.closed = False
        self.peers_lost = 0  # copies between devices that failed on the way: ``client.peer`` looks at it
        self.direct = not blocking
        self._inline = 0  # bytes of data inside the pending commands
        self._sending = False  # from when commands leave the queue until their message is numbered
        self._seen = (0, 0, 0)  # batch, pending entries and how often the ticker saw them
        self._replies: dict[int, Any] = {}
        self._abandoned: set[int] = set()  # replies that an interrupted thread no longer waits for
        self._early: dict[int, list] = {}  # data that came before it was said where they belong
        self._sinks: dict[int, tuple[memoryview, list, np.dtype]] = {}
        self._plain: dict[bytes, tuple[int, memoryview]] = {}  # answers that can be told by their bytes alone
        self._failed: list[failures.Failure] = []
        self._failed_lock = threading.RLock()
        self._goodbye: int | None = None  # the reply that closing waits for
        self._on_silence = on_silence
        self._asked_at = 0.0
        settle()
        ticker.add(self)
        _streams.add(self)

    def __repr__(self) -> str:
        return f"<CommandStream {self.name} unsent={self.unsent} {self.connection!r}>"

    # ---- submit: never waits --------------------------------------------------------------------

    def submit(self, command: tuple) -> None:
        """Queue one command. Raises only what ended the session."""
        self.add(command, failures.place_of(sys._getframe(1)))
        if self.blocking:
            self.sync()
        elif self.unsent >= self.ripe:
            self.flush_batch()

    def submit_predicted(self, command: tuple, handles: Any, metas: Any) -> None:
        """Queue a command with the layouts the client predicted for its results."""
        self.submit(command)
        if self.check:
            for handle, meta in zip(handles, metas):
                self.submit((_T_EXPECT, handle, meta.wire, meta.shape, meta.strides))

    def expect(self, array: Any) -> None:
        """RGPU_CHECK_PREDICTION, for commands that operators enter themselves."""
        meta = array._metadata
        self.submit((_T_EXPECT, array._handle, meta.wire, meta.shape, meta.strides))

    def put(self, handle: int, dtype: Any, shape: tuple, data: bytes) -> None:
        """Queue a small array with its data."""
        self._inline += len(data)
        self.submit(ops.Put.encode(handle, dtype, shape, data))
        if self._inline > 4 * limits.CHUNK_BYTES:
            self.flush()

    # ---- sending --------------------------------------------------------------------------------

    def entry(self) -> Any:
        """The stream's lock, for ``with``. Who has it may wait for the connection's: a finalizer that comes to a thread
        which has that one must not wait for this one."""
        if not self.connection.held():
            return self.lock
        if not self.lock.acquire(blocking=False):
            raise RuntimeError(INTERRUPTS)
        entered = contextlib.ExitStack()  # no handler of a signal comes here, between the two
        entered.callback(self.lock.release)
        return entered

    def flush(self, deadline: float | None = None, last: tuple | None = None) -> bool:
        """Send what is queued, waiting while the window is full; False if the deadline came first. Behind it, in the
        same message, leaves ``last``: a command, encoded, where it came from, and a payload frame."""
        self._check_usable()
        if self.connection.inside:
            raise RuntimeError(INTERRUPTS)
        with self.entry():
            if self._sending:
                raise RuntimeError(INTERRUPTS)
            if self.mirror is not None:
                self.mirror.tend()
            self.gather()
            left = self.unsent  # what a handler adds at every line of this waits for the next time
            while left > (limits.BATCH - 1 if last else 0) and (before := self.unsent):
                if not self._send_batch(True, deadline):
                    return False
                left -= max(1, before - self.unsent)
            return last is None or self._send_batch(True, deadline, last)

    def flush_batch(self) -> None:
        """Send a full batch, though not the beginning of a repetition whose end is still to come; or a smaller one to
        a worker that has just answered and has nothing to do, if it can leave at once."""
        self._check_usable()
        if self.connection.inside:
            return  # a finalizer has come into what only the session should do now: the ticker sends it
        with self.entry():
            if self._sending:
                return
            if self.unsent >= BATCH:  # else another thread was here first
                self._send_batch(False)
            elif self.unsent >= self.ripe:
                self.ripe = min(GROWTH * self.ripe, BATCH)
                self._send_batch(True, 0.0)

    def _send_batch(self, whole: bool, deadline: float | None = None, last: tuple | None = None) -> bool:
        """Send the first commands of the queue as one message; the lock is held."""
        command, place, data = last or (b"", None, b"")
        room = self._inline + COMMANDS + len(data)
        how = (limits.BATCH - 1, whole, command, *(place or ())) if last else (limits.BATCH, whole)
        before, plain = self.batch, self._profile is None and self.mirror is None
        if plain and self.connection.leave(self, how, data if last else None, room):
            self._inline = 0
        elif not self._await_room(room, deadline):
            return False
        else:
            with shield:
                self._sending = True
                try:
                    body = self.take(*how)
                    self._inline = 0
                    if body:
                        self._post([body, data] if last else [body])
                finally:
                    self._sending = False
        if self.batch == before:
            self.gather()  # handles freed meanwhile are no command yet
        return True

    def _await_room(self, nbytes: int, deadline: float | None = None) -> bool:
        """Until the window takes a message of nbytes. A deadline of 0 only looks."""
        if self._profile is not None and deadline is None and not self.connection.can_send(nbytes):
            with self._profile.waiting(sys._getframe(1), "room"):
                self._move_on(lambda: self.connection.can_send(nbytes))
        while not self.connection.can_send(nbytes):
            if deadline is not None and time.monotonic() >= deadline:
                return False
            self._move_on(lambda: self.connection.can_send(nbytes))
        return True

    def _post(self, frames: list) -> None:
        """Send the message that was numbered last."""
        if self._profile is not None:
            self._profile.batch(frames, self.places(self.batch))
        try:
            self.connection.post(frames)
        except BaseException as error:
            if error is self.connection.failure:
                raise failures.fresh(error) from error.__cause__
            raise
        if self.batch % 64 == 0:
            self.connection.pump()

    def tick(self) -> bool:
        """The ticker's look: send a batch that has stopped growing, move the link on. Whether
        something is left to send. Never waits."""
        self.armed = False  # whoever queues something from here on says so
        batch, count = self.batch, self.unsent
        if count:
            if batch != self._seen[0]:  # full batches are leaving: their sender must not wait for us
                self._seen = (batch, count, 0)
                return True
            looks = self._seen[2] + 1
            if looks >= _LOOKS or self._seen[:2] == (batch, count):
                self._flush_if_possible()
            self._seen = (batch, count, looks)
        self.connection.pump()
        if self.connection.down_since is not None:
            self.look_after()
        self._tend()
        return bool(self.unsent)

    def lose_after(self, seconds: float) -> None:
        """There is nobody to ask: a link that is down for so long is lost."""

        def look(_: CommandStream) -> None:
            since = self.connection.down_since
            if since is not None and time.monotonic() - since > seconds:
                self.lose(SessionLost(f"{self.name} does not answer"))

        self._on_silence = look

    def lose(self, error: Exception) -> None:
        """The session is over, and this says how; its cause says what nobody can confirm any more."""
        sent, _, done = self.connection.progress
        batches = [self.places(number) for number in range(done + 1, sent + 1)]
        places = [place for batch in batches for place in batch or ()]
        error.__cause__ = failures.unconfirmed(places, batches.count(None), self.unsent)
        self.connection.fail(error)

    def _flush_if_possible(self) -> None:
        if self.lock.acquire(blocking=False):  # else somebody is sending already
            try:
                self.flush(deadline=0.0)
            finally:
                self.lock.release()

    # ---- waiting --------------------------------------------------------------------------------

    def ask(self, fn: int, args: list, kwargs: dict) -> Any:
        """Run a function and wait for its answer, still in wire form; handles start at its base."""
        reply, base = next_reply(), reserve_handles()
        with self._answered_alone(reply, fn):
            self._queue(ops.Ask.encode(reply, fn, base, args, kwargs))
            return self._wait(reply, TABLE[fn].name)

    @contextlib.contextmanager
    def _answered_alone(self, reply: int, fn: int) -> Iterator[None]:
        """Inside, two workers may give different answers, if that is what the function is about."""
        if fn in MEETING and self.mirror is not None and self.mirror.wanted > 1:
            raise NotImplementedError(f"{self.name} is redundant: communicators need devices without redundancy")
        if fn not in OWN:
            yield
            return
        self.own.add(reply)
        try:
            yield
        finally:
            self.own.discard(reply)

    def raise_failed(self) -> None:
        """Raise the oldest error of a command that nobody waited for."""
        self._raise_unseen(lambda failure: True)

    # ---- past the queue: for whoever holds the lock, and so one point of the stream ------------------------------

    def post_past(self, commands: list) -> None:
        """Send commands now; what is queued stays there."""
        self._await_room(len(codec.pack(commands)) + COMMANDS)
        with shield:
            before, self._sending = self._sending, True
            try:
                self._post([codec.pack([self.leave([None] * len(commands)), commands])])
            finally:
                self._sending = before

    def inquire(self, fn: int, args: list) -> Any:
        """``ask``, past the queue."""
        reply = next_reply()
        with self._answered_alone(reply, fn):
            self.post_past([ops.Ask.encode(reply, fn, reserve_handles(), args, {})])
            return self._awaited(reply, flush=False)

    def fetch(self, handle: int, out: np.ndarray) -> None:
        """``read`` bytes, past the queue."""
        reply = next_reply()
        self._sinks[reply] = (memoryview(out), [0], out.dtype)
        try:
            self.post_past([ops.Read.encode(reply, handle, 0, "|u1", out.shape)])
            self._awaited(reply, flush=False)
        finally:
            self._sinks.pop(reply, None)

    def _queue(self, command: tuple) -> None:
        """Queue a command that waits by itself: the caller sends it, and the ticker need not wake up for it."""
        with self.entry():
            self.gather()
            armed, self.armed = self.armed, True
            try:
                self.add(command, failures.place_of(sys._getframe(1)))
            finally:
                self.armed = armed

    def _raise_unseen(self, wanted: Callable[[failures.Failure], bool]) -> None:
        """Raise the oldest wanted error of a command that nobody waited for."""
        with shield, self._failed_lock:
            found = next((failure for failure in self._failed if wanted(failure)), None)
            if found is None:
                return
            self._failed = [other for other in self._failed if not other.told_by(found)]
        raise found.exception()

    def _raise_lost(self) -> None:
        """Raise an error that poisoned nothing: what the command should have changed looks unharmed."""
        self._raise_unseen(lambda failure: not failure.reply.handles)

    def _wait(self, reply: int, what: str = "completion", nbytes: int = 0) -> Any:
        """The answer. An error of this answer is raised; then one that could poison no result."""
        self.counters.round_trips += 1
        if self._profile is None:
            return self._awaited(reply)
        with self._profile.waiting(sys._getframe(1), what, nbytes):
            return self._awaited(reply)

    def _awaited(self, reply: int, flush: bool = True) -> Any:
        replies = self._replies
        try:
            if flush:
                self.flush()
            while reply not in replies:
                self._move_on(lambda: reply in replies, pumped=True)
        except BaseException:
            self._abandoned.add(reply)
            if self.unsent:
                ticker.arm()
            raise
        answer = replies.pop(reply)
        if isinstance(answer, failures.Failure):
            with shield, self._failed_lock:
                self._failed = [other for other in self._failed if not other.told_by(answer)]
            raise answer.exception()
        if self._failed:
            self._raise_lost()
        return answer

    def _move_on(self, condition: Callable[[], bool], pumped: bool = False) -> None:
        """Wait a moment for the condition; raises what ended the session, or the user's Ctrl-C."""
        connection = self.connection
        with shield:
            try:
                connection.wait_until(lambda: shield.noted or condition(), time.monotonic() + _PATIENCE, pumped)
            except BaseException as error:
                if error is connection.failure:
                    raise failures.fresh(error) from error.__cause__
                raise
        if connection.down_since is not None:
            self.look_after()
        self._tend()

    def _tend(self) -> None:
        """Do what the loss of one of two workers leaves to do, if nobody else is about it."""
        if self.mirror is not None and self.mirror.untended and self.lock.acquire(blocking=False):
            try:
                self.mirror.tend()
            finally:
                self.lock.release()

    def look_after(self) -> None:
        """The link is down: find out (not more than five times a second) whether the worker lives."""
        now, since = time.monotonic(), self.connection.down_since
        if self._on_silence and since is not None and now - since > 0.3 and now - self._asked_at > 0.2:
            self._asked_at = math.inf  # whoever interrupts this does not ask as well
            try:
                self._on_silence(self)
            finally:
                self._asked_at = time.monotonic()

    # ---- receiving: inside the connection's lock, so it must be quick ------------------------------

    def place(self, frames: list) -> memoryview | None:
        """Where the payload of a Data reply belongs, so that it is received in place."""
        if len(frames) != 1:
            return None
        message = codec.unpack(frames[0])
        if type(message) is list and message and message[0] == ops.Data.tag:
            reply = ops.Reply.decode(message)
            sink = self._sinks.get(reply.reply_to)
            if sink is not None and reply.offset < len(sink[0]):
                return sink[0][reply.offset : reply.offset + limits.FRAME_BYTES]
        return None

    def _receive(self, frames: list) -> None:
        """One reply, from whichever thread moved the connection on."""
        self.connection.mark_done(1)
        if self._plain and type(frames[0]) is bytes and (plain := self._plain.get(frames[0])) is not None:
            data = frames[1] if len(frames) == 2 else b""
            if len(data) == len(plain[1]):
                plain[1][:] = data
                self._answer(plain[0], None)
                return
        reply = ops.Reply.decode(codec.unpack(frames[0]))
        if isinstance(reply, ops.Data.Record):
            self._receive_data(reply, frames)
        elif isinstance(reply, ops.Leave.Record):
            self.on_leave(None)
        else:
            self.heard(reply)

    def heard(self, reply: Any) -> None:
        """An answer, or an error that nobody waited for."""
        if isinstance(reply, ops.Done.Record):
            self._answer(reply.reply_to, reply.value)
        elif isinstance(reply, ops.Failed.Record):
            place = None
            places = self.places(reply.batch) or ()
            if reply.index < len(places):
                place = places[reply.index]
            failure = failures.Failure(reply, place, self.name)
            self.peers_lost += reply.kind == "PeerLost"
            self.uploads.clear()  # among what failed may be what should have been kept
            if reply.reply_to:
                self._answer(reply.reply_to, failure)
            else:
                with self._failed_lock:
                    self._failed.append(failure)

    def _receive_data(self, reply: Any, frames: list) -> None:
        sink = self._sinks.get(reply.reply_to)
        if sink is None:
            if reply.reply_to not in self._abandoned:  # else the reader gave up (Ctrl-C)
                self._early.setdefault(reply.reply_to, []).append((reply, frames))
            return
        flat, received, _ = sink
        received[0] += self.fill(flat, reply.offset, frames)
        if received[0] >= len(flat):
            self._answer(reply.reply_to, None)

    def fill(self, flat: memoryview, offset: int, frames: list) -> int:
        """One chunk into its place, if it was not received there; its bytes."""
        chunk = memoryview(frames[1]).cast("B") if len(frames) > 1 else memoryview(b"")
        end = offset + len(chunk)
        if end > len(flat):
            raise ProtocolError("the worker sent more data than was asked for")
        target = flat[offset:end]
        if len(chunk) < PLACED or _address(chunk) != _address(target):  # else it was received in place
            target[:] = chunk
        return len(chunk)

    # What a mirror asks for; see there.

    @property
    def answers(self) -> dict[int, Any]:
        """Those that nobody has taken yet."""
        return self._replies

    def reads(self) -> list[int]:
        """Those that wait for data."""
        return list(self._sinks)

    def place_of(self, reply: int) -> tuple[memoryview, np.dtype] | None:
        """Where the data of a read belong, and what they are."""
        sink = self._sinks.get(reply)
        return None if sink is None else (sink[0], sink[2])

    def settled(self, reply: int, answer: Any, retire: bool) -> None:
        """All workers agree on an answer; ``retire``: some of them keep it until they hear that it has come."""
        if not isinstance(answer, Content):
            self.heard(answer)
            return
        place = self.place_of(reply)
        if place is not None and place[0] is not answer.data:
            place[0][:] = answer.data
        self._answer(reply, None)
        if retire and self._goodbye is None:
            self.add(ops.Retire.encode([reply]), None)

    def diverged(self, reply: int, text: str) -> None:
        """They do not agree."""
        self._answer(reply, failures.Diverged(text, self.name))

    def _answer(self, reply: int, answer: Any) -> None:
        if reply not in self._abandoned:
            self._replies[reply] = answer
            return
        self._abandoned.discard(reply)
        if not isinstance(answer, failures.Failure):  # arrays that nobody will ever name
            values.Decoder(lambda _: None, lambda handle, *_: self.free(handle))(answer)

    # ---- the end --------------------------------------------------------------------------------

    def say_goodbye(self) -> None:
        """Queue and send the last commands, without waiting for their answers."""
        if self._goodbye is None and not self.closed and self.connection.failure is None:
            self._goodbye = next_reply()
            self.gather()
            self.add(ops.Sync.encode(self._goodbye), None)
            self.add(ops.Bye.encode(), None)
            self.flush(deadline=time.monotonic() + CLOSE)

    def close(self, timeout: float = CLOSE) -> None:
        """Flush, say goodbye, hear of the last errors, and let the last messages leave."""
        if self.closed:
            return
        ticker.remove(self)
        deadline = time.monotonic() + timeout
        try:
            self.say_goodbye()
            while self._goodbye not in (None, *self._replies) and time.monotonic() < deadline:
                self._move_on(lambda: self._goodbye in self._replies)
        except (SessionLost, ProtocolError, ForkError):
            pass
        finally:
            self.closed, self.direct = True, False
            with shield:
                self.connection.close()
            self._report_unseen()

    def _report_unseen(self) -> None:
        """An error that never surfaced must not vanish with the process."""
        with self._failed_lock:
            unseen, self._failed = self._failed, []
        if unseen and sys.stderr is not None:
            more = f" (and {len(unseen) - 1} more)" if len(unseen) > 1 else ""
            print(f"rgpu: an error was never seen by the program{more}: {unseen[0].line()}", file=sys.stderr)

    def let_direct(self, on: bool) -> None:
        """Whether operators and repeated calls may enter commands without this class's methods, where they could."""
        self.direct = on and not (self.blocking or self.closed or forked())

    def abort(self) -> None:
        """End now; what is queued is lost and the worker notices by itself."""
        ticker.remove(self)
        self.closed, self.direct = True, False
        self.connection.abort()

    def _check_usable(self) -> None:
        if forked():
            raise ForkError(FORKED)
        if self.closed:
            raise SessionLost(f"the session with {self.name} is closed")


def _address(data: memoryview) -> int:
    return np.frombuffer(data, np.uint8).__array_interface__["data"][0]


_home = 0  # the process that uses devices; 0: none has, up to here


def settle() -> None:
    """This process uses devices from now on. A child that is forked before may do so itself."""
    global _home
    _home = _home or os.getpid()


def forked() -> bool:
    """True in a child that was forked from a process that used devices."""
    return _home not in (0, os.getpid())


def _after_fork() -> None:
    for stream in list(_streams):
        stream.refuse()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
