"""Simple draws as functions, from the current device's ``RandomState``."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rgpu.functions import creation, dispatch
from rgpu.random import _distributions, _generator


def rand(*size: int, **kwargs: Any) -> Any:
    """Uniform samples over [0, 1), of the shape given as arguments."""
    return random_sample(size=size, dtype=_generator._only_dtype("rand", kwargs))


def randn(*size: int, **kwargs: Any) -> Any:
    """Standard normal samples, of the shape given as arguments."""
    return _distributions.normal(size=size, dtype=_generator._only_dtype("randn", kwargs))  # type: ignore[attr-defined]


def randint(low: Any, high: Any = None, size: Any = None, dtype: Any = "l") -> Any:
    """Integers over [low, high), or [0, low)."""
    return _generator.get_random_state().randint(low, high, size, dtype)


def random_integers(low: Any, high: Any = None, size: Any = None) -> Any:
    """Integers over [low, high], or [1, low]."""
    if high is None:
        low, high = 1, low
    return randint(low, high + 1, size)


def random_sample(size: Any = None, dtype: Any = float) -> Any:
    """Uniform samples over [0, 1)."""
    return _generator.get_random_state().random_sample(size=size, dtype=dtype)  # type: ignore[attr-defined]


def choice(a: Any, size: Any = None, replace: bool = True, p: Any = None) -> Any:
    """Samples of a one-dimensional array, or of ``arange(a)``, with probabilities ``p``."""
    return _generator.get_random_state().choice(a, size, replace, p)


def multinomial(n: int, pvals: Any, size: Any = None) -> Any:
    """Counts of each outcome in ``n`` trials: choices, scattered into counters on the device."""
    size = () if size is None else creation.checked_shape(size)
    trials, outcomes = math.prod(size), len(pvals)
    counts = creation.zeros((trials * outcomes,), "l")
    if counts.size and n:
        drawn = choice(outcomes, p=pvals, size=n * trials)
        drawn += creation.arange(n * trials) // n * outcomes
        dispatch.run_internal("ufunc.at", counts, "add", drawn, np.int64(1))
    return counts.reshape((*size, outcomes))
