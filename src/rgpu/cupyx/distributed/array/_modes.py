"""What it means that two parts of a distributed array hold the same element.

In REPLICA they are equal; in the others the element is the sum (maximum, ...) of what the parts hold. Pure data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, eq=False, repr=False)
class Mode:
    """``ufunc`` None: replicas. ``idempotent``: an element may be held twice without harm. No sequence: NumPy would
    make an array of a list of modes."""

    name: str
    ufunc: Any
    idempotent: bool
    identity_of: Callable[[np.dtype], Any]

    def __repr__(self) -> str:
        return f"'{self.name}'"


def _lowest(dtype: np.dtype) -> Any:
    if dtype.kind == "b":
        return False
    return -np.inf if dtype.kind == "f" else np.iinfo(dtype).min


def _highest(dtype: np.dtype) -> Any:
    if dtype.kind == "b":
        return True
    return np.inf if dtype.kind == "f" else np.iinfo(dtype).max


REPLICA = Mode("replica", None, True, lambda dtype: 0)
SUM = Mode("sum", np.add, False, lambda dtype: 0)
PROD = Mode("prod", np.multiply, False, lambda dtype: 1)
MAX = Mode("max", np.maximum, True, _lowest)
MIN = Mode("min", np.minimum, True, _highest)
MODES = {mode.name: mode for mode in (REPLICA, SUM, PROD, MAX, MIN)}


def of(mode: Any) -> Mode:
    """A mode by itself or by its name; None is REPLICA."""
    if mode is None:
        return REPLICA
    if isinstance(mode, Mode):
        return mode
    if mode not in MODES:
        raise RuntimeError(f"there is no mode {mode!r}: {', '.join(MODES)}")
    return MODES[mode]
