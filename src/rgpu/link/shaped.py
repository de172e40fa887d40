"""A link as slow as one wishes: a delay and a bandwidth in front of any other link, for measuring.

RGPU_EMULATED_LINK=``<round trip in us>us,<bandwidth>MB/s[,<file>]`` in a server's environment puts it before the links
between its workers and those of other hosts, so that one machine can stand for a cluster (docs/scale.md);
``<host>=<round trip>...`` is for the links to that host alone (its RGPU_HOST_ID), and semicolons separate several such
parts. Links whose workers name the same (writable) file share one line out, as those of one host do. It changes nothing
but times; a message that it took and could not deliver is lost as with any other link.
"""

from __future__ import annotations

import fcntl
import os
import re
import struct
import threading
import time
from collections import deque
from collections.abc import Callable

from rgpu.errors import ConfigError
from rgpu.link.base import COPY_BELOW, Link

SETTING = "RGPU_EMULATED_LINK"
_FORM = re.compile(r"(?:([^=,]+)=)?(\d+(?:\.\d+)?)us,(\d+(?:\.\d+)?)MB/s(?:,(.+))?")
_MOMENT = struct.Struct("d")
_SLACK = 4 << 20  # bytes that may wait beyond what fills the line


Shape = tuple[float, float, str | None]  # seconds of a round trip, bytes a second, file of the line


def setting() -> dict[str, Shape]:
    """By the host at the other end; "": any host that is not named. Nothing: no emulation."""
    text, found = os.environ.get(SETTING, ""), {}
    for part in filter(None, text.split(";")):
        match = _FORM.fullmatch(part.strip())
        if match is None:
            raise ConfigError(f"{SETTING}={text!r}: expected for example 100us,1250MB/s;hostB=2000us,10MB/s")
        found[match[1] or ""] = float(match[2]) * 1e-6, float(match[3]) * 1e6, match[4]
    return found


def wrap(inner: Link) -> Link:
    """The link itself, or behind an emulation where one is asked for."""
    found = setting()
    return ShapedLink(inner, found) if found else inner


class Line:
    """When a line is free again: of one link, or of all that share a file."""

    def __init__(self, bandwidth: float, path: str | None = None) -> None:
        self._bandwidth, self._free = bandwidth, 0.0
        self._file = None if path is None else open(path, "r+b", buffering=0)  # noqa: SIM115 - closed with the line

    def take(self, nbytes: int) -> float:
        """The moment at which the last of these bytes has left."""
        if self._file is None:
            self._free = self._after(self._free, nbytes)
            return self._free
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            known = os.pread(self._file.fileno(), _MOMENT.size, 0)
            free = self._after(_MOMENT.unpack(known)[0] if len(known) == _MOMENT.size else 0.0, nbytes)
            os.pwrite(self._file.fileno(), _MOMENT.pack(free), 0)
            return free
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def _after(self, free: float, nbytes: int) -> float:
        return max(free, time.monotonic()) + nbytes / self._bandwidth

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class ShapedLink(Link):
    """``narrow`` switches the emulation on, for a link to that host; before that everything passes at once."""

    def __init__(self, inner: Link, shapes: dict[str, Shape]) -> None:
        self._inner, self._shapes = inner, shapes
        self._delay = self._room = 0.0
        self._line: Line | None = None
        self._queue: deque[tuple[float, list, int]] = deque()
        self._waiting, self._narrow, self._closed = 0, False, False
        self._lent = False  # whether memory of others waits here
        self._changed = threading.Condition()

    # What the link behind is, and may become when it connects to another place, this one is.

    @property
    def uri(self) -> str:  # type: ignore[override]
        return self._inner.uri

    @property
    def kind(self) -> str:  # type: ignore[override]
        return self._inner.kind

    @property
    def chunk(self) -> int:  # type: ignore[override]
        return self._inner.chunk

    @property
    def holding(self) -> bool:  # type: ignore[override]
        return self._lent or self._inner.holding

    @property
    def life(self) -> float:  # type: ignore[override]
        return self._inner.life

    @life.setter
    def life(self, seconds: float) -> None:
        self._inner.life = seconds

    def narrow(self, host: str = "") -> None:
        shape = self._shapes.get(host) or self._shapes.get("")
        if shape is not None and not self._narrow:
            round_trip, bandwidth, path = shape
            self._delay, self._line, self._room = round_trip / 2, Line(bandwidth, path), round_trip * bandwidth + _SLACK
            self._narrow = True
            threading.Thread(target=self._deliver, name="rgpu-emulated-link", daemon=True).start()

    def send(self, frames: list, copy_below: int = COPY_BELOW) -> bool:
        if not self._narrow:
            return self._inner.send(frames, copy_below)
        nbytes = sum(map(len, frames))
        # These wait here: what the caller may change after this call has to be copied.
        frames = [frame if type(frame) is bytes or len(frame) >= copy_below else bytes(frame) for frame in frames]
        with self._changed:
            if self._closed or (self._waiting and self._waiting + nbytes > self._room):
                return False
            due = self._line.take(nbytes) + self._delay  # type: ignore[union-attr]
            self._queue.append((due, frames, nbytes))
            self._lent |= any(len(frame) >= copy_below for frame in frames)
            self._waiting += nbytes
            self._changed.notify()
        return True

    def _deliver(self) -> None:
        while True:
            with self._changed:
                while not self._queue and not self._closed:
                    self._changed.wait(1.0)
                if self._closed:
                    return
                due, frames, nbytes = self._queue[0]
            left = due - time.monotonic()
            if left > 0:
                time.sleep(left)
            end = time.monotonic() + 1.0
            while not self._inner.send(frames) and not self._closed and time.monotonic() < end:
                time.sleep(0.0005)
            with self._changed:
                if self._queue and self._queue[0][1] is frames:
                    self._queue.popleft()
                    self._waiting -= nbytes
                    self._lent &= bool(self._queue)
            self._inner.wake()  # whoever was refused may try again

    def events(self) -> list[str]:
        found = self._inner.events()
        if "down" in found:
            with self._changed:
                self._queue.clear()
                self._waiting, self._lent = 0, False
        return found

    def recv(self, sink=None):
        return self._inner.recv(sink)

    def wait(self, timeout: float, unless: Callable[[], bool] | None = None) -> bool:
        return self._inner.wait(timeout, unless)

    def wake(self) -> None:
        self._inner.wake()

    def close(self) -> None:
        end = time.monotonic() + 1.0
        while self._queue and time.monotonic() < end:
            time.sleep(0.005)
        self._end()
        self._inner.close()

    def abort(self) -> None:
        self._end()
        self._inner.abort()

    def _end(self) -> None:
        with self._changed:
            if not self._closed:
                self._closed = True
                self._queue.clear()
                self._waiting, self._lent = 0, False
                if self._line is not None:
                    self._line.close()
            self._changed.notify_all()

    @property
    def sent_bytes(self) -> int:  # type: ignore[override]
        return self._inner.sent_bytes

    @property
    def received_bytes(self) -> int:  # type: ignore[override]
        return self._inner.received_bytes
