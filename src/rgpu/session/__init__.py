"""One conversation between a client and a worker: numbered, acknowledged, executed exactly once.

``Session`` is pure bookkeeping (no socket, no thread, no clock of its own); ``Connection`` joins it to
a link and makes the pair safe for several threads. A session outlives the links it travels over.
"""

from rgpu.session.connection import Connection
from rgpu.session.session import Session

__all__ = ["Connection", "Session"]
