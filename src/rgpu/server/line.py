"""Who waits in the registry, as the page and the metrics of a server show it beside the server's own queue.

The queue is watched, and a thread works out its order (for which all books are read) only while somebody waits there
and somebody looks here: a thousand servers must not read a thousand books every second.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from rgpu.errors import RegistryUnavailable
from rgpu.registry import grants
from rgpu.registry.directory import QUEUE
from rgpu.registry.mirror import Mirror

PAUSE_SECONDS = 1.0  # between two readings
TIMEOUT_SECONDS = 2.0


class Line:
    """``rows``: who waits for a device of the server at ``address``, the registry's first one first. ``looked_at``:
    whether somebody looks at what is shown."""

    def __init__(self, url: str, address: str, looked_at: Callable[[], bool]) -> None:
        self._url, self._address, self._looked_at = url, address, looked_at
        self.rows: list[dict[str, Any]] = []
        self._over = threading.Event()
        self._mirror = Mirror(url, QUEUE, TIMEOUT_SECONDS)
        self._thread = threading.Thread(target=self._run, name="rgpu-line", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._mirror.close()
        self._thread.join(2 * TIMEOUT_SECONDS)

    def _run(self) -> None:
        while not self._over.wait(PAUSE_SECONDS):
            _, _, waiting, failure = self._mirror.look()
            if not waiting or failure is not None:
                self.rows = []
            elif self._looked_at():
                self.rows = self._read()

    def _read(self) -> list[dict[str, Any]]:
        try:
            rows = grants.queue(self._url, TIMEOUT_SECONDS)
        except RegistryUnavailable:
            return []
        return [row for row in rows if not row["servers"] or self._address in row["servers"]]
