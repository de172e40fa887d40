"""A second client of a session, which reads its state between two messages and changes nothing: `rgpu checkpoint`.

It may ask what there is, make views under handles that the program never uses, and read. The program's commands wait
meanwhile; a visitor that falls silent is left.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from rgpu.errors import ProtocolError, SessionLost
from rgpu.wire import codec, limits, ops
from rgpu.wire.functions import BY_NAME

log = logging.getLogger("rgpu.worker")

FIRST = 1 << 63  # of a visitor's handles
COME = 10.0  # seconds that it has to come
SILENT = 3.0  # seconds without a question, or without a link
LOOK = 0.02
_ASKS = (BY_NAME["session.entries"].id,)
_LOOKS = (ops.Read.tag, ops.Sync.tag, ops.Bye.tag)


class Visitor:
    """``expected``: whether it may still come, or is there."""

    def __init__(self, connection: Any) -> None:
        self._connection, self._since = connection, time.monotonic()

    @property
    def there(self) -> bool:
        self._connection.pump()
        return self._connection.down_since is None

    @property
    def expected(self) -> bool:
        return time.monotonic() - self._since < COME

    def serve(self, executor: Any, over: Callable[[], bool]) -> None:
        """Answer until it leaves. Raises nothing: what goes wrong is the visitor's."""
        connection, post, second = self._connection, executor.post, executor.second
        executor.post, executor.second = connection.post, False
        handles: set[int] = set()
        heard = time.monotonic()
        try:
            executor.backend.synchronize()
            while not over() and time.monotonic() - heard < SILENT:
                frames = connection.take()
                if frames is None:
                    connection.pump()
                    connection.wait(LOOK)
                    continue
                leaves = _look(executor, frames, handles)
                connection.mark_done(1)
                heard = time.monotonic()
                if leaves:
                    break
        except (ProtocolError, SessionLost) as error:
            log.warning("a visitor was shown out: %s", error)
        finally:
            executor.post, executor.second = post, second
            for handle in handles:
                executor.table.free(handle)
            self.leave()

    def leave(self) -> None:
        self._connection.close()


def _look(executor: Any, frames: list, handles: set[int]) -> bool:
    """Run one message of a visitor; whether it leaves. ProtocolError for anything but looking."""
    body = codec.unpack(frames[0])
    if type(body) is not list or len(body) != 2 or type(body[1]) is not list or len(body[1]) > limits.BATCH:
        raise ProtocolError("a message is [batch, [command, ...]]")
    for index, command in enumerate(body[1]):
        ops.Command.decode(command)
        tag = command[0]
        if tag == ops.Bye.tag:
            return True
        if tag == ops.View.tag and command[1] >= FIRST:
            handles.add(command[1])
        elif tag == ops.Free.tag and all(handle >= FIRST for handle in command[1]):
            handles.difference_update(command[1])
        elif tag not in _LOOKS and not (tag == ops.Ask.tag and command[2] in _ASKS):
            raise ProtocolError(f"a visitor may only look: {str(command)[:40]}")
        executor.visited(index, command)
    return False
