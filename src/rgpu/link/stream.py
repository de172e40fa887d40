"""Links over a connection of bytes: TCP sockets of our own, and what else offers a ``Pipe``.

The link's life is here: dialling and dialling again, greeting, noticing the end, waiting. Whoever
calls ``wait``, ``recv``, ``events`` or ``send`` moves it on, which saves the hand-overs
between threads that make up most of a ZeroMQ round trip (docs/adr/0006). No lock is held while waiting.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import threading
import time
import weakref
from collections import deque
from typing import Any

from rgpu import _native
from rgpu.ending import at_end
from rgpu.errors import ForkError
from rgpu.link.base import COPY_BELOW, Link
from rgpu.link.framing import ends_of
from rgpu.link.waker import Waker
from rgpu.wire import limits

SILENCE = 1.5  # seconds without an answer after which the other end is gone
ASK = 0.5  # seconds without a word after which it is asked whether it is there
LINGER = 1.0  # seconds that closing may spend on what is not sent
LOOK = 0.02  # seconds between looks of one who never waits
PUSH = 0.002  # seconds between looks at what nobody else sends

_links: weakref.WeakSet[StreamLink] = weakref.WeakSet()


class StreamLink(Link):
    """What both ends share. ``_pipe`` is there while the link is up."""

    def __init__(self, uri: str, kind: str) -> None:
        self.uri, self.kind = uri, kind
        if kind == "shm":
            self.chunk = limits.NEAR_CHUNK
        self.lock = threading.RLock()
        self._waker = Waker()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._waker, selectors.EVENT_READ)
        self._pipe: Any = None
        self._reader: Any = None
        self._writer: Any = None
        self._watched = 0  # what the pipe's descriptor is watched for
        self._events: deque[str] = deque()
        self._sign_at = 0.0  # when the other end may be told again that a message of its is coming in
        self._look_at = 0.0  # when ``events`` looks for the end of the connection, and for another one
        self._closed = False
        self._forked = False
        self._midst = False  # the ends are at work, and not for ``recv`` or ``send``, whose callers know that
        self._counted = [0, 0]  # bytes sent and received, without those that the C core has counted
        _links.add(self)

    # Connections

    def _adopt(self, pipe: Any) -> None:
        self._drop()
        self._pipe = pipe
        self._reader, self._writer = ends_of(pipe)
        self.plain = _native.link is not None and isinstance(self._reader, _native.link.Inlet)
        self._watched = selectors.EVENT_READ
        self._selector.register(pipe, self._watched)
        self._events.append("up")

    def _drop(self, linger: float = 0.0) -> None:
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            self._counted = [self.sent_bytes, self.received_bytes]
            self._reader = self._writer = None
            self.plain = False
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(pipe)
            pipe.close(linger)
            self._events.append("down")

    def _tend(self, now: float) -> float:
        """Whatever there is to do about connections; the seconds until there may be more."""
        raise NotImplementedError

    def _give_sign(self) -> None:
        """The other end wants to know whether we are here, or has said that it is."""
        self._reader.signs = 0

    def _coming(self, now: float) -> None:
        """Something has come. Who sends what takes a slow line many seconds hears nothing else meanwhile."""
        if self._reader.midway and now >= self._sign_at:
            self._sign_at = now + ASK
            with contextlib.suppress(ConnectionError):  # the next read says so
                self._writer.sign()

    def _check(self) -> None:
        if self._forked:
            raise ForkError("this process was forked from one that uses rgpu; use the 'spawn' start method")

    # Messages

    def send(self, frames, copy_below=COPY_BELOW) -> bool:
        with self.lock:
            self._check()
            if self._pipe is None:
                return False
            try:
                if not self._writer.write(frames, copy_below):
                    return False
            except ConnectionError:
                self._drop()
                return False
            self._counted[0] += sum(map(len, frames))
            self._hurry()
            return True

    @property
    def sent_bytes(self) -> int:  # type: ignore[override]
        return self._counted[0] + getattr(self._writer, "given", 0)

    @property
    def received_bytes(self) -> int:  # type: ignore[override]
        return self._counted[1] + getattr(self._reader, "taken", 0)

    def _hurry(self) -> None:
        """What has not left is moved on."""
        if self._writer.backlog:
            if self._waker.waiters:
                self._waker.ring()  # a waiter has to watch for room, too
            _pusher.add(self)
        elif self._pipe.busy():
            _pusher.add(self)

    def turn(self, session, frames, sink, patience, run=None):
        with self.lock:
            reader, writer = self._reader, self._writer
            if not self.plain or writer is None or writer.backlog or type(session) is not _native.link.Session:
                return NotImplemented
            if patience >= 0 and (self._events or self._waker.waiters):
                return NotImplemented
            got = None
            try:
                got = _native.link.turn(session, reader, writer, frames, None, sink, patience, run)
            except ConnectionError:
                self._turned(True)
            except BaseException:
                self._turned(False)
                raise
            else:
                if reader.signs or writer.backlog:
                    self._turned(False)
            return False if got is None and frames is None and reader.fresh else got

    def _turned(self, lost: bool) -> None:
        """What is left to do after a turn: the connection is lost, or torn, or not everything has left, or the other
        end wants a sign."""
        with contextlib.suppress(ConnectionError):
            if not lost and not self.torn:
                if self._reader.signs:
                    self._give_sign()
                if self._writer.backlog:
                    self._hurry()
                return
        self._drop()

    def push(self) -> bool:
        """Move the backlog on; whether there still is one."""
        with self.lock:
            self._midst = True
            try:
                return self._pipe is not None and (not self._writer.push() or self._pipe.busy())
            except ConnectionError:
                self._drop()
                return False
            finally:
                self._midst = False

    @property
    def holding(self) -> bool:  # type: ignore[override]
        writer = self._writer
        return writer is not None and writer.borrowed

    @property
    def torn(self) -> bool:  # type: ignore[override]
        reader, writer = self._reader, self._writer
        return self._midst or (self.plain and writer is not None and (writer.torn or reader.torn))

    def recv(self, sink=None):
        with self.lock:
            self._check()
            if self._pipe is None:
                self._tend(time.monotonic())
            if self._pipe is None:
                return None
            try:
                if self._writer.backlog:
                    self._writer.push()
                frames = self._reader.read(sink)
                if self._reader.signs:
                    self._give_sign()
            except ConnectionError:
                self._drop()
                return None
            if frames is not None:
                self._counted[1] += sum(map(len, frames))
            return frames

    def events(self) -> list[str]:
        now = time.monotonic()
        if not self._events and self._pipe is not None and now < self._look_at:
            return []
        with self.lock:
            self._check()
            if self._closed:
                return []
            self._look_at = now + LOOK
            self._look()
            self._tend(now)
            seen = list(self._events)
            self._events.clear()
            return seen

    def _look(self) -> None:
        """Notice the end of a connection that nobody reads from now."""
        if self._pipe is not None:
            try:
                self._pipe.awake()
                self._reader.fill()
            except ConnectionError:
                self._drop()

    # Waiting

    def look(self, seconds):
        reader, writer = self._reader, self._writer
        if reader is None or writer is None or writer.backlog or not hasattr(reader, "look"):
            return super().look(seconds)
        return reader.fresh or bool(self._events) or self._closed or reader.look(seconds)

    def wait(self, timeout, unless=None) -> bool:
        if timeout <= 0:
            with self.lock:
                return self._ready()
        deadline = time.monotonic() + timeout
        with self.lock:
            self._check()
            if self._closed:
                return True
            self._waker.waiters += 1
        try:
            if unless is not None and unless():
                return True
            while True:
                with self.lock:
                    if self._ready():
                        return True
                    now = time.monotonic()
                    left = min(deadline - now, self._tend(now))
                    if self._events:
                        return True
                    self._watch()
                if deadline <= now:
                    return False
                if self._may_sleep() and self._slept(max(left, 0.0)):
                    return True
        finally:
            with self.lock:
                self._waker.leave()
                if self._waker.waiters and self._pipe is not None and not self._pipe.tells_room:
                    self._waker.ring()  # a bell rings once: who still waits has to ask for it again
                if self._closed and not self._waker.waiters:
                    self._release()

    def _may_sleep(self) -> bool:
        with self.lock:
            pipe = self._pipe
            return pipe is None or pipe.before_sleep(bool(self._writer.backlog))

    def _slept(self, seconds: float) -> bool:
        """Sleep once; whether the wait is over."""
        for key, _ in self._selector.select(seconds):
            if key.fileobj is self._waker:
                return True
            with self.lock:
                if key.fileobj is self._pipe:
                    self._pipe.awake()
        return False

    def _watch(self) -> None:
        """Watch for room as long as there is a backlog."""
        if self._pipe is not None and self._pipe.tells_room:
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._writer.backlog else 0)
            if wanted != self._watched:
                self._watched = wanted
                self._selector.modify(self._pipe, wanted)

    def _ready(self) -> bool:
        if self._closed or self._events:
            return True
        if self._pipe is None:
            return False
        self._midst = True
        try:
            if self._writer.backlog and self._writer.push():
                return True  # there is room again
            return self._reader.fresh or self._reader.fill()
        except ConnectionError:
            self._drop()
            return True
        finally:
            self._midst = False

    def wake(self) -> None:
        if self._waker.waiters:  # who begins to wait now looks at what has come first
            with self.lock:
                self._waker.ring()

    # Ending

    def close(self) -> None:
        self._end(LINGER)

    def abort(self) -> None:
        self._end(0.0)

    def _end(self, linger: float) -> None:
        with self.lock:
            if self._closed:
                return
            self._closed = True
            _links.discard(self)
            deadline = time.monotonic() + linger
            if linger and self._pipe is not None and self._writer.backlog:
                self._flush(deadline)
            self._drop(max(0.0, deadline - time.monotonic()))
            self._events.clear()
            self._hang_up()
            self._waker.ring()
            if not self._waker.waiters:
                self._release()

    def _flush(self, deadline: float) -> None:
        """Spend what is left of the time on the backlog."""
        with contextlib.suppress(ConnectionError):
            while not self._writer.push() and time.monotonic() < deadline:
                time.sleep(0.001)

    def _hang_up(self) -> None:
        """Let go of what is not a connection yet."""

    def _release(self) -> None:
        self._selector.close()
        self._waker.close()


class _Pusher:
    """A thread that moves backlogs on while nobody else does: their owners may be busy for minutes."""

    def __init__(self) -> None:
        self._busy: set[StreamLink] = set()
        self._event = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, link: StreamLink) -> None:
        self._busy.add(link)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="rgpu-push", daemon=True)
            self._thread.start()
        self._event.set()

    def _run(self) -> None:
        while self._event.wait():
            self._event.clear()
            while self._busy:
                time.sleep(PUSH)
                for link in list(self._busy):
                    self._busy.discard(link)  # before the look: who adds it from here on is not forgotten
                    if link.push():
                        self._busy.add(link)


_pusher = _Pusher()


# ---- the end of the process, and forks -----------------------------------------------------------


def _at_exit() -> None:
    for link in list(_links):
        link.abort()


def _after_fork() -> None:
    global _pusher
    _pusher = _Pusher()
    for link in list(_links):
        link.lock = threading.RLock()
        link._forked = link._closed = True  # nothing of the parent's connection is touched from here
    _links.clear()


at_end(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
