"""Whose turn it is on a device: weighted fair time slices that leave nothing unused. Pure.

Each session has a weight and a virtual time, which grows with the seconds it has worked divided by its weight;
of those who have work the one with the least is next. A turn without an end is given while nobody else has work,
so that a session that is alone, or whose neighbours are idle, asks once and pays nothing after that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

QUANTUM = 0.02  # seconds that a turn lasts at least while others wait
ENDLESS = 0.0


@dataclass
class _Runner:
    weight: float
    spent: float = 0.0  # virtual time
    waits: bool = False


class Turns:
    """One device. ``tell(session, seconds)`` gives a turn, or an end to the turn a session has."""

    def __init__(self, clock: Callable[[], float], tell: Callable[[bytes, float], None]) -> None:
        self._clock, self._tell = clock, tell
        self._runners: dict[bytes, _Runner] = {}
        self._holder: bytes | None = None
        self._since = 0.0
        self._endless = False

    def join(self, session: bytes, weight: float) -> None:
        """A session takes part from now on; known ones get another weight."""
        if runner := self._runners.get(session):
            runner.weight = weight
        else:
            self._runners[session] = _Runner(weight, self._least())

    def leave(self, session: bytes) -> None:
        """It is over, or takes no part any more."""
        self._runners.pop(session, None)
        if self._holder == session:
            self._holder = None
            self._next()

    def want(self, session: bytes) -> None:
        """It has work and no turn."""
        runner = self._runners.get(session)
        if runner is None or runner.waits or self._holder == session:
            return
        runner.spent = max(runner.spent, self._least())  # time in which it wanted nothing is not saved up
        runner.waits = True
        if self._holder is None:
            self._next()
        elif self._endless:
            self._endless, self._since = False, self._clock()  # what it had while nobody wanted it does not count
            self._tell(self._holder, self._slice(self._holder))

    def over(self, session: bytes, used: float, again: bool) -> None:
        """Its turn is over after ``used`` seconds of work; ``again``: it has more."""
        if session != self._holder:
            return
        runner = self._runners[session]
        runner.spent += min(max(used, 0.0), self._clock() - self._since) / runner.weight
        runner.waits = again
        self._holder = None
        self._next()

    def _next(self) -> None:
        waiting = [session for session, runner in self._runners.items() if runner.waits]
        if not waiting:
            return
        chosen = min(waiting, key=lambda session: self._runners[session].spent)
        self._runners[chosen].waits = False
        self._holder, self._since, self._endless = chosen, self._clock(), len(waiting) == 1
        self._tell(chosen, ENDLESS if self._endless else self._slice(chosen))

    def _slice(self, session: bytes) -> float:
        """Until the next one is as much behind as this one is now, so that turns change no more than they must."""
        runner = self._runners[session]
        others = [r for r in self._runners.values() if r.waits]
        ahead = min(r.spent for r in others) - runner.spent
        lightest = min(r.weight for r in (runner, *others))
        return max(QUANTUM, min(ahead * runner.weight, 0.5) + QUANTUM * runner.weight / lightest)

    def _least(self) -> float:
        """The virtual time of the one that is furthest behind among those at work."""
        working = [r.spent for s, r in self._runners.items() if r.waits or s == self._holder]
        return min(working, default=max((r.spent for r in self._runners.values()), default=0.0))
