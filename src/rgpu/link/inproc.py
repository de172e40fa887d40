"""A link between two threads of one process: two bounded queues. For tests and embedded use.

Keeps the whole contract, so that what runs over it runs over a network; it never breaks by itself,
and the end that remains sees "down" when the other closes.
"""

import threading
import time
from collections import deque
from typing import Any

from rgpu.errors import ProtocolError, ServerUnavailable
from rgpu.link.base import COPY_BELOW, Link, Listener

HIGH_WATER = 64  # messages in one direction

_places: dict[str, "InprocListener"] = {}
_places_lock = threading.Lock()


class InprocLink(Link):
    """One end. Both ends share one lock, which guards both queues."""

    kind = "inproc"

    def __init__(self, uri: str, lock: threading.Lock) -> None:
        self.uri = uri
        self._changed = threading.Condition(lock)
        self._inbox: deque[list] = deque()
        self._events: deque[str] = deque()
        self._peer: InprocLink | None = None
        self._wakes = 0
        self._closed = False

    @staticmethod
    def join(a: "InprocLink", b: "InprocLink") -> None:
        with a._changed:
            a._peer, b._peer = b, a
            for end in (a, b):
                end._events.append("up")
                end._changed.notify_all()

    def send(self, frames: list, copy_below: int = COPY_BELOW) -> bool:
        with self._changed:
            peer = self._peer
            if peer is None or len(peer._inbox) >= HIGH_WATER:
                return False
            peer._inbox.append([bytes(f) for f in frames])
            self.sent_bytes += sum(map(len, frames))
            peer._changed.notify_all()
            return True

    def recv(self, sink=None):
        with self._changed:
            if not self._inbox:
                return None
            frames = self._inbox.popleft()
            if self._peer is not None:
                self._peer._changed.notify_all()
        self.received_bytes += sum(map(len, frames))
        if sink is None:
            return frames
        placed = frames[:1]
        for frame in frames[1:]:
            into = sink(placed)
            if into is not None:
                if len(frame) > len(into):
                    raise ProtocolError(f"a frame of {len(frame)} bytes came where {len(into)} were expected")
                into = into[: len(frame)]
                into[:] = frame
                frame = into
            placed.append(frame)
        return placed

    def wait(self, timeout, unless=None) -> bool:
        deadline = time.monotonic() + timeout
        with self._changed:
            wakes = self._wakes
            if unless is not None and unless():
                return True
            while not (self._closed or self._inbox or self._events or self._wakes != wakes):
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(left)
            return True

    def wake(self) -> None:
        with self._changed:
            self._wakes += 1
            self._changed.notify_all()

    def events(self) -> list[str]:
        if not self._events:
            return []
        with self._changed:
            events = list(self._events)
            self._events.clear()
            return events

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._inbox.clear()
            self._events.clear()
            peer, self._peer = self._peer, None
            if peer is not None:
                peer._peer = None
                peer._events.append("down")
                peer._changed.notify_all()
            self._changed.notify_all()

    def abort(self) -> None:
        with self._changed:
            if self._peer is not None:
                self._peer._inbox.clear()
        self.close()


class InprocListener(Listener):
    def __init__(self, uri: str) -> None:
        self.uri = uri
        lock = threading.Lock()
        self._client, self._server = InprocLink(uri, lock), InprocLink(uri, lock)
        self._client_identity: bytes | None = None
        self._wanted: bytes | None = None
        self._accepted = False

    def accept(self, identity: bytes | None = None) -> Link:
        with _places_lock:
            self._accepted, self._wanted = True, identity
            self._meet()
        return self._server

    def dial(self, identity: bytes) -> Link:
        if self._client_identity is not None:
            raise ServerUnavailable(f"{self.uri} has its client already")
        self._client_identity = identity
        self._meet()
        return self._client

    def _meet(self) -> None:
        if self._accepted and self._client_identity is not None:
            if self._wanted in (None, self._client_identity):
                InprocLink.join(self._client, self._server)
            _places.pop(self.uri, None)

    def close(self) -> None:
        with _places_lock:
            if not self._accepted:
                _places.pop(self.uri, None)


def connect(uri: str, identity: bytes, _token: Any = None) -> Link:
    with _places_lock:
        listener = _places.get(uri)
        if listener is None:
            raise ServerUnavailable(f"nobody listens at {uri}")
        return listener.dial(identity)


def listen(uri: str, _keys: Any = None) -> Listener:
    with _places_lock:
        if uri in _places:
            raise ServerUnavailable(f"{uri} is taken")
        listener = _places[uri] = InprocListener(uri)
        return listener
