"""Views with a layout of the caller's choice; the worker refuses those that would leave the memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from rgpu.client import meta as layouts
from rgpu.functions import creation, views


def as_strided(x: Any, shape: Any = None, strides: Any = None) -> Any:
    """A view of ``x``'s memory with this shape and these strides (bytes)."""
    shape = x.shape if shape is None else creation.checked_shape(tuple(shape))
    strides = x.strides if strides is None else tuple(int(n) for n in strides)
    if len(shape) != len(strides):
        raise ValueError("mismatch in length of strides and shape")
    return views.make(x, layouts.intern(shape, x.dtype, strides), 0)


def sliding_window_view(
    x: Any, window_shape: Any, axis: Any = None, *, subok: bool = False, writeable: bool = False
) -> Any:
    """A view in which every window of this shape stands along new last axes."""
    if writeable:
        raise NotImplementedError("Writeable views are not supported.")
    x = creation.array(x, copy=False, subok=subok)
    return views.apply(np.lib.stride_tricks.sliding_window_view, x, window_shape, axis)
