"""Shuffling as functions, by the current device's ``RandomState``."""

from __future__ import annotations

from typing import Any

from rgpu.random import _generator


def shuffle(a: Any) -> None:
    """Permute an array in place along its first axis."""
    _generator.get_random_state().shuffle(a)


def permutation(a: Any) -> Any:
    """A permuted range, or a permutation of an array along its first axis."""
    return _generator.get_random_state().permutation(a)
