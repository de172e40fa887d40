"""Host arrays that CuPy would put in page-locked memory; here they are NumPy's own.

A remote device cannot reach this host's memory, so there is nothing to lock.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rgpu.client.remote import Remote


def empty_pinned(shape: Any, dtype: Any = float, order: str = "C") -> np.ndarray:
    """A host array with undefined content."""
    return np.empty(shape, dtype, order)  # type: ignore[call-overload]


def zeros_pinned(shape: Any, dtype: Any = float, order: str = "C") -> np.ndarray:
    """A host array of zeros."""
    return np.zeros(shape, dtype, order)  # type: ignore[call-overload]


def _like(make: Any, a: Any, dtype: Any, order: str, subok: Any, shape: Any) -> np.ndarray:
    if subok is not None:
        raise TypeError("subok is not supported yet")
    prototype = a._meta.shadow if isinstance(a, Remote) else np.asarray(a)
    return make(prototype, dtype=dtype, order=order, subok=False, shape=shape)


def empty_like_pinned(
    a: Any, dtype: Any = None, order: str = "K", subok: Any = None, shape: Any = None
) -> np.ndarray:
    """A host array with the layout of a host or device array."""
    return _like(np.empty_like, a, dtype, order, subok, shape)


def zeros_like_pinned(
    a: Any, dtype: Any = None, order: str = "K", subok: Any = None, shape: Any = None
) -> np.ndarray:
    """A host array of zeros with the layout of a host or device array."""
    return _like(np.zeros_like, a, dtype, order, subok, shape)
