"""One session being served: messages are taken from the connection, one at a time, and executed in order.

What asks for something small is answered where it is found (``Connection.next``); everything else is the executor's.
Between two messages are the session's turn on a shared device and who comes to look. Knows no command.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from rgpu.errors import ProtocolError, SessionLost
from rgpu.server.allowance import Allowance
from rgpu.server.backend import Backend
from rgpu.server.executor import Executor, Goodbye
from rgpu.server.peers import Peers
from rgpu.wire import codec, ops

log = logging.getLogger("rgpu.worker")

BYE = "bye"  # the reason of an end that the client asked for
VISITORS = 4  # that may be on their way; each has a door of its own

class Service:
    """One session being served. ``telemetry`` may be asked from another thread at any time."""

    def __init__(self, connection: Any, backend: Backend, peers: Peers | None = None) -> None:
        self.connection = connection
        self.allowance = backend.allowance or Allowance(lambda message: None, limit=backend.limit)
        self.executor = Executor(backend, connection.post, connection.flush, peers, self._settled)
        self.executor.chunk = connection.link.chunk
        connection.sink = self._sink
        self._visitors: deque[Any] = deque()  # who comes to look, between two messages
        self._busy = 0.0  # seconds spent executing up to ``_since``
        self._since: float | None = None  # when the present message began to execute
        self._told = (time.monotonic(), 0.0)

    def _settled(self) -> bool:
        """Whether the client has everything that was posted. Copies to other workers may be under way still."""
        sent, received, _ = self.connection.session.progress
        return sent == received and self.executor.peers.settled()

    def _sink(self, frames: list) -> memoryview | None:
        """Where the next payload goes."""
        return self.executor.place(frames) if self.connection.session.idle else None

    def telemetry(self) -> dict:
        """What ``Telemetry`` tells; busy is the share of the time since the last call."""
        now, since = time.monotonic(), self._since
        busy = self._busy + (now - since if since is not None else 0.0)
        (before, busy_before), self._told = self._told, (now, busy)
        share = (busy - busy_before) / max(now - before, 1e-6)
        executor = self.executor
        share = min(1.0, max(0.0, share))
        table = executor.table
        told = {"memory_used": table.used, "resident": table.resident, "commands": executor.commands, "busy": share}
        return told | dict(zip(("whole", "wanted"), executor.standing)) | {"reach": dict(executor.peers.reach)}

    def _next(self) -> list | None:
        """The next message, if there is one in a while."""
        connection, allowance, settle = self.connection, self.allowance, self.executor.backend.synchronize
        if allowance.alert:
            frames = connection.take()
            if frames is not None or connection.failure is not None:
                return frames
            if connection.pump() or allowance.idle(connection.wait, settle):
                return connection.take()
        # One only: the one after it may be received into an array.
        return connection.next(0.25, self.executor.answer)

    def expect(self, door: Callable[[], Any]) -> bool:
        """Somebody may come to look, by a door that is made now; False: too many are on their way. For any thread."""
        if len(self._visitors) >= VISITORS:
            return False
        self._visitors.append(door())
        return True

    def _see_visitors(self) -> None:
        for visitor in list(self._visitors):
            if visitor.there:
                self._visitors.remove(visitor)
                visitor.serve(self.executor, lambda: self.connection.failure is not None)
            elif not visitor.expected:
                self._visitors.remove(visitor)
                visitor.leave()

    def run(self) -> str:
        """Serve to the end and return the reason: 'bye', 'expired' or an error text."""
        connection, allowance = self.connection, self.allowance
        while True:
            if self._visitors:
                self._see_visitors()
            frames = self._next()
            if frames is None:
                if connection.failure is not None:
                    return str(connection.failure)
                continue
            if allowance.alert:
                allowance.begin(lambda: connection.failure is not None)
            self._since = time.monotonic()
            try:
                answer = self.executor.execute(frames)
                done = answer is not None and connection.finish(answer)
                if answer is not None and not done:
                    connection.post(answer)
            except Goodbye:
                connection.mark_done(1)
                return BYE
            except ProtocolError as error:
                log.warning("session ended: %s", error)
                failed = ops.Failed.encode(0, 0, 0, [], "ProtocolError", [str(error)[:4096]], "")
                connection.post([codec.pack(failed)])
                return f"protocol error: {error}"
            except SessionLost as error:  # in the middle of an answer
                return str(error)
            if not done:
                connection.mark_done(1)
            worked = time.monotonic() - self._since
            self._busy += worked
            self._since = None
            if allowance.alert:
                allowance.ran(worked, self.executor.backend.synchronize)
