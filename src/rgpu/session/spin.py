"""Whether to look for a moment before sleeping.

Waking a sleeping core costs more than a round trip; but a core that looks cannot do the peer's work, where
cores are few or busy. So it is measured: waits that began with a look against waits that did not.
"""

import os

LONGEST = 1e-3  # seconds of looking: waking costs as much on a machine that is idle
SHORT = 1e-3  # where waits are longer than this on the average, looking is of no use
_BIAS = 1.5  # a peer that is awaited sees more of the difference than who waits
_WEIGHT = 1 / 8  # of the latest wait in the average
_SOON, _RARELY = 4, 1024  # waits between two that go the other way: less and less often while it changes nothing
_TRIAL = 32  # questions between two whose answer is looked for though it used to take long
_CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Spin:
    """One for each thread or connection that waits; ``seconds`` before a wait, ``learn`` after it."""

    def __init__(self) -> None:
        self._average = [0.0, 0.0]  # seconds waited without and with a look; 0: never tried
        self._looking = self._better = True
        self._every = self._left = _SOON

    def seconds(self) -> float:
        without, looking = self._average
        better = looking <= _BIAS * without
        self._left -= 1
        if better is not self._better:
            self._better, self._every, self._left = better, _SOON, _SOON
        elif not self._left:
            self._every = self._left = min(2 * self._every, _RARELY)
            better = not better
        self._looking = better
        return LONGEST if better and _CORES > 1 and (looking < SHORT or without < SHORT) else 0.0

    def learn(self, waited: float) -> None:
        average, looking = self._average, self._looking
        before, waited = average[looking], waited if waited < 2 * SHORT else 2 * SHORT
        average[looking] = before + (waited - before) * _WEIGHT if before else waited


class Hope:
    """The same for a question whose answer is looked for where it is asked, which saves more than a wait: always,
    unless it takes long."""

    def __init__(self) -> None:
        self._average, self._passed = 0.0, 0

    def seconds(self) -> float:
        if self._average > SHORT:
            self._passed += 1
            if self._passed % _TRIAL:
                return 0.0
        return LONGEST if _CORES > 1 else 0.0

    def learn(self, waited: float) -> None:
        self._average += (waited - self._average) * _WEIGHT
