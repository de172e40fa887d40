"""``cupy._core._routines_indexing``: what libraries take from it."""

from __future__ import annotations

from typing import Any

from rgpu._core import core


def _ndarray_argwhere(array: Any) -> Any:
    return core.public("argwhere")(array)
