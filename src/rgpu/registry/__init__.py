"""Which servers there are: named in a setting, registered in etcd, or named by tokens; and how a server registers.

``etcd`` speaks to it, ``directory`` says what stands where. Read when a pool is built and never again: nothing that
runs may depend on the registry. What is not here: leases; each server stays the authority over its own devices.
"""

from __future__ import annotations

from rgpu import tokens
from rgpu.config import Address, ClientConfig


def servers(settings: ClientConfig) -> tuple[Address | str, ...]:
    """The servers of the pool: those of ``servers``, else of ``registry``, else of the tokens; empty: nobody names any.

    Raises RegistryUnavailable when the registry is needed and cannot be read, or knows no server.
    """
    if settings.servers:
        return settings.servers
    if settings.registry:
        from rgpu.registry import directory  # what it needs costs commands time that use none

        return directory.servers(settings.registry, settings.connect_timeout)
    return tokens.servers()
