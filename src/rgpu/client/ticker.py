"""One thread that sends what the user's threads left unsent, and looks after links.

It wakes a millisecond after something was queued, sends a batch that no longer grows, and sleeps
while nothing happens. It never waits for a peer: a stream whose window is full has its turn later.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

from rgpu.client.shield import shield

TICK = 0.001  # seconds between looks at unsent commands
IDLE = 0.25  # seconds between looks at links when nothing is unsent


class Ticker:
    """``arm`` says that something is queued; streams are asked to ``tick``."""

    def __init__(self) -> None:
        self.armed = False
        self._streams: list[Any] = []
        self._bell = threading.Lock()  # held until it rings
        self._bell.acquire()
        self._thread: threading.Thread | None = None
        self._lock = threading.RLock()

    def arm(self) -> None:
        """Called by finalizers too, which run between any two instructions of a thread that may be in here itself: an
        Event, whose lock is Python's, would wait for itself."""
        self.armed = True
        try:
            self._bell.release()
        except RuntimeError:
            pass  # it rings already

    def add(self, stream: Any) -> None:
        with self._lock:
            self._streams.append(stream)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="rgpu-ticker", daemon=True)
                self._thread.start()

    def remove(self, stream: Any) -> None:
        with self._lock:
            if stream in self._streams:
                self._streams.remove(stream)

    def _run(self) -> None:
        while not sys.is_finalizing():
            self._bell.acquire(timeout=IDLE)
            shield.look()
            self._round()
            while self.armed and not sys.is_finalizing():
                time.sleep(TICK)
                shield.look()
                self.armed = False  # a stream disarms itself before it looks: who comes later arms both again
                self.armed = self._round() or self.armed

    def _round(self) -> bool:
        """Ask every stream; whether one has something left to send."""
        unsent = False
        for stream in list(self._streams):
            try:
                unsent |= stream.tick()
            except Exception as error:  # told to the user at the next submit or wait
                if stream.connection.failure is None:
                    stream.connection.fail(error)
                self.remove(stream)
        return unsent


ticker = Ticker()
