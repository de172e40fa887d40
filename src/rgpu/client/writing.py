"""How a host's bytes become an array's content: in chunks, as they lie or from a copy, or not at all.

Part of a command stream; whatever waits here waits only while the window is full, or to measure.
"""

from __future__ import annotations

import contextlib
import sys
import time
from typing import Any

from rgpu.client import failures
from rgpu.client.shield import shield
from rgpu.client.staging import staging
from rgpu.client.uploads import Uploads
from rgpu.errors import ForkError, ProtocolError, SessionLost
from rgpu.link.base import PLACED
from rgpu.wire import codec, limits, ops

LIE = 2 << 20  # bytes: so much leaves as it lies, and waits whether it arrives before a copy of it would be made
_HEAD = 64  # bytes that a chunk has beside its data, at most
COPIED = 5e9  # bytes a second that are copied into fresh memory


def _lasting(data: memoryview) -> memoryview:
    """The data, which the caller may change afterwards. What is large leaves as it lies: copying it first would take
    longer than the peer takes to have it."""
    return memoryview(staging.copy(data)) if len(data) < LIE else data


class Writing:
    """What a stream does with uploads."""

    lock: Any
    connection: Any
    mirror: Any
    counters: Any
    name: str
    uploads: Uploads
    flush: Any
    submit: Any
    _sending: bool
    _await_room: Any
    leave: Any
    _post: Any

    def write(self, handle: int, data: memoryview) -> None:
        """Send a contiguous array's bytes in chunks; the source may change afterwards.

        Large sources are sent as they lie; what the worker does not have yet at the end is copied. Waits
        only while the window of unacknowledged bytes is full, and no longer than copying would take.
        """
        place = failures.place_of(sys._getframe(1))
        known = self.uploads.found(data) if self.mirror is None else None
        if known is not None and self._recall(known[0], handle, len(data)):
            return
        began = time.monotonic()
        self._write(handle, _lasting(data), place)
        if known is not None:
            # Another thread may have changed the source meanwhile: then nobody knows what was sent.
            if self.uploads.name(data) == known[0]:
                self._remember(known[0], handle)
        elif self.mirror is None and self.connection.link.kind != "shm" and (wait := self.uploads.measures(len(data))):
            with contextlib.suppress(SessionLost, ProtocolError, ForkError), shield:
                self.uploads.took(self.connection.flush(began + wait))

    def write_past(self, handle: int, data: memoryview) -> None:
        """``write``, past the queue: what the worker keeps of uploads is told by the queue, after which there may be no
        such handle any more."""
        self._write(handle, _lasting(data), None)

    def _recall(self, content: tuple[int, bytes], handle: int, nbytes: int) -> bool:
        """Fill an array with what the worker kept; False: it has not."""
        with self.entry(), shield:
            slot = self.uploads.slot(content)
            if slot is None or self.mirror is not None:
                return False
            self.submit(ops.Recall.encode(slot, handle))
            self.counters.recalled += 1
            self.counters.recalled_bytes += nbytes
        return True

    def _remember(self, content: tuple[int, bytes], handle: int) -> None:
        """The worker keeps what it just got."""
        with self.entry(), shield:
            if self.mirror is not None:
                return
            slot, gone = self.uploads.enter(content)
            if gone:
                self.submit(ops.Discard.encode(gone))
            self.submit(ops.Keep.encode(slot, handle))

    def _write(self, handle: int, data: memoryview, place: Any) -> None:
        if len(data) < PLACED:  # the worker copies it in any case
            self.flush(None, (codec.pack(ops.Write.encode(handle, 0, 0)), place, data))
            return
        posted: list[tuple[int, list]] = []
        try:
            chunk = self.connection.link.chunk if self.mirror is None else limits.CHUNK_BYTES
            for start in range(0, len(data), chunk):
                part = data[start : start + chunk]
                with self.entry():  # for each chunk: other threads may have their turn between them
                    self.flush()
                    if not self._await_room(_HEAD + len(part)):
                        raise TimeoutError(f"{self.name} takes no more data")
                    with shield:
                        self._sending = True  # a finalizer that comes now sends nothing in between
                        try:
                            frames = [codec.pack([self.leave([place]), [ops.Write.encode(handle, start, 0)]]), part]
                            self._post(frames)
                            posted.append((self.connection.progress[0], frames))
                        finally:
                            self._sending = False
        finally:
            if len(data) >= LIE:
                with shield:
                    self.connection.keep(posted, len(data) / COPIED, staging.copy)
