"""``cupy.typing``: names for annotations. NumPy's where it means the same, our array where not."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NBitBase

from rgpu._ndarray import ndarray

_ScalarType = TypeVar("_ScalarType", bound=np.generic, covariant=True)
NDArray = ndarray[Any, np.dtype[_ScalarType]]  # type: ignore[type-arg]

__all__ = ["ArrayLike", "DTypeLike", "NBitBase", "NDArray"]
