"""Host arrays over memory of the pinned pool, as CuPy makes them.

A remote device cannot reach this host's memory, so nothing is locked; the pool reuses its pages.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rgpu.client.remote import Remote
from rgpu.cuda.pinned_memory import alloc_pinned_memory


def empty_pinned(shape: Any, dtype: Any = float, order: str = "C") -> np.ndarray:
    """A host array with undefined content."""
    return _over_pinned(np.empty(shape, dtype, order))  # type: ignore[call-overload]


def zeros_pinned(shape: Any, dtype: Any = float, order: str = "C") -> np.ndarray:
    """A host array of zeros."""
    return _cleared(empty_pinned(shape, dtype, order))


def empty_like_pinned(
    a: Any, dtype: Any = None, order: str = "K", subok: Any = None, shape: Any = None
) -> np.ndarray:
    """A host array with the layout of a host or device array."""
    if subok is not None:
        raise TypeError("subok is not supported yet")
    prototype = a._metadata.shadow if isinstance(a, Remote) else np.asarray(a)
    return _over_pinned(np.empty_like(prototype, dtype=dtype, order=order, subok=False, shape=shape))  # type: ignore[call-overload]


def zeros_like_pinned(
    a: Any, dtype: Any = None, order: str = "K", subok: Any = None, shape: Any = None
) -> np.ndarray:
    """A host array of zeros with the layout of a host or device array."""
    return _cleared(empty_like_pinned(a, dtype, order, subok, shape))


def _over_pinned(plan: np.ndarray) -> np.ndarray:
    """An array with the layout of one whose memory nobody has touched."""
    memory = alloc_pinned_memory(max(plan.nbytes, 1))
    return np.ndarray(plan.shape, plan.dtype, memory, strides=plan.strides)


def _cleared(array: np.ndarray) -> np.ndarray:
    array.fill(0)
    return array
