"""Who waits to look into a session: one at a time for each, so that nobody takes another's place.

A session's worker opens a door for each visit; until it has, the asker waits here. Of one session the latest asker
counts, and what is kept ends with the session: one person's questions take no more room than that person's sessions.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

from rgpu.wire import control
from rgpu.wire.codec import pack


class Onlookers:
    """``answer``: to an asker; ``refuse``: with a reason and a sentence; ``tell``: the worker of a session."""

    def __init__(
        self,
        answer: Callable[[Any, bytes], None],
        refuse: Callable[[Any, str, str], None],
        tell: Callable[[bytes, tuple], None],
    ) -> None:
        self._answer, self._refuse, self._tell = answer, refuse, tell
        self._waiting: dict[bytes, tuple[bytes, Any]] = {}  # session -> visit, asker

    def come(self, session: bytes, asker: Any) -> None:
        self.turn_away(session, "somebody else came to look into this session")
        visit = secrets.token_bytes(16)
        self._waiting[session] = visit, asker
        self._tell(session, control.Admit.encode(visit))

    def opened(self, session: bytes, message: Any) -> None:
        """The session's worker says where to come in."""
        visit, asker = self._waiting.get(session, (b"", None))
        if message.visit == visit:
            del self._waiting[session]
            self._answer(asker, pack(control.Visiting.encode(*message)))

    def turn_away(self, session: bytes, why: str) -> None:
        """Whoever waits for this session waits in vain."""
        if waiting := self._waiting.pop(session, None):
            self._refuse(waiting[1], "busy", why)
