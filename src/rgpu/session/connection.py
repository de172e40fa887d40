"""A session on a link, usable from several threads. Has no thread of its own.

Whoever calls ``pump`` moves the conversation on. The lock is held for bookkeeping and non-blocking
socket calls only: nobody sleeps inside it. A message that the link did not take waits in one slot;
everything else waits in the session, where a reconnect can still decide what has to leave.
"""

import contextlib
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rgpu import _native
from rgpu.errors import ForkError, ProtocolError, SessionLost
from rgpu.link.base import Link, Sink
from rgpu.session.session import Session
from rgpu.session.spin import LONGEST, Spin

RETRY = 0.001  # a link that would block is tried again after this
FLUSH = 1.0  # how long close waits for the peer to have everything
_FOREVER = 3600.0
_SLEEP = 0.25 if sys.platform == "win32" else _FOREVER  # at a time: Ctrl-C does not end a select there

_connections: "weakref.WeakSet[Connection]" = weakref.WeakSet()


if TYPE_CHECKING or _native.link is None:

    class Conversation:
        """What of a connection is looked at for each message, and the plain case of what its owner does most, in which
        no handler of a signal comes. Only the C core (csrc/link_exchange.c) has it: here everything goes the long way.
        """

        def leave(self, queue: Any, how: tuple, payload: Any, room: int) -> bool:
            """Send ``queue.take(*how)`` as the next message, if that is not empty, and behind it a payload frame, where
            there is one; ``room``: about how many bytes that is. False: nothing was taken."""
            return False

        def exchange(
            self, queue: Any, how: tuple, payload: Any, room: int, answer: bytes, place: Any, large: bool,
            missed: Callable[..., None], question: tuple,
        ) -> bool | None:  # fmt: skip
            """The same, and look a moment for this answer, if looking pays; None: nothing was taken. Whether it came:
            then its data lie in ``place`` (a writable buffer), and it is marked as done; else ``missed(number of the
            message, *question)`` has been called before anything can be delivered. ``large``: how long it takes says
            nothing about other answers; else ``answered`` need only be told of those that did not come."""
            return None

        def finish(self, answer: list) -> bool:
            """Mark a message as done and send its answer; False: neither has happened."""
            return False

else:
    Conversation = _native.link.Conversation


