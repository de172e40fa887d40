"""What stands in the registry: every server under its own address, for as long as it keeps its entry.

    /rgpu/v1/servers/HOST:PORT    {"name", "version", "labels", "devices": [{"kind", "name", "memory_total"}, ...]}

Whoever may write to etcd decides which servers clients ask; that a server is the right one is shown by its key.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

from rgpu.config import Address, parse_address
from rgpu.errors import RegistryUnavailable
from rgpu.registry.etcd import Etcd

log = logging.getLogger("rgpu.registry")

SERVERS = "/rgpu/v1/servers/"
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
    """A server's entry, kept by a thread until ``close``; after a loss of etcd it is made again."""

    def __init__(self, url: str, address: Address, about: dict[str, Any]) -> None:
        self.address, self._about = address, about
        self._etcd = Etcd(url, timeout=2.0)
        self._lease = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rgpu-registry", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Take the entry out; where etcd does not answer, it goes by itself."""
        self._over.set()
        self._thread.join(TTL / 2)

    def _run(self) -> None:
        registered: bool | None = None  # None: nothing was said yet
        while True:
            try:
                self._keep()
                if not registered:
                    log.info("registered in %s as %s", self._etcd.url, self.address)
                registered = True
            except RegistryUnavailable as error:
                if registered is not False:
                    log.warning("not registered, tried again every %g s: %s", KEEP_SECONDS, error)
                registered = False
            if self._over.wait(KEEP_SECONDS):
                break
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
        self._etcd.put(f"{SERVERS}{self.address}", self._about, lease)
        self._lease = lease
