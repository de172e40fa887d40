"""Whether to look for a moment before sleeping.

Waking a sleeping core costs more than a round trip; but a core that looks cannot do the peer's work, where
cores are few or busy. So it is measured: waits that began with a look against waits that did not.
"""

import os
from typing import TYPE_CHECKING

from rgpu import _native

LONGEST = 1e-3  # seconds of looking: waking costs as much on a machine that is idle
SHORT = 4e-4  # where waits are longer than this on the average, looking is of no use
_WEIGHT = 1 / 8  # of the latest wait in the average
_RARE = 2  # times the average that one wait counts as at most: somebody else had the core for a moment
_SOON, _RARELY = 4, 128  # waits between two that go the other way: less and less often while it changes nothing
_CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class PureSpin:
    """One for each thread or connection that waits; ``seconds`` before a wait, ``learn`` after it. ``short``: where
    waits are longer than so many seconds on the average, it does not look; nor unless there are ``many`` cores."""

    def __init__(self, short: float = SHORT, many: bool = _CORES > 1) -> None:
        self._short, self._many = short, many
        # Seconds that longer waits count as: one at which nobody had a question says nothing about the others.
        self._long = 1.25 * short
        self._average = [0.0, 0.0]  # seconds waited without and with a look; 0: never tried
        self._looking = self._better = True
        self._every = self._left = _SOON

    def seconds(self) -> float:
        without, looking = self._average
        better = looking <= without
        self._left -= 1
        if better is not self._better:
            self._better, self._every, self._left = better, _SOON, _SOON
        elif not self._left:
            self._every = self._left = min(2 * self._every, _RARELY)
            better = not better
        self._looking = better
        return LONGEST if better and self._many and (looking < self._short or without < self._short) else 0.0

    def near(self) -> float:
        """Seconds to look for what takes longer than others do, which says nothing about them."""
        waits = [waited for waited in self._average if waited]
        return LONGEST if self._many and (not waits or min(waits) < self._short) else 0.0

    def learn(self, waited: float) -> None:
        average, looking = self._average, self._looking
        before, waited = average[looking], min(waited, self._long)
        average[looking] = before + (min(waited, _RARE * before) - before) * _WEIGHT if before else waited
        if looking is not self._better and waited < average[not looking]:
            self._every = self._left = _SOON  # the other way may be the better one by now


if TYPE_CHECKING or _native.link is None:
    Spin = PureSpin
else:

    class Spin(_native.link.Spin):
        """The C core's."""

        def __new__(cls, short: float = SHORT, many: bool = _CORES > 1) -> "Spin":
            return super().__new__(cls, short, many)