class Connection(Conversation):
    """``sink`` is the default destination for payload frames, see ``pump``. ``on_message`` takes each
    delivered payload instead of the inbox: in order, inside the lock, so it must be quick."""

    def __init__(
        self,
        session: Session,
        link: Link,
        *,
        clock: Callable[[], float] = time.monotonic,
        on_message: Callable[[list], None] | None = None,
        sink: Sink | None = None,
    ) -> None:
        self.session, self.link = session, link
        self.failure: BaseException | None = None
        self.down_since: float | None = clock()
        self.sink = sink
        self.reconnects = -1
        self.executed = 0  # messages marked as done
        self._clock = clock
        self._on_message = on_message
        self._lock = link.lock or threading.RLock()
        self._inbox: deque[list] = deque()
        self._stuck: list | None = None  # what the link would not take yet
        self._moving = False  # a message is between the session and the link: nothing may come in between
        self._arrivals = 0  # grows with everything a waiter may wait for
        self._spin = Spin()
        self._hope = Spin(LONGEST)  # of questions whose answer is looked for where they are asked
        self._half = session.window_messages // 2
        self.held = self._lock._is_owned  # () -> whether this thread is in here: what it runs there may be a finalizer
        session.link_down()  # until the link says that it is up
        _connections.add(self)

    def route(self, on_message: Callable[[list], None], sink: Sink | None) -> None:
        """From now on what arrives goes there."""
        with self._lock:
            self._on_message, self.sink = on_message, sink

    # Sending

    def can_send(self, nbytes: int) -> bool:
        """Whether the window has room for a message of nbytes."""
        return self.session.can_send(nbytes)

    def post(self, frames: list, deadline: float | None = None) -> None:
        """Send a message in order, exactly once. Waits while the window is full; TimeoutError at the
        deadline. The memory of large frames must not change before ``flush``."""
        nbytes = sum(map(len, frames))
        while not self._post_now(frames, nbytes):
            if not self.wait_until(lambda: self.session.can_send(nbytes), deadline):
                raise TimeoutError(f"the peer did not take a message of {nbytes} bytes in time: {self!r}")

    def _post_now(self, frames: list, nbytes: int) -> bool:
        session = self.session
        with self._lock:
            if self.failure is not None:
                raise self.failure
            if session.unfinished[0] > self._half:
                self.pump()  # acknowledgements are taken before the window is full
            if not session.can_send(nbytes):
                return False
            if self._stuck is None and self.link.turn(session, frames, None, -1.0) is not NotImplemented:
                return True
            before, self._moving = self._moving, True
            try:
                message = session.send(frames, hold=self._stuck is not None)
                if message is not None and not self.link.send(message):
                    self._stuck = message
            finally:
                self._moving = before
            return True

    def answered(self, waited: float) -> None:
        """So many seconds went by between a question and its answer, which ``exchange`` has not found."""
        self._hope.learn(waited)

    def _deliver(self, payload: list) -> None:
        if self._on_message is None:
            self._inbox.append(payload)
        else:
            self._on_message(payload)

    def flush(self, deadline: float | None = None, leaving: bool = False) -> bool:
        """Wait until the peer holds everything posted so far: its memory may change again. False if
        the deadline came first."""
        with self._lock:
            session = self.session
            target = session.progress[0]
            if session.progress[1] < target:
                session.probe()
        # A peer that has hung up while we take leave has nothing more to say.
        return self.wait_until(
            lambda: session.progress[1] >= target or (leaving and self.down_since is not None), deadline
        )

    def keep(self, posted: list[tuple[int, list]], patience: float, copy: Callable[[Any], Any] = bytes) -> None:
        """Afterwards nobody reads the memory of these messages (with how many had been posted by then): the
        peer has them, or there is a copy. Waits ``patience`` seconds for the first before it does the second."""
        with contextlib.suppress(SessionLost, ProtocolError, ForkError):  # then nothing is read any more
            self.flush(self._clock() + patience)
            with self._lock:
                copies: dict[int, Any] = {}
                for number, frames in posted:
                    if number > self.session.progress[1]:
                        copies |= {id(frame): copy(frame) for frame in frames}
                        frames[:] = [copies[id(frame)] for frame in frames]
                if self._stuck is not None:
                    self._stuck = [copies.get(id(frame), frame) for frame in self._stuck]
            if self.link.holding:
                self.wait_until(lambda: not self.link.holding)

    def _send_outgoing(self) -> None:
        poll, send, now = self.session.poll, self.link.send, self._clock()
        before, self._moving = self._moving, True
        try:
            message = self._stuck
            if message is None:
                message = poll(now)
            while message is not None and send(message):
                message = poll(now)
            self._stuck = message
        finally:
            self._moving = before

    # Receiving

    def pump(self, sink: Sink | None = None, one: bool = False) -> bool:
        """Move on without waiting: link events, everything that arrived (``one``: up to the first message that is
        delivered), everything due. True if something arrived. ``sink(frames so far)`` names the place of a
        message's next frame."""
        with self._lock:
            if self.failure is not None:
                return False
            if sink is None:
                sink = self.sink
            place = None if sink is None else self._placing(sink)
            link, session = self.link, self.session
            before, self._moving = self._moving, True
            try:
                arrived = self._take_events()
                while (frames := link.recv(place)) is not None:
                    arrived = True
                    payload = session.receive(frames)
                    if payload is not None:
                        self._deliver(payload)
                        if one:
                            break
            except (ProtocolError, ForkError) as error:
                self.fail(error)
                return True
            finally:
                self._moving = before
            self._send_outgoing()
            if arrived:
                self._arrivals += 1
                link.wake()
            return arrived

    def _placing(self, sink: Sink) -> Sink:
        """Only the message that will be delivered may be received into its place."""
        expects = self.session.expects

        def place(frames: list) -> memoryview | None:
            return sink(frames[1:]) if len(frames) > 1 and expects(frames[0]) else None

        return place

    def _take_events(self) -> bool:
        events = self.link.events()
        for event in events:
            self._stuck = None  # the session sends it again if it is missing
            if event == "up":
                self.down_since = None
                self.reconnects += 1
                self.session.link_up()
            elif self.down_since is None:
                self.down_since = self._clock()
                self.session.link_down()
        return bool(events)

    def take(self) -> list | None:
        """The next delivered message, in order; ``mark_done`` when it was executed."""
        try:
            return self._inbox.popleft()
        except IndexError:
            return None

    def next(self, timeout: float, run: Callable[[list], list | None] | None = None) -> list | None:
        """``take``, after waiting for so long if there is nothing yet. At most one message is received, so that the
        one after it can still go to its place. ``run`` may answer what comes at once, see ``Link.turn``; then there
        is nothing to take."""
        if self._inbox or self.failure is not None:
            return self.take()
        clock, link, seen = self._clock, self.link, self._arrivals
        began, patience = clock(), min(self._spin.seconds(), timeout)
        try:
            got = self._turn(patience, run) if patience > 0 else NotImplemented
            if got is None or got is NotImplemented:
                if got is None or not (patience > 0 and link.look(patience)):
                    self._slept(began + timeout, lambda: self._arrivals != seen)
                got = self._turn(0.0, run)
        finally:
            self._spin.learn(clock() - began)
        if got is True:
            return None
        if got is None or got is NotImplemented or got is False:
            self.pump(one=True)
            return self.take()
        return got

    def _turn(self, patience: float, run: Any) -> Any:
        """``Link.turn``, to receive."""
        with self._lock:
            if self._stuck is not None or self._inbox or self.failure is not None:
                return NotImplemented
            got = self.link.turn(self.session, None, self.sink, patience, run)
            if got is True:
                self.executed += 1
            if got is True or type(got) is list:
                self._arrivals += 1
            return got

    def mark_done(self, n: int = 1) -> None:
        """n more messages were executed: the peer's window opens."""
        with self._lock:
            self.executed += n
            if self.session.mark_done(n) and self.failure is None:
                self._send_outgoing()

    # Waiting

    def wait(self, timeout: float, seen: int | None = None) -> bool:
        """Wait until there is something to pump or take. Keeps timers (acknowledgements, probes)
        going meanwhile. ``seen``: return at once if ``arrivals`` is another by now."""
        clock, link = self._clock, self.link
        if seen is None:
            if self._inbox or self.failure is not None:
                return True
            seen = self._arrivals

        def news() -> bool:
            return self._arrivals != seen

        began, spin = clock(), self._spin
        patience = min(spin.seconds(), timeout)
        try:
            return (patience > 0 and link.look(patience)) or self._slept(began + timeout, news)
        finally:
            spin.learn(clock() - began)

    def listen(self, timeout: float) -> None:
        """Sleep for so long, or until something comes: for a thread beside the one who works on what has come."""
        seen = self._arrivals
        self._slept(self._clock() + timeout, lambda: self._arrivals != seen)

    def _slept(self, deadline: float, news: Callable[[], bool]) -> bool:
        clock, link = self._clock, self.link
        while not news():
            now = clock()
            with self._lock:
                if self.failure is None:
                    self._send_outgoing()
                due = self.session.due()
                stuck = self._stuck is not None
            left = min(deadline - now, _SLEEP)
            if left <= 0:
                return False
            if stuck:
                left = min(left, RETRY)
            elif due is not None:
                left = min(left, max(due - now, 0))
            if link.wait(left, news):
                return True
        return True

    def wait_until(
        self, condition: Callable[[], bool], deadline: float | None = None, pumped: bool = False
    ) -> bool:
        """Pump until ``condition()`` holds; False at the deadline. Raises the failure. ``pumped``: something
        was just sent, and there is nothing to pump before a wait."""
        while True:
            if not pumped:
                self.pump()
            pumped = False
            seen = self._arrivals
            if condition():
                return True
            if self.failure is not None:
                raise self.failure
            left = _FOREVER if deadline is None else deadline - self._clock()
            if left <= 0:
                return False
            self.wait(left, seen)

    # Ending

    def fail(self, failure: BaseException) -> None:
        """From now on every call that needs the peer raises this. The first failure stays."""
        with self._lock:
            if self.failure is None:
                self.failure = failure
            self._arrivals += 1
            self.link.wake()

    def close(self) -> None:
        """Wait up to a second until the peer has everything, then let go of the link."""
        if self.down_since is None:
            with contextlib.suppress(Exception):  # an end is an end, whatever has happened before
                self.flush(self._clock() + FLUSH, leaving=True)
                with self._lock:  # the peer may be waiting for an acknowledgement that is not due yet
                    for message in self.session.outgoing(self._clock() + FLUSH):
                        self.link.send(message)
        self.fail(SessionLost("the session was closed"))
        self.link.close()

    def abort(self) -> None:
        """Let go of the link and of everything under way."""
        self.fail(SessionLost("the session was aborted"))
        self.link.abort()

    @property
    def progress(self) -> tuple[int, int, int]:
        """How many of our messages were sent, are received and are done."""
        return self.session.progress

    @property
    def inside(self) -> bool:
        """Whether this thread moves a message just now: what it runs in the midst of that, a finalizer perhaps, can
        neither send nor receive. A handler of a signal that comes when ``exchange`` has looked can."""
        return self.held() and (self._moving or self.link.torn)

    @property
    def arrivals(self) -> int:
        """Grows with everything that a waiter may wait for."""
        return self._arrivals

    @property
    def stats(self) -> dict[str, int]:
        """Messages and bytes both ways, counted where the bytes leave, and what the session repaired."""
        return self.session.counters | {
            "bytes_sent": self.link.sent_bytes,
            "bytes_received": self.link.received_bytes,
            "reconnects": max(0, self.reconnects),
        }

    def __repr__(self) -> str:
        state = "up" if self.down_since is None else "down"
        return f"<Connection {state} {self.session!r} {self.link!r}>"


def _after_fork() -> None:
    for connection in list(_connections):
        connection._lock = threading.RLock()
        connection.held = connection._lock._is_owned
        connection.failure = ForkError(
            "this process was forked from one that uses rgpu; use the 'spawn' start method"
        )


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
