"""``cupy._core._routines_linalg``: how precise matrix products have to be. A wish that is kept; products here have full
precision, which satisfies every one."""

from __future__ import annotations

from typing import Any

import numpy as np

(
    COMPUTE_TYPE_TBD, COMPUTE_TYPE_DEFAULT, COMPUTE_TYPE_PEDANTIC, COMPUTE_TYPE_FP16, COMPUTE_TYPE_FP32,
    COMPUTE_TYPE_FP64, COMPUTE_TYPE_BF16, COMPUTE_TYPE_TF32,
) = range(-1, 7)  # fmt: skip

_wanted: dict[str, int] = {}


def _letter(dtype: Any) -> str:
    letter = {"F": "f", "D": "d"}.get(np.dtype(dtype).char, np.dtype(dtype).char)
    if letter not in "efd":
        raise TypeError(f"dtype is not supported: {dtype}")
    return letter


def get_compute_type(dtype: Any) -> int:
    return _wanted.get(_letter(dtype), COMPUTE_TYPE_DEFAULT)


def set_compute_type(dtype: Any, compute_type: int) -> None:
    if not COMPUTE_TYPE_TBD < compute_type <= COMPUTE_TYPE_TF32:
        raise ValueError(f"Unknown compute type: {compute_type}")
    _wanted[_letter(dtype)] = compute_type
