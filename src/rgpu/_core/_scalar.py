"""``cupy._core._scalar``: the names that dtypes have in a kernel's source."""

from __future__ import annotations

from typing import Any

import numpy as np

from rgpu.wire.kernels import c_type


def get_typename(dtype: Any, type_decls: Any = None) -> str:
    """The name of a dtype in CUDA C++ (``float``, ``long long``, ``complex<double>``). ValueError for None,
    TypeError for a dtype that no kernel knows."""
    if dtype is None:
        raise ValueError("dtype is None")
    return c_type(np.dtype(dtype)).removeprefix("thrust::")
