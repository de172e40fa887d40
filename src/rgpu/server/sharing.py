"""What the sessions of a device share while they run: memory that they draw, and turns to compute.

Stands between the workers' messages and the books: who may draw is the broker's decision, whose turn it is that of
``turns``. Asks others to give up what they do not use before it refuses. Never waits; ``tick`` does what is due.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rgpu.server.broker import Broker
from rgpu.server.lease import LeaseBook, Session
from rgpu.server.turns import Turns
from rgpu.wire import control

SPARE_SECONDS = 0.5  # that others have to give up what they do not use
SPILL_SECONDS = 5.0  # and to spill
IDLE_SECONDS = 1.0  # without a sign of work, after which a session's device memory is anybody's
CHUNK, CHUNKS = 256 << 20, 64  # what is drawn at once beyond the need: bytes at most, parts of the limit
LEAST_WEIGHT = 0.01  # of sessions without a share, where all of the device is promised to others


@dataclass
class _Pending:
    """A session that waits for memory."""

    session: Session
    memory: int
    resident: int
    until: float
    asked: set[bytes]


class Sharing:
    """``tell(session id, message)`` reaches a session's worker."""

    def __init__(
        self, book: LeaseBook, broker: Broker, kinds: Sequence[str], tell: Callable[[bytes, tuple], None]
    ) -> None:
        self._book, self._broker, self._tell = book, broker, tell
        self._kinds = kinds
        self.spills = [lendable > total for lendable, total in zip(book.lendable, book.totals)]
        self._pending: dict[bytes, _Pending] = {}
        self._active: dict[bytes, float] = {}  # session -> when it last showed a sign of work
        self._turns = [Turns(book.clock, self._give) for _ in kinds]
        self._slicing = [False for _ in kinds]

    # Sessions come and go

    def joined(self, session: Session) -> bool:
        """A session begins; whether it has to take turns."""
        self._active[session.id] = self._book.clock()
        self._weigh(session.device, beginning=session)
        return self._slicing[session.device]

    def left(self, session: Session) -> None:
        self._pending.pop(session.id, None)
        self._active.pop(session.id, None)
        self._turns[session.device].leave(session.id)
        self._weigh(session.device)
        self._retry(session.device)

    def active(self, session: Session) -> None:
        """It has done something."""
        self._active[session.id] = self._book.clock()

    # Turns

    def _weigh(self, device: int, beginning: Session | None = None) -> None:
        """Shares count while somebody on the device has asked for one; else the system shares as it does."""
        sessions = self._book.sessions_on(device)
        slicing = any(0 < session.lease.compute < 1 for session in sessions)
        if slicing != self._slicing[device]:
            self._slicing[device] = slicing
            for session in sessions:
                if session is not beginning:
                    self._tell(session.id, control.Turns.encode(on=slicing))
                if not slicing:
                    self._turns[device].leave(session.id)
        if slicing:
            shared: dict[bytes, int] = {}
            for session in sessions:
                shared[session.lease.id] = shared.get(session.lease.id, 0) + 1
            unasked = sum(not session.lease.compute for session in sessions)
            rest = self._book.compute_free(device) / max(1, unasked)
            for session in sessions:
                own = session.lease.compute / shared[session.lease.id] if session.lease.compute else rest
                self._turns[device].join(session.id, max(LEAST_WEIGHT, own))

    def _give(self, session: bytes, seconds: float) -> None:
        self._tell(session, control.Turn.encode(seconds=seconds))

    def wanted(self, session: Session) -> None:
        self.active(session)
        self._turns[session.device].want(session.id)

    def yielded(self, session: Session, used: float, again: bool) -> None:
        self._turns[session.device].over(session.id, used, again)

    # Memory

    def drew(self, session: Session, message: Any) -> None:
        """A session needs memory, or gives some up."""
        self._broker.draw(session, message.memory + self._extra(session, message.memory))
        self._draw_resident(session, message.resident)
        if message.answer:
            self.active(session)
            pending = _Pending(session, message.memory, message.resident, self._book.clock(), set())
            if not self._answered(pending):
                self._ask_others(pending)
        for waiting in self._pending.values():
            waiting.asked.discard(session.id)
        self._retry(session.device)

    def _extra(self, session: Session, wanted: int) -> int:
        """Bytes that a session gets beyond what it asks for while there is plenty, so that it asks less often."""
        extra = min(CHUNK, self._book.limit(session) // CHUNKS)
        more = wanted - session.drawn
        return extra if more > 0 and more + CHUNKS // 4 * extra <= self._broker.free_for(session) else 0

    def _draw_resident(self, session: Session, wanted: int) -> None:
        more = wanted - session.resident
        if more <= 0 or more <= self._book.resident_free(session.device):
            session.resident = max(0, wanted)

    def _answered(self, pending: _Pending, last: bool = False) -> bool:
        """Tell the session what it may hold, if that is enough or nothing more will come."""
        session = pending.session
        enough = session.drawn >= pending.memory
        if self.spills[session.device]:
            enough = enough and session.resident >= pending.resident
        if enough or last:
            self._tell(
                session.id,
                control.Credit.encode(
                    memory=session.drawn, resident=session.resident, free=self._broker.free_for(session)
                ),
            )
        return enough or last

    def _ask_others(self, pending: _Pending) -> None:
        session, seconds = pending.session, SPARE_SECONDS
        if session.drawn < pending.memory:
            own = session.lease.parts[session.device]
            for other in self._book.sessions_on(session.device):
                same = other.lease is session.lease if own else not other.lease.parts[other.device]
                if same and other is not session and other.drawn:
                    pending.asked.add(other.id)
                    self._tell(other.id, control.Spare.encode(resident=0))
        elif self.spills[session.device]:
            seconds = SPILL_SECONDS
            needed = pending.resident - session.resident - self._book.resident_free(session.device)
            for other, nbytes in self.victims(session, needed):
                pending.asked.add(other.id)
                self._tell(other.id, control.Spare.encode(resident=nbytes))
        if not pending.asked:
            self._answered(pending, last=True)
            return
        pending.until = self._book.clock() + seconds
        self._pending[session.id] = pending

    def victims(self, session: Session, needed: int) -> list[tuple[Session, int]]:
        """Who is to give up how much device memory: idle sessions all of it, the longest idle first; of those at
        work, each what it has beyond an equal part."""
        now = self._book.clock()
        others = [s for s in self._book.sessions_on(session.device) if s is not session and s.resident]
        others.sort(key=lambda s: self._active.get(s.id, 0.0))
        working = [s for s in others if now - self._active.get(s.id, 0.0) < IDLE_SECONDS]
        part = self._book.totals[session.device] // (len(working) + 1)
        found = []
        for other in others:
            spare = other.resident - (part if other in working else 0)
            if needed > 0 and spare > 0:
                found.append((other, min(spare, needed)))
                needed -= min(spare, needed)
        return found

    def _retry(self, device: int) -> None:
        for pending in list(self._pending.values()):
            session = pending.session
            if session.device == device:
                self._broker.draw(session, max(session.drawn, pending.memory))
                self._draw_resident(session, max(session.resident, pending.resident))
                if self._answered(pending, last=not pending.asked):
                    del self._pending[session.id]

    def tick(self) -> float:
        """Answer those who have waited long enough; seconds until there may be more to do."""
        now, wait = self._book.clock(), 1.0
        for pending in list(self._pending.values()):
            if now >= pending.until:
                del self._pending[pending.session.id]
                self._answered(pending, last=True)
            else:
                wait = min(wait, pending.until - now)
        return wait
