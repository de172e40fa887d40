"""Links: replaceable connections that carry multipart messages between one client and one worker.

Chosen by URI scheme: ``tcp://host:port`` and ``ipc://path`` (ZeroMQ), ``inproc://name`` (one process).
A link may break, come back and lose what was under way; it never reorders. What must arrive is the
session's business, not the link's.
"""

from rgpu.errors import ConfigError
from rgpu.link.base import Link, Listener

__all__ = ["Link", "Listener", "connect", "listen"]


def connect(uri: str, identity: bytes) -> Link:
    """The client's end. Returns at once; the link is usable after its first "up" event."""
    return _scheme(uri).connect(uri, identity)


def listen(uri: str) -> Listener:
    """The worker's end. ``tcp://host:0`` takes a free port: see the listener's ``uri``."""
    return _scheme(uri).listen(uri)


def _scheme(uri: str):
    scheme = uri.partition("://")[0]
    if scheme in ("tcp", "ipc"):
        from rgpu.link import zmq as module
    elif scheme == "inproc":
        from rgpu.link import inproc as module
    else:
        raise ConfigError(f"no link for {uri!r}: expected tcp://host:port, ipc://path or inproc://name")
    return module
