"""Polynomials with CuPy's return values and limits."""

from __future__ import annotations

from typing import Any

import numpy as np

from rgpu.server.cpu_functions import override


@override("poly")
def _poly(seq_of_zeros: np.ndarray) -> Any:
    return np.poly(seq_of_zeros)


@override("polynomial.polyutils.as_series")
def _as_series(alist: Any, trim: bool = True) -> Any:
    return list(np.polynomial.polyutils.as_series(alist, trim))
