"""What stands in the registry: every server under its own address, for as long as it keeps its entry.

    /rgpu/v1/servers/HOST:PORT    {"name", "version", "quotas", "devices": [what filters may ask for, ...]}
    /rgpu/v1/books/HOST:PORT      what is lent of them (``grants``), written by the server and by those who ask

Whoever may write to etcd decides which servers clients ask; that a server is the right one is shown by its key.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from rgpu.config import Address, parse_address
from rgpu.errors import RegistryUnavailable
from rgpu.registry.etcd import Etcd
from rgpu.registry.mirror import Mirror

log = logging.getLogger("rgpu.registry")

PREFIX = "/rgpu/v1/"
SERVERS, BOOKS, QUEUE = PREFIX + "servers/", PREFIX + "books/", PREFIX + "queue/"
TTL = 10  # seconds after which a server that is silent is no longer found
KEEP_SECONDS = TTL / 4


def servers(url: str, timeout: float) -> tuple[Address, ...]:
    """The addresses of all servers that are registered, in the order of their texts: the same for every client."""
    etcd = Etcd(url, timeout)
    try:
        keys = sorted(key.removeprefix(SERVERS) for key in etcd.read(SERVERS))
    finally:
        etcd.close()
    found = []
    for key in keys:
        try:
            found.append(parse_address(key))
        except ValueError:
            continue  # not written by a server
    if not found:
        raise RegistryUnavailable(
            f"no server is registered in {url}: start one with 'rgpu-server --registry {url}' (one that lost the "
            f"registry comes back within {KEEP_SECONDS:g} s), or name servers in RGPU_SERVERS",
            "empty",
        )
    return tuple(dict.fromkeys(found))


class Registration:
    """A server's entry and its book, kept by threads until ``close``; after a loss of etcd they are made again.

    ``start``, then ``publish`` what the book should say; ``seen`` is what it says. ``changed`` is called, in another
    thread, when that is something new.
    """

    def __init__(self, url: str, address: Address, about: dict[str, Any]) -> None:
        self.url, self.address, self._about = url, address, about
        self._key = f"{BOOKS}{address}"
        self._etcd = Etcd(url, timeout=2.0)
        self._lease = 0
        self._wanted: tuple[int, dict[str, Any]] = (0, {})
        self._work = threading.Event()
        self._over = False
        self._thread = threading.Thread(target=self._run, name="rgpu-registry", daemon=True)

    def start(self, book: dict[str, Any], changed: Callable[[], None]) -> None:
        self._wanted = (0, book)
        self._mirror = Mirror(self._etcd.url, self._key, 2.0, changed)
        self._thread.start()

    def seen(self) -> tuple[int, dict[str, Any] | None]:
        """The book with the revision of its last writing; None while there is none, or etcd is not to be had."""
        _, revision, entries, failure = self._mirror.look()
        entry = entries.get(self._key)
        return (revision, None) if entry is None or failure is not None else (entry.modified, entry.value)

    def publish(self, based_on: int, book: dict[str, Any]) -> None:
        """What the book should say, in place of what was seen at a revision; if it was changed meanwhile, nothing is
        done. With the next entry that is made, it is written in any case."""
        self._wanted = (based_on, book)
        self._work.set()

    def close(self) -> None:
        """Take the entry out; where etcd does not answer, it goes by itself."""
        self._over = True
        self._work.set()
        self._thread.join(TTL / 2)
        self._mirror.close()

    def _run(self) -> None:
        registered: bool | None = None  # None: nothing was said yet
        keep_at, written = 0.0, self._wanted
        while not self._over:
            self._work.clear()
            wanted = self._wanted
            try:
                if time.monotonic() >= keep_at:
                    keep_at = time.monotonic() + KEEP_SECONDS
                    self._keep()
                if self._lease and wanted != written:
                    self._etcd.transact({self._key: wanted[0]}, {self._key: wanted[1]}, self._lease)
                    written = wanted
                if not registered:
                    log.info("registered in %s as %s", self._etcd.url, self.address)
                registered = True
            except RegistryUnavailable as error:
                if registered is not False:
                    log.warning("not registered, tried again every %g s: %s", KEEP_SECONDS, error)
                registered = False
            self._work.wait(max(0.0, keep_at - time.monotonic()) if registered else KEEP_SECONDS)
        try:
            if self._lease:
                self._etcd.revoke(self._lease)
        except RegistryUnavailable as error:
            log.warning("the entry in the registry ends in %d s: %s", TTL, error)
        finally:
            self._etcd.close()

    def _keep(self) -> None:
        """Once more the entry's time; a new one when etcd no longer has it."""
        if self._lease and self._etcd.keep(self._lease):
            return
        lease = self._etcd.lease(TTL)
        self._etcd.transact({}, {f"{SERVERS}{self.address}": self._about, self._key: self._wanted[1]}, lease)
        self._lease = lease
