"""The distributions as functions: draws from the current device's ``RandomState``."""

from __future__ import annotations

from typing import Any

from rgpu.random import _arguments, _generator


def _function(name: str, text: str) -> Any:
    def body(values: dict) -> Any:
        return getattr(_generator.get_random_state(), name)(**values)

    function = _arguments.signed(name, text, body, method=False)
    function.__module__ = "cupy.random._distributions"
    return function


_TEXTS = {**_generator.DISTRIBUTIONS, "exponential": "scale size=None dtype=float"}
NAMES = [name for name in _TEXTS if name != "random_sample"] + ["multivariate_normal"]
globals().update({name: _function(name, text) for name, text in _TEXTS.items() if name != "random_sample"})


def multivariate_normal(
    mean: Any, cov: Any, size: Any = None, check_valid: str = "ignore", tol: float = 1e-08,
    method: str = "cholesky", dtype: Any = float,
) -> Any:  # fmt: skip
    """Samples of the multivariate normal distribution."""
    state = _generator.get_random_state()
    return state.multivariate_normal(mean, cov, size, check_valid, tol, method, dtype)
