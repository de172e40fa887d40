"""``cupy._core._dtype``: dtypes by what names them."""

from __future__ import annotations

from typing import Any

import numpy as np

all_type_chars = "?bhilqBHILQefdFD"


def get_dtype(t: Any) -> np.dtype:
    return np.dtype(t)


def get_dtype_with_itemsize(t: Any, check_support: bool = True) -> tuple[np.dtype, int]:
    dtype = np.dtype(t)
    return dtype, dtype.itemsize
