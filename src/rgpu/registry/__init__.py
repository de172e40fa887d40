"""Which servers there are: named in a setting, registered in etcd, or named by tokens; and how a server registers.

``etcd`` speaks to it, ``mirror`` watches it, ``directory`` says what stands where, ``grants`` gets devices of several
servers at once. Used when a pool is built and never again: nothing that runs may depend on the registry, and each
server stays the authority over its own devices.
"""

from __future__ import annotations

from typing import Any

from rgpu import tokens
from rgpu.config import Address, ClientConfig
from rgpu.errors import ConfigError


def servers(settings: ClientConfig) -> tuple[Address | str, ...]:
    """The servers of the pool: those of ``servers``, else of ``registry``, else of the tokens; empty: nobody names any.

    Raises RegistryUnavailable when the registry is needed and cannot be read, or knows no server; ConfigError when it
    knows one that no token is for, though there are tokens.
    """
    if settings.servers:
        return settings.servers
    if settings.registry:
        from rgpu.registry import directory  # what it needs costs commands time that use none

        return known(directory.servers(settings.registry, settings.connect_timeout), settings.registry)
    return tokens.servers()


def queue(settings: ClientConfig, timeout: float) -> list[dict[str, Any]]:
    """Who waits for devices of the registry, first whoever is served first (``grants.queue``); nobody where it is not
    used. Raises RegistryUnavailable."""
    if not used(settings):
        return []
    from rgpu.registry import grants

    return grants.queue(settings.registry, timeout)


def used(settings: ClientConfig) -> bool:
    """Whether the servers come from the registry: some may have ended just now, and leases are granted there."""
    return bool(settings.registry and not settings.servers)


def known(found: tuple[Address, ...], url: str) -> tuple[Address, ...]:
    """Whoever has tokens never talks openly with a server because somebody wrote its address into etcd."""
    strangers = [str(address) for address in found if tokens.find(address) is None] if tokens.found() else []
    if strangers:
        raise ConfigError(
            f"no token is for {', '.join(strangers[:3])}, found in {url}: RGPU_TOKEN=FILE shows that token to every "
            "server; `rgpu token create` can name more servers; RGPU_SERVERS chooses among them"
        )
    return found
