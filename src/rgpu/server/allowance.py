"""What a worker's session may use of its device now: memory, device memory, its turn. Asked of the daemon.

Bookkeeping in the worker: the guard's thread hands in what the daemon says (``heard``), the session's own thread
asks and waits. ``alert`` is all that a batch looks at; a session that is alone on its device never waits here.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from rgpu.wire import control

ANSWER_SECONDS = 10.0  # longer than the daemon ever lets one wait
LINGER_SECONDS, LINGER_PART = 0.002, 0.1  # a turn is kept so long, and by so much of its work, for a next batch
LOOK_SECONDS = 0.25  # between looks at whether there is still a client
CHUNKS = 64  # parts of the limit; what is held beyond two of them unused goes back


class Allowance:
    """``limit``: the most that the session can ever hold. ``tell`` sends to the daemon, ``wake`` ends the wait of
    the session's thread for its client."""

    def __init__(
        self, tell: Callable[[tuple], None], *, limit: int, turns: bool = False, wake: Callable[[], None] = lambda: None
    ) -> None:
        self._tell, self.wake = tell, wake
        self.limit = limit
        self.memory = 0  # bytes it may hold now
        self.resident = 0  # of them in device memory, where more is lent than there is
        self.free = 0  # bytes it could still draw, when last heard
        self.alert = turns
        self.asking = False  # the session's thread waits for an answer of the daemon's
        self.spill: Callable[[int], int] | None = None  # frees so many bytes of device memory; what is left there
        self.account: Any = None  # the table, whose ``limit`` follows what may be held
        self.release: Callable[[], Any] = lambda: None  # gives cached memory back to the device
        self.held: Callable[[], int] = lambda: self.account.used if self.account else 0
        self._news = threading.Condition()
        self._credit: Any = None
        self._spare: int | None = None  # bytes of device memory that the daemon wants; None: it wants nothing
        self._turns = turns
        self._turn: float | None = None  # seconds of the present turn (0: endless); None: not ours
        self._asked_turn = False
        self._worked = 0.0
        self._began = time.monotonic()  # since when what is worked counts
        self._thread, self._away = threading.get_ident(), False

    # The guard's thread

    def heard(self, message: Any) -> None:
        """What the daemon says."""
        with self._news:
            if isinstance(message, control.Credit.Record):
                self._credit = message
            elif isinstance(message, control.Spare.Record):
                self._spare = (self._spare or 0) + message.resident
                self.alert = True
            elif isinstance(message, control.Turn.Record):
                if self._turn == 0.0:
                    self._worked = 0.0  # while nobody else wanted it, time did not count
                self._turn, self._asked_turn = message.seconds, False
            elif isinstance(message, control.Turns.Record):
                self._turns = message.on
                self._turn, self._asked_turn = None, False
                self.alert = True
            self._news.notify_all()
        self.wake()

    def tidy(self) -> None:
        """Now and then: have the session give back what it has long not used."""
        if self._spare is None and self.memory - self.held() > 2 * max(1, self.limit // CHUNKS):
            with self._news:
                self._spare, self.alert = 0, True
            self.wake()

    @contextlib.contextmanager
    def _ask(self, message: tuple | None) -> Iterator[None]:
        """While an answer of the daemon's is waited for, to this question or an earlier one, the guard listens to the
        daemon and not to the client."""
        self.asking = True
        if message is not None:
            self._tell(message)
        self.wake()
        try:
            yield
        finally:
            self.asking = False

    # The session's thread: memory

    def more(self, memory: int, resident: int = 0) -> None:
        """Ask to hold ``memory`` bytes in all, ``resident`` of them in device memory; ``memory``, ``resident`` and
        ``free`` tell what came of it."""
        with self._news:
            self._credit = None
        wanted = max(memory, self.memory), max(resident, self.resident)
        with self._ask(control.Draw.encode(memory=wanted[0], resident=wanted[1], answer=True)), self._news:
            self._news.wait_for(lambda: self._credit is not None, ANSWER_SECONDS)
            if self._credit is not None:
                self.memory, self.resident, self.free = self._credit.memory, self._credit.resident, self._credit.free

    def figures(self) -> tuple[int, int]:
        """(free, total) bytes of the lease, as memGetInfo tells them."""
        self.more(self.memory, self.resident)
        return max(0, self.memory - self.account.used) + self.free, self.limit

    def _give_up(self) -> None:
        """What the daemon asked for: memory that is not in use, device memory by spilling."""
        with self._news:
            spare, self._spare = self._spare, None
            self.alert = self._turns
        if spare is None:
            return
        if self.spill is not None:
            self.resident = self.spill(spare)
        self.release()
        self.memory = min(self.memory, self.held())
        if self.account is not None:
            self.account.limit = max(1, self.memory)
        self._tell(control.Draw.encode(memory=self.memory, resident=self.resident, answer=False))

    # The session's thread: turns

    def begin(self, lost: Callable[[], bool]) -> None:
        """Before a batch, when ``alert``: wait for the turn, unless the client is lost."""
        self._give_up()
        while self._turns and self._turn is None and not lost():
            with self._news:
                want, self._asked_turn = None if self._asked_turn else control.Want.encode(), True
            with self._ask(want), self._news:
                self._news.wait_for(
                    lambda: self._turn is not None or not self._turns or self._spare is not None, LOOK_SECONDS
                )
            self._give_up()
        self._began = time.monotonic()

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """While the session's thread waits for another worker: that one may wait for a turn which comes after ours, so
        ours ends, and another one is waited for afterwards. Nothing, where there are no turns or in other threads."""
        if not self._turns or self._away or threading.get_ident() != self._thread:
            yield
            return
        self._away = True
        with self._news:
            had, self._turn, self._asked_turn = self._turn is not None, None, False
        used, self._worked = self._worked + time.monotonic() - self._began, 0.0
        if had:
            self._tell(control.Yield.encode(used=used, again=False))
        try:
            yield
        finally:
            self._away = False
            self.begin(lambda: False)

    def ran(self, seconds: float, settle: Callable[[], None]) -> None:
        """After a batch, when ``alert``: the end of the turn if it is time."""
        self._worked += min(seconds, time.monotonic() - self._began)  # not what it was away in between
        if self._turn and self._worked >= self._turn:
            self._yield(True, settle)
        self._give_up()

    def idle(self, wait: Callable[[float], bool], settle: Callable[[], None]) -> bool:
        """With nothing to run, when ``alert``: the end of the turn, after a moment in which the client's next batch
        may come (``wait``); whether it came. A client that waits for each answer would never get its share else."""
        self._give_up()
        if self._turn:
            began = time.monotonic()
            came = wait(min(max(0.0, self._turn - self._worked), LINGER_SECONDS + LINGER_PART * self._worked))
            self._worked += time.monotonic() - began
            if came:
                return True
            if self._turn:
                self._yield(False, settle)
        return False

    def _yield(self, again: bool, settle: Callable[[], None]) -> None:
        began = time.monotonic()
        settle()  # what was issued belongs to this turn
        worked, self._worked = self._worked + time.monotonic() - began, 0.0
        with self._news:
            self._turn, self._asked_turn = None, again
        self._tell(control.Yield.encode(used=worked, again=again))
