"""Whether to look for a moment before sleeping.

Waking a sleeping core costs more than a round trip; but a core that looks cannot do the peer's work, where
cores are few or busy. So it is measured: waits that began with a look against waits that did not.
"""

import os

LONGEST = 1e-3  # seconds of looking: waking costs as much on a machine that is idle
SHORT = 4e-4  # where waits are longer than this on the average, looking is of no use
_LONG = 5e-4  # seconds that longer waits count as: one at which nobody had a question says nothing about the others
_WEIGHT = 1 / 8  # of the latest wait in the average
_SOON, _RARELY = 4, 128  # waits between two that go the other way: less and less often while it changes nothing
_AT_ONCE = 2e-4  # seconds that an answer which takes but a moment may take
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
        better = looking <= without
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
        before, waited = average[looking], waited if waited < _LONG else _LONG
        average[looking] = before + (waited - before) * _WEIGHT if before else waited


class Hope:
    """The same for a question whose answer is looked for where it is asked, which saves more than a wait: as long as
    most come at once. Where one does not, the peer may need this core."""

    def __init__(self) -> None:
        self._average, self._passed = 0.0, 0

    def seconds(self) -> float:
        if self._average > _AT_ONCE / 2:
            self._passed += 1
            if self._passed % _TRIAL:
                return 0.0
        return _AT_ONCE if _CORES > 1 else 0.0

    def learn(self, waited: float | None) -> None:
        """None: for nothing."""
        self._average += ((2 * _AT_ONCE if waited is None else waited) - self._average) * _WEIGHT
