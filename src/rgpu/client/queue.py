"""Commands on their way to one worker, from the moment they are issued until their batch leaves.

``Queue`` is the C core's where it was built, which array operators write into directly (csrc/issue_queue.c), else
its twin here. Both enter a command in one step, which no other thread and no finalizer can come between; only
the holder of the stream's lock takes commands out. Knows no link and never waits.
"""

from __future__ import annotations

import itertools
from collections import deque
from typing import TYPE_CHECKING, Any

from rgpu import _native
from rgpu.client.ticker import ticker
from rgpu.errors import ForkError
from rgpu.wire import codec, limits, ops

BATCH = 1024  # commands that leave together; 256 to 1,024 measured best
ORIGINS = 320  # messages whose lines are remembered: the window, and a little more
_T_FREE = ops.Free.tag
next_reply = itertools.count(1).__next__
_next_block = itertools.count(1).__next__
_next_number = itertools.count(1).__next__


def reserve_handles() -> int:
    """First of RESERVED consecutive handles, for answers whose number of arrays is unknown."""
    return (1 << 62) + _next_block() * limits.RESERVED


class _Refusing(list):
    """The queue of a forked child: taking a command would be a promise nobody keeps."""

    def __iadd__(self, _: Any) -> Any:  # type: ignore[misc]
        raise ForkError(FORKED)


FORKED = (
    "this process was forked from one that uses remote devices; sessions do not survive fork. "
    "Use multiprocessing's 'spawn' start method, or use them in the children only."
)


class PureQueue:
    """``pending`` has commands, some in wire form already, and the user's lines in turn, ``freed`` handles of small
    arrays that one command will name. ``direct``: whether operators may add to them themselves; ``ripe``: commands
    after which a batch leaves. ``batch``: the number of the last message, ``left``: commands in messages."""

    direct = armed = check = replay = False
    replayed = 0  # recognizing what repeats would cost more here than it saves

    def __init__(self) -> None:
        self.number = _next_number()
        self.ripe = BATCH
        self.pending: list = []
        self.freed: Any = deque()
        self._taken = self.batch = self.left = 0
        self._origins: dict[int, Any] = {}

    @property
    def total(self) -> int:
        """How many commands have entered."""
        return self._taken + len(self.pending) // 2

    @property
    def unsent(self) -> int:
        """How many commands wait to leave."""
        return len(self.pending) // 2 + (len(self.freed) > 0)

    def add(self, command: tuple, place: tuple | None) -> None:
        """Queue a command that was issued at ``place``."""
        pending = self.pending
        pending += (command, place)
        if not self.armed:
            self.armed = True
            ticker.arm()

    def free(self, handle: int) -> None:
        """Forget a handle on the worker. Never raises; called by finalizers, in any thread."""
        try:
            self.add((_T_FREE, (handle,)), None)
        except Exception:
            pass  # a forked child, or an interpreter that is shutting down

    def gather(self) -> None:
        """Make commands of what was freed: after those that used it, before whoever asks what memory is left."""
        waiting = self.freed
        left = len(waiting)  # what is freed meanwhile waits: a handler that computes here frees at every line
        while left > 0:
            freed = []
            try:
                for _ in range(min(left, limits.HANDLES)):
                    freed.append(waiting.popleft())  # one by one: a finalizer may come between, and be in here
            except IndexError:
                pass
            left -= limits.HANDLES
            if freed:
                pending = self.pending
                pending += ((_T_FREE, freed), None)

    def take(self, limit: int, whole: bool, last: bytes = b"", *place: Any) -> bytes:
        """The first commands leave: the body of the next message; empty where there are none. ``last``: an encoded
        command that leaves behind them, issued at ``place``."""
        if not whole:
            self.gather()
        both = self.pending[: 2 * limit]
        commands, places = both[::2], both[1::2]
        if last:
            commands.append(last)
            places.append(place or None)
        if not commands:
            return b""
        body = codec.pack_parts([self.batch + 1, codec.pack_parts(commands)])
        self.leave(places)
        del self.pending[: len(both)]  # not what was added meanwhile
        self._taken += len(both) // 2
        return body

    def leave(self, places: Any) -> int:
        """Number a message that leaves past the queue, and whose commands came from these places."""
        self.batch += 1
        self.left += len(places)
        self._origins[self.batch] = places
        self._origins.pop(self.batch - ORIGINS, None)
        return self.batch

    def places(self, batch: int) -> Any:
        """Where the commands of a message came from, in order; None: that is forgotten, or it never was."""
        return self._origins.get(batch)

    def refuse(self) -> None:
        """After a fork: nothing enters any more, and what is freed is ignored."""
        self.pending, self.freed = _Refusing(), deque(maxlen=0)


if TYPE_CHECKING or _native.issue is None:
    Queue = PureQueue
    next_handle = itertools.count(1).__next__
else:
    next_handle = _native.issue.next_handle

    class Queue(_native.issue.Queue):
        """The C core's, which takes commands in their wire form."""

        def __init__(self) -> None:
            self.number = _next_number()
            self.ripe = BATCH

        def add(self, command: tuple, place: tuple | None) -> None:
            self.add_packed(codec.pack(command), *place or ())

        def refuse(self) -> None:
            super().refuse()
            self.add = _refuse

    def _refuse(*_: Any) -> None:
        raise ForkError(FORKED)

    _native.issue.configure(arm=ticker.arm)
