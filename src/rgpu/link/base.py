"""The contract of a link, kept by every transport and checked by one conformance kit.

A message is a list of one or more frames (bytes or flat memoryviews of bytes). It arrives whole or
not at all; messages of one connection arrive in order; a break may lose any number of the last ones.
"""

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from rgpu.wire import limits

Frame = bytes | memoryview
Sink = Callable[[list], memoryview | None]  # frames so far -> where the next one goes, or None

COPY_BELOW = 64 << 10  # a frame of this size or more is sent without a copy
give_way = getattr(os, "sched_yield", lambda: None)

PLACED = 96 << 10  # a frame of this size or more is received where the sink says


class Link(ABC):
    """One end of a connection to one peer. Every method may be called from any thread; a closed link
    takes nothing, has nothing, and ends every wait at once."""

    uri: str
    kind: str = ""  # what carries it, as users name it: tcp, shm, ucx, zmq
    chunk: int = limits.CHUNK_BYTES  # bytes of the pieces in which large data leave
    holding: bool = False  # whether memory of large frames that were taken may still be read
    sent_bytes: int = 0
    received_bytes: int = 0
    lock: Any = None  # held while it works, where it has one; its connection uses the same, so there is no order of two
    torn: bool = False  # whether a message is half in or out of it, for who comes in the midst of that
    silent: bool = False  # whether it went down because nothing was heard any more, and not by the other end
    plain: bool = False  # whether the C core can take a turn on it, see ``turn``
    life: float = 10.0  # seconds of silence after which the end that answers takes the other for gone: it may be busy

    @abstractmethod
    def send(self, frames: list, copy_below: int = COPY_BELOW) -> bool:
        """Hand a message over. False: would block, or nobody there now; nothing was taken. Never
        waits. Frames of ``copy_below`` bytes or more must not change while they are under way."""

    @abstractmethod
    def recv(self, sink: Sink | None = None) -> list[Frame] | None:
        """The next message, or None. ``sink`` is asked before each frame of PLACED bytes or more but the
        first, and may be asked before others; its memory may be written to until the frame is whole."""

    @abstractmethod
    def wait(self, timeout: float, unless: Callable[[], bool] | None = None) -> bool:
        """Wait until there is something to receive, an event, or ``wake``. False: time is up.
        ``unless`` is evaluated once a ``wake`` cannot be missed any more; true ends the wait."""

    def look(self, seconds: float) -> bool:
        """The same without sleeping and without hearing ``wake``. Others may use this core meanwhile: the
        peer might be waiting for it."""
        until = time.monotonic() + seconds
        while not self.wait(0):
            if time.monotonic() >= until:
                return False
            give_way()
        return True

    def turn(
        self,
        session: Any,
        frames: list | None,
        sink: Sink | None,
        patience: float,
        run: Callable[[list], list | None] | None = None,
    ) -> Any:
        """One turn of a conversation in one call: send ``frames``, if any, as the session's next message, then look
        for so many seconds for the next one that the session delivers, and return that, a list. ``run`` is given it
        first, and what it returns, if anything, leaves as its answer at once (nothing does where that has no frames):
        True, and the message is marked as done. ``sink`` is that of a large frame, see ``recv``.
        Where nothing has come, or (``patience`` below 0) nobody looked: None. False: nothing was to be sent, and what
        has come is for ``recv``.
        NotImplemented: nothing was sent, and the long way (``send``, ``look``, ``recv``) has to do it."""
        return NotImplemented

    @abstractmethod
    def wake(self) -> None:
        """End the waits of all threads that wait now."""

    @abstractmethod
    def events(self) -> list[str]:
        """The changes since the last call, in order: "up", "down". A new link is down."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the link; what was sent leaves within a second, in the background."""

    @abstractmethod
    def abort(self) -> None:
        """Let go of the link and of everything under way, now."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.uri} sent {self.sent_bytes} received {self.received_bytes}>"


class Listener(ABC):
    """Where one client will connect. ``uri`` is what it has to be told (``uris``: any of them)."""

    uri: str

    @property
    def uris(self) -> list[str]:
        return [self.uri]

    @abstractmethod
    def accept(self, identity: bytes | None = None) -> Link:
        """The link to the client with this identity (None: to the first that speaks). Returns at
        once; the listener has then done its work."""

    @abstractmethod
    def close(self) -> None:
        """Stop listening, unless the link was accepted: then the link owns the place."""
