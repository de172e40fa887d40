"""Warnings of functions that warn about their data: they go to the client with the result.

Must not tell more than a known category and the message.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

from rgpu.wire import limits

_MOST = 16  # warnings of one call
_CATEGORIES = frozenset(("BadCoefficients", "RuntimeWarning"))


def told(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with the result ``(result, ((category, message), ...))``."""

    @functools.wraps(function, assigned=())
    def call(*args: Any, **kwargs: Any) -> Any:
        with warnings.catch_warnings(record=True) as given:
            warnings.simplefilter("always")
            result = function(*args, **kwargs)
        found = [(w.category.__name__, str(w.message)[: limits.TEXT]) for w in given]
        return result, tuple(x for x in found if x[0] in _CATEGORIES)[:_MOST]

    return call
