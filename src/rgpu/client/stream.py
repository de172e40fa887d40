"""The door that commands leave by: one ``CommandStream`` per leased device.

``submit`` queues a command and never waits; ``ask``, ``read`` and ``sync`` wait for an answer and
are the only round trips. Batches leave by size, by a wait, or by the idle tick, never by the
user. Errors of commands nobody waited for are kept until the next wait.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from rgpu.client import failures
from rgpu.client.stats import Counters
from rgpu.errors import ForkError, ProtocolError, SessionLost
from rgpu.session import Connection, Session
from rgpu.wire import codec, limits, ops, values

BATCH = 512  # commands that leave together; 256 to 1,024 measured best
_TICK = 0.001  # seconds an unfinished batch may wait for more commands

next_handle = itertools.count(1).__next__
_next_reply = itertools.count(1).__next__
_next_block = itertools.count(1).__next__
_T_FREE, _T_EXPECT = ops.Free.tag, ops.Expect.tag


def reserve_handles() -> int:
    """First of RESERVED consecutive handles, for answers whose number of arrays is unknown."""
    return (1 << 62) + _next_block() * limits.RESERVED


class CommandStream:
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
    ) -> None:
        self.connection = Connection(session, link, on_message=self._receive, sink=self._sink)
        self.name = name
        self.blocking, self.check = blocking, check
        self.pending: list = []
        self.places: list = []  # (code, instruction) of the user's line, parallel to pending
        self.counters = Counters()
        self.lock = threading.RLock()
        self.closed = False
        self._inline = 0  # bytes of data inside the pending commands
        self._batch = 0
        self._sent_places: dict[int, list] = {}
        self._replies: dict[int, Any] = {}
        self._sinks: dict[int, tuple[memoryview, list]] = {}
        self._failed: list[failures.Failure] = []
        self._on_silence = on_silence
        self._asked_at = 0.0
        self._wake = ticker.wake
        ticker.add(self)

    def __repr__(self) -> str:
        return f"<CommandStream {self.name} pending={len(self.pending)} {self.connection!r}>"

    # ---- submit: never waits --------------------------------------------------------------------

    def submit(self, command: tuple) -> None:
        """Queue one command. Raises only what ended the session."""
        pending = self.pending
        pending.append(command)
        self.places.append(failures.caller())
        count = len(pending)
        if count >= BATCH or self.blocking:
            self.flush()
            if self.blocking and command[0] != _T_FREE:
                self.sync()
        elif count == 1:
            self._wake()

    def submit_predicted(self, command: tuple, handles: Any, metas: Any) -> None:
        """Queue a command with the layouts the client predicted for its results."""
        self.submit(command)
        if self.check:
            for handle, meta in zip(handles, metas):
                self.submit((_T_EXPECT, handle, meta.wire, meta.shape, meta.strides))

    def free(self, handle: int) -> None:
        """Forget a handle on the worker. Never raises; called by finalizers, in any thread."""
        pending = self.pending
        try:
            pending.append((_T_FREE, (handle,)))
            self.places.append(None)
            if len(pending) == 1:
                self._wake()
        except Exception:
            pass  # a forked child, or an interpreter that is shutting down

    def put(self, handle: int, dtype: Any, shape: tuple, data: bytes) -> None:
        """Queue a small array with its data."""
        self._inline += len(data)
        self.submit(ops.Put.encode(handle, dtype, shape, data))
        if self._inline > 4 * limits.CHUNK_BYTES:
            self.flush()

    def write(self, handle: int, data: memoryview) -> None:
        """Send a contiguous array's bytes in chunks; the source may change afterwards.

        Returns when the last chunk is copied, not when it has arrived; waits only while the
        window of unacknowledged bytes is full.
        """
        with self.lock:
            self.flush()
            for start in range(0, len(data), limits.CHUNK_BYTES):
                chunk = bytes(data[start : start + limits.CHUNK_BYTES])
                self._batch += 1
                self._sent_places[self._batch] = [failures.caller()]
                body = codec.pack([self._batch, [ops.Write.encode(handle, start, 0)]])
                self._post([body, chunk], 1)

    def flush(self) -> None:
        """Send what is queued."""
        self._check_usable()
        with self.lock:
            pending, places = self.pending, self.places
            while pending:
                count = min(len(pending), limits.BATCH)
                commands, lines = pending[:count], places[:count]
                # Slices are atomic under the interpreter's lock: an append meanwhile stays queued.
                del pending[:count], places[:count]
                self._batch += 1
                self._sent_places[self._batch] = lines
                self._inline = 0
                self._post([codec.pack([self._batch, commands])], count)

    def _post(self, frames: list, count: int) -> None:
        counters = self.counters
        counters.commands += count
        counters.batches += 1
        try:
            self.connection.post(frames)
        except SessionLost as error:
            raise failures.fresh(error) from None
        if self._batch % 64 == 0:
            self.connection.pump()
            for batch in list(itertools.islice(self._sent_places, max(0, len(self._sent_places) - 1024))):
                del self._sent_places[batch]

    # ---- waiting --------------------------------------------------------------------------------

    def ask(self, fn: int, args: list, kwargs: dict) -> Any:
        """Run a function and wait for its answer, still in wire form; handles start at its base."""
        reply, base = _next_reply(), reserve_handles()
        self.submit(ops.Ask.encode(reply, fn, base, args, kwargs))
        return self._wait(reply)

    def sync(self) -> None:
        """Wait until everything submitted has run; raises the first error nobody has seen."""
        reply = _next_reply()
        self.pending.append(ops.Sync.encode(reply))
        self.places.append(None)
        self._wait(reply)
        self.raise_failed()

    def read(self, handle: int, out: np.ndarray, order: str = "C") -> None:
        """Fill ``out`` (contiguous in ``order``, writable) with the array's content."""
        flat = memoryview(out.reshape(-1, order="A").view(np.uint8)) if out.nbytes else memoryview(bytearray())
        reply = _next_reply()
        self._sinks[reply] = (flat, [0])
        self.submit_quietly(ops.Read.encode(reply, handle, 1 if order == "F" else 0))
        try:
            self._wait(reply)
        finally:
            self._sinks.pop(reply, None)
        self._raise_lost()

    def submit_quietly(self, command: tuple) -> None:
        """Queue a command without RGPU_LAUNCH_BLOCKING's wait (it waits by itself)."""
        self.pending.append(command)
        self.places.append(failures.caller())

    def raise_failed(self) -> None:
        """Raise the oldest error of a command that nobody waited for."""
        if self._failed:
            raise self._failed.pop(0).exception()

    def _raise_lost(self) -> None:
        """Raise an error that poisoned nothing: what the command should have changed looks unharmed."""
        lost = next((failure for failure in self._failed if not failure.reply.handles), None)
        if lost is not None:
            self._failed.remove(lost)
            raise lost.exception()

    def _wait(self, reply: int) -> Any:
        self.counters.round_trips += 1
        self.flush()
        connection, replies = self.connection, self._replies
        while True:
            connection.pump()
            if reply in replies:
                answer = replies.pop(reply)
                break
            if connection.failure is not None:
                raise failures.fresh(connection.failure)
            connection.wait(0.05)
            if connection.down_since is not None:
                self.look_after()
        if isinstance(answer, failures.Failure):
            self._failed = [other for other in self._failed if other.where != answer.where]
            raise answer.exception()
        return answer

    def look_after(self) -> None:
        """The link is down: find out (not more than five times a second) whether the worker lives."""
        now, since = time.monotonic(), self.connection.down_since
        if self._on_silence and since is not None and now - since > 0.3 and now - self._asked_at > 0.2:
            self._asked_at = now
            self._on_silence(self)

    def _sink(self, frames: list) -> memoryview | None:
        """Where the payload of a Data reply belongs, so that it is received in place."""
        if len(frames) != 1:
            return None
        message = codec.unpack(frames[0])
        if type(message) is list and message and message[0] == ops.Data.tag:
            reply = ops.Reply.decode(message)
            sink = self._sinks.get(reply.reply_to)
            if sink is not None and reply.offset < len(sink[0]):
                return sink[0][reply.offset : reply.offset + limits.CHUNK_BYTES]
        return None

    def _receive(self, frames: list) -> None:
        """One reply, from whichever thread moved the connection on."""
        self.connection.mark_done(1)
        reply = ops.Reply.decode(codec.unpack(frames[0]))
        if isinstance(reply, ops.Done.Record):
            self._replies[reply.reply_to] = reply.value
        elif isinstance(reply, ops.Failed.Record):
            place = None
            places = self._sent_places.get(reply.batch, ())
            if reply.index < len(places):
                place = places[reply.index]
            failure = failures.Failure(reply, place, self.name)
            if reply.reply_to:
                self._replies[reply.reply_to] = failure
            else:
                self._failed.append(failure)
        else:
            self._receive_data(reply, frames)

    def _receive_data(self, reply: Any, frames: list) -> None:
        sink = self._sinks.get(reply.reply_to)
        if sink is None:
            return  # the reader gave up (Ctrl-C)
        flat, received = sink
        chunk = memoryview(frames[1]).cast("B") if len(frames) > 1 else memoryview(b"")
        end = reply.offset + len(chunk)
        if end > len(flat):
            raise ProtocolError("the worker sent more data than was asked for")
        target = flat[reply.offset : end]
        if len(chunk) and np.frombuffer(chunk, np.uint8).ctypes.data != np.frombuffer(target, np.uint8).ctypes.data:
            target[:] = chunk
        received[0] += len(chunk)
        if received[0] >= len(flat):
            self._replies[reply.reply_to] = None

    # ---- the end --------------------------------------------------------------------------------

    def close(self, timeout: float = 1.0) -> None:
        """Flush, say goodbye, and let the last messages leave."""
        if self.closed:
            return
        ticker.remove(self)
        try:
            with self.lock:
                if self.connection.failure is None:
                    self.pending.append(ops.Bye.encode())
                    self.places.append(None)
                    self.flush()
        except (SessionLost, ForkError):
            pass
        finally:
            self.closed = True
            self.connection.close()

    def abort(self) -> None:
        """End now; what is queued is lost and the worker notices by itself."""
        ticker.remove(self)
        self.closed = True
        self.connection.abort()

    def _check_usable(self) -> None:
        if forked():
            raise ForkError(
                "this process was forked from one that uses remote devices; sessions do not survive fork. "
                "Use multiprocessing's 'spawn' start method, or import cupy only in the child."
            )
        if self.closed:
            raise SessionLost(f"the session with {self.name} is closed")


_home = os.getpid()


def forked() -> bool:
    """True in a child that was forked after this module was imported."""
    return os.getpid() != _home


class _Ticker:
    """One thread that flushes idle batches and looks after links; sleeps while nothing happens."""

    def __init__(self) -> None:
        self._streams: list[CommandStream] = []
        self._event = threading.Event()
        self._thread: threading.Thread | None = None
        self.wake = self._event.set

    def add(self, stream: CommandStream) -> None:
        self._streams.append(stream)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="rgpu-ticker", daemon=True)
            self._thread.start()

    def remove(self, stream: CommandStream) -> None:
        if stream in self._streams:
            self._streams.remove(stream)

    def _run(self) -> None:
        while not sys.is_finalizing():
            woken = self._event.wait(0.25)
            self._event.clear()
            if woken:
                time.sleep(_TICK)
            for stream in list(self._streams):
                try:
                    stream.flush()
                    stream.connection.pump()
                    if stream.connection.down_since is not None:
                        stream.look_after()
                except Exception as error:  # told to the user at the next submit or wait
                    if stream.connection.failure is None:
                        stream.connection.fail(error)
                    self.remove(stream)


ticker = _Ticker()
