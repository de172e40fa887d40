"""Whether to look for a moment before sleeping.

Waking a sleeping core costs more than a round trip; but a core that looks cannot do the peer's work, where
cores are few or busy. So it is measured: waits that began with a look against waits that did not.
"""

import os

LONGEST = 1e-3  # seconds of looking: waking costs as much on a machine that is idle
SHORT = 1e-3  # where waits are longer than this on the average, looking is of no use
_WEIGHT = 1 / 8  # of the latest wait in the average
_TRIAL = 32  # every so many waits the other way is tried
_CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Spin:
    """One for each thread or connection that waits; ``seconds`` before a wait, ``learn`` after it."""

    def __init__(self) -> None:
        self._average = [SHORT, SHORT]  # seconds waited without and with a look
        self._looking = False
        self._turn = 0

    def seconds(self) -> float:
        self._turn += 1
        without, looking = self._average
        better = looking < without
        self._looking = better if self._turn % _TRIAL else not better
        return LONGEST if self._looking and _CORES > 1 and min(without, looking) < SHORT else 0.0

    def learn(self, waited: float) -> None:
        before = self._average[self._looking]
        self._average[self._looking] = before + (min(waited, 2 * SHORT) - before) * _WEIGHT
