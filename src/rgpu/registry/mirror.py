"""A copy of what stands under a prefix of etcd, kept by watching it: nobody asks again and again.

It is a moment old and says of which revision; decisions that matter are transactions on what it says. After a loss of
etcd it is read anew; until then it keeps what it knew, with the ``failure``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from rgpu.errors import RegistryUnavailable
from rgpu.registry.etcd import Entry, Etcd, Watches

RETRY_SECONDS = (0.1, 0.5, 1.0, 2.0)  # between attempts to read it again


class Mirror:
    """``changed`` is called, in the mirror's own thread, whenever there is something new."""

    def __init__(self, url: str, prefix: str, timeout: float, changed: Callable[[], None] = lambda: None) -> None:
        self._etcd, self._prefix, self._changed = Etcd(url, timeout), prefix, changed
        self._entries: dict[str, Entry] = {}
        self._revision = 0
        self._versions = 0  # how often something changed; revisions begin again when etcd is emptied
        self._failure: RegistryUnavailable | None = None
        self._news = threading.Condition()
        self._open = Watches()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rgpu-mirror", daemon=True)
        self._thread.start()

    def look(self) -> tuple[int, int, dict[str, Entry], RegistryUnavailable | None]:
        """The version, for ``wait``; the revision (0: nothing was read yet), its entries, and why they may be old."""
        with self._news:
            return self._versions, self._revision, dict(self._entries), self._failure

    def wait(self, version: int, timeout: float) -> bool:
        """Until there is something newer than a version; False when the time is over before."""
        with self._news:
            return self._news.wait_for(lambda: self._versions > version, max(0.0, timeout))

    def close(self) -> None:
        self._over.set()
        self._open.close()
        self._thread.join(self._etcd.timeout + 1.0)
        self._etcd.close()

    def _run(self) -> None:
        failures = 0
        while not self._over.is_set():
            try:
                revision, entries = self._etcd.snapshot(self._prefix)
                self._tell(revision, entries, None)
                failures = 0
                for then, changes in self._etcd.watch(self._prefix, revision + 1, self._open):
                    for key, entry in changes.items():
                        if entry is None:
                            entries.pop(key, None)
                        else:
                            entries[key] = entry
                    self._tell(then, entries, None)
            except RegistryUnavailable as error:
                self._tell(None, {}, error)
                self._over.wait(RETRY_SECONDS[min(failures, len(RETRY_SECONDS) - 1)])
                failures += 1

    def _tell(self, revision: int | None, entries: dict[str, Entry], failure: RegistryUnavailable | None) -> None:
        with self._news:
            if revision is not None:
                self._revision, self._entries = revision, dict(entries)
            self._failure = failure
            self._versions += 1
            self._news.notify_all()
        self._changed()
