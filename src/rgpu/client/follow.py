"""Commands follow the thread that issues them: its current CUDA stream and its memory pool.

A worker runs one command after the other on one current stream, while each thread of the client has
its own. ``follow`` makes a CommandStream tell the worker when that changes; one that never met a stream
or a pool stays as it is and pays nothing. What is current is decided above, in ``rgpu.cuda``.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from rgpu.client.stream import CommandStream
from rgpu.wire import ops, values
from rgpu.wire.functions import BY_NAME

DEFAULT = 0  # as a stream: the default one; as a pool: the default one
NO_POOL = -1  # memory that belongs to no pool


class _Wanted(threading.local):
    """What this thread's commands should run on; ``pool`` None: what the process uses."""

    cuda_stream: int = DEFAULT
    pool: int | None = None


_WAITS = (ops.Read.tag, ops.Sync.tag)


class _Forbidden(threading.local):
    """What this thread's waits raise, if anything (``cupyx.allow_synchronize``)."""

    error: type[Exception] | None = None


_forbidden = _Forbidden()


class FollowingStream(CommandStream):
    """A CommandStream that has met CUDA streams or memory pools. Made by ``follow`` only."""

    wanted: _Wanted
    process_pool: int
    told_stream: int
    told_pool: int
    ahead: set[int]  # streams on which something may run beside the commands: collectives
    capturing: set[int]  # CUDA streams whose work is recorded, and has not begun

    def let_direct(self, on: bool) -> None:
        """Commands that enter by themselves would follow nobody."""

    def submit(self, command: tuple) -> None:
        with self.lock:  # no other thread's command may come between the switch and this one
            self._tell()
            self._order(command)
            super().submit(command)

    def _queue(self, command: tuple) -> None:
        if self.wanted.cuda_stream in self.capturing:
            raise RuntimeError("the current stream is capturing: it cannot be waited for, nor results be read")
        if _forbidden.error is not None and command[0] in _WAITS:
            raise _forbidden.error()
        with self.lock:
            self._tell()
            self._order(command)
            super()._queue(command)

    def write(self, handle: int, data: memoryview) -> None:
        with self.lock:
            self._tell()
            self._order(None)
            super().write(handle, data)

    def _order(self, command: tuple | None) -> None:
        """A command that works on data, on a stream with collectives: they come first."""
        stream = self.told_stream
        if command is not None and command[0] == ops.Collective.tag:
            if stream != DEFAULT:
                self.ahead.add(stream)
        elif stream in self.ahead and (command is None or not _is_mere_order(command)):
            self.ahead.discard(stream)
            super().submit(ops.Call.encode(BY_NAME["stream.join"].id, [], [[values.HANDLE, stream]], {}))

    def _tell(self) -> None:
        wanted = self.wanted
        if wanted.cuda_stream != self.told_stream:
            self.told_stream = wanted.cuda_stream
            super().submit(ops.UseStream.encode(self.told_stream))
        pool = self.process_pool if wanted.pool is None else wanted.pool
        if pool != self.told_pool:
            self.told_pool = pool
            argument = pool if pool in (DEFAULT, NO_POOL) else [values.HANDLE, pool]
            super().submit(ops.Call.encode(BY_NAME["memory.use_pool"].id, [], [argument], {}))


_NO_DATA = {ops.View.tag, ops.Free.tag, ops.UseStream.tag, ops.Expect.tag, ops.Sync.tag, ops.Empty.tag}
_ORDERS = {f.id for f in BY_NAME.values() if f.name.partition(".")[0] in ("stream", "event", "memory", "nccl", "peer")}


def _is_mere_order(command: tuple) -> bool:
    """Whether a command touches no array's content."""
    tag = command[0]
    return tag in _NO_DATA or (tag in (ops.Call.tag, ops.Ask.tag) and command[1 + (tag == ops.Ask.tag)] in _ORDERS)


def follow(stream: CommandStream) -> FollowingStream:
    """The same object, from now on following its threads."""
    with stream.lock:
        if not isinstance(stream, FollowingStream):
            stream.wanted, stream.process_pool = _Wanted(), DEFAULT  # type: ignore[attr-defined]
            stream.told_stream = stream.told_pool = DEFAULT  # type: ignore[attr-defined]
            stream.ahead = set()  # type: ignore[attr-defined]
            stream.capturing = set()  # type: ignore[attr-defined]
            stream.direct = False
            stream.__class__ = FollowingStream
    return stream  # type: ignore[return-value]


def use(stream: CommandStream, cuda_stream: int) -> None:
    """This thread's commands to this device run on a CUDA stream (its handle; 0: the default one)."""
    if cuda_stream != DEFAULT or isinstance(stream, FollowingStream):
        follow(stream).wanted.cuda_stream = cuda_stream


def use_pool(stream: CommandStream, pool: int | None) -> None:
    """This thread's results on this device come from a pool (None: the process's)."""
    if pool is not None or isinstance(stream, FollowingStream):
        follow(stream).wanted.pool = pool


def use_pool_everywhere(stream: CommandStream, pool: int) -> None:
    """The same, for every thread that has not chosen its own."""
    if pool != DEFAULT or isinstance(stream, FollowingStream):
        follow(stream).process_pool = pool


def wait_ahead(stream: CommandStream, cuda_stream: int) -> None:
    """What comes on a CUDA stream may have to wait for collectives of another."""
    if cuda_stream != DEFAULT:
        follow(stream).ahead.add(cuda_stream)


@contextlib.contextmanager
def forbid(streams: list[CommandStream], error: type[Exception] | None) -> Iterator[None]:
    """Inside, this thread's reading of results and waiting for these devices raises (None: is allowed)."""
    for stream in streams:
        follow(stream)
    before, _forbidden.error = _forbidden.error, error
    try:
        yield
    finally:
        _forbidden.error = before


@contextlib.contextmanager
def on(stream: CommandStream, cuda_stream: int | None = None, pool: int | None = None) -> Iterator[None]:
    """Inside, this thread's commands run on another stream or take memory from another pool."""
    following: Any = isinstance(stream, FollowingStream)
    if cuda_stream in (None, DEFAULT) and pool in (None, DEFAULT) and not following:
        yield
        return
    wanted = follow(stream).wanted
    before = wanted.cuda_stream, wanted.pool
    if cuda_stream is not None:
        wanted.cuda_stream = cuda_stream
    if pool is not None:
        wanted.pool = pool
    try:
        yield
    finally:
        wanted.cuda_stream, wanted.pool = before
