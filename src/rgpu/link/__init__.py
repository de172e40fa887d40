"""Links: replaceable connections that carry multipart messages between one client and one worker.

Chosen by URI scheme: ``shm://`` (shared memory of one machine), ``ucx://`` (RDMA), ``tcp://``, ``zmq://`` and
``ipc://`` (ZeroMQ), ``inproc://`` (one process), and what an entry point of the group ``rgpu.links`` adds: a
module with this one's ``connect`` and ``listen``. A link may break, come back and lose what was under way; it
never reorders. What must arrive is the session's business, not the link's.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rgpu.errors import ConfigError
from rgpu.link.base import Link, Listener

if TYPE_CHECKING:
    from rgpu.link.curve import ServerKeys
    from rgpu.link.seal import Seal
    from rgpu.tokens import Token

__all__ = ["CURVE", "KINDS", "STREAMS", "Link", "Listener", "connect", "listen", "offered"]

KINDS = ("shm", "ucx", "tcp", "zmq")  # the best first
_MODULES = {"shm": "shm", "ucx": "ucx", "tcp": "tcp", "zmq": "zmq", "ipc": "zmq", "inproc": "inproc"}
STREAMS = ("shm", "ucx", "tcp")  # links of these kinds stand in for each other (``link.ends``)
CURVE = ("zmq",)  # what ZeroMQ's own keys protect; the others want a ``seal``


def connect(
    uris: str | Sequence[str],
    identity: bytes,
    only: str = "auto",
    token: Token | None = None,
    seal: Seal | None = None,
    checksum: str = "auto",
) -> Link:
    """The client's end: the best of the places that a worker listens at ("auto"), or of those whose scheme
    is ``only``; with a ``token`` or a ``seal`` those that it protects, and never another. ``checksum``: on, off or
    auto, for TCP links that no seal protects. Returns at once; the link is usable after its first "up" event."""
    offered = [uris] if isinstance(uris, str) else list(uris)
    if token is not None or seal is not None:
        offered = [uri for uri in offered if _scheme(uri) in (CURVE if seal is None else STREAMS)]
    wanted = [uri for uri in offered if only in ("auto", _scheme(uri))]
    if not wanted:
        there = ", ".join(sorted({_scheme(uri) for uri in offered})) or "none"
        raise ConfigError(f"RGPU_LINK={only} is not possible: the server offers {there}")
    wanted.sort(key=lambda uri: KINDS.index(_scheme(uri)) if _scheme(uri) in KINDS else len(KINDS))
    places = []
    for uri in wanted:
        if _scheme(uri) not in STREAMS:
            keys = () if token is None else (token,)
            return _module(uri).connect(uri, identity, *keys) if not places else _dial(places, identity, seal, checksum)
        try:
            places.append(_module(uri).place(uri))
        except ConfigError as error:  # this machine cannot have such links: the next best one, then
            if uri == wanted[-1] and not places:
                forced = f"RGPU_LINK={only} is not possible: " if only != "auto" else ""
                raise ConfigError(f"{forced}{error}") from None
    return _dial(places, identity, seal, checksum)


def _dial(places: list, identity: bytes, seal: Seal | None, checksum: str) -> Link:
    from rgpu.link import checked
    from rgpu.link.ends import DialledLink

    return DialledLink(identity, places, seal, lambda place: checked.wanted(place, checksum))


def listen(uri: str, keys: ServerKeys | None = None, seal: Seal | None = None) -> Listener:
    """The worker's end. ``tcp://host:0`` takes a free port: see the listener's ``uri``. Listeners of stream
    links can ``join``: one end at several places. Who may connect: over ZeroMQ who has one of the ``keys``, over a
    stream link who has the secret of the ``seal``."""
    if seal is not None:
        if _scheme(uri) not in STREAMS:
            raise ConfigError(f"links of the kind {_scheme(uri)!r} cannot be sealed")
        listener = _module(uri).listen(uri)
        listener.seal = seal
        return listener
    if keys is None:
        return _module(uri).listen(uri)
    if _scheme(uri) not in CURVE:
        raise ConfigError(f"links of the kind {_scheme(uri)!r} are not protected by keys")
    return _module(uri).listen(uri, keys)


def offered(kinds: Sequence[str]) -> list[str]:
    """The kinds of links, of those named, that a server on this machine can offer. "auto": the usual ones.

    Raises ConfigError for kinds that cannot be offered together: a worker waits for its client in one way.
    """
    from rgpu.link import shm, ucx

    if "auto" in kinds:
        kinds = ["tcp", "shm", *(["ucx"] if ucx.worthwhile() else [])]
    alone = [kind for kind in kinds if kind not in STREAMS]
    if alone and len(kinds) > 1:
        others = ", ".join(STREAMS)
        raise ConfigError(f"links of the kind {alone[0]} are offered alone: --links {alone[0]}, or any of {others}")
    checked: dict[str, Any] = {"shm": shm, "ucx": ucx}
    return [kind for kind in kinds if kind not in checked or not checked[kind].missing()]


def _scheme(uri: str) -> str:
    return uri.partition("://")[0]


def _module(uri: str) -> Any:
    scheme = _scheme(uri)
    if scheme in _MODULES:
        return importlib.import_module(f"rgpu.link.{_MODULES[scheme]}")
    from importlib.metadata import entry_points  # slow to import, and seldom needed

    for found in entry_points(group="rgpu.links", name=scheme):
        return found.load()
    raise ConfigError(f"no link for {uri!r}: expected tcp://host:port, shm://, ucx://, zmq:// or ipc://path")
