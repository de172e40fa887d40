"""Element-wise programs for scripts/bench: one source, run on NumPy in process and through rgpu.

Prices of European options (Black and Scholes 1973, with the polynomial 26.2.17 of Abramowitz and Stegun for the normal
distribution), and a step of Adam (Kingma and Ba 2015): chains of operations over large arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

_COEFFICIENTS = 0.31938153, -0.356563782, 1.781477937, -1.821255978, 1.330274429


def _normal(xp: Any, d: Any) -> Any:
    a1, a2, a3, a4, a5 = _COEFFICIENTS
    k = 1 / (1 + 0.2316419 * xp.abs(d))
    tail = 0.3989422804 * xp.exp(-0.5 * d * d) * (k * (a1 + k * (a2 + k * (a3 + k * (a4 + k * a5)))))
    return xp.where(d > 0, 1 - tail, tail)


def options(xp: Any, count: int) -> Callable[[], Any]:
    """A function that prices so many calls and puts; returns their arrays (float32)."""
    rng = np.random.default_rng(7)
    ranges = (5, 30), (1, 100), (0.25, 10)
    price, strike, years = (xp.asarray(rng.uniform(*ends, count).astype(np.float32)) for ends in ranges)
    rate, volatility = 0.02, 0.3

    def run() -> Any:
        spread = volatility * xp.sqrt(years)
        d1 = (xp.log(price / strike) + (rate + 0.5 * volatility**2) * years) / spread
        first, second = _normal(xp, d1), _normal(xp, d1 - spread)
        discounted = strike * xp.exp(-rate * years)
        return price * first - discounted * second, discounted * (1 - second) - price * (1 - first)

    return run


def adam(xp: Any, count: int) -> Callable[[], Any]:
    """A function that makes one step with so many weights; returns them (float32)."""
    rng = np.random.default_rng(7)
    weights, slope = (xp.asarray(rng.standard_normal(count).astype(np.float32)) for _ in range(2))
    mean, square, steps = xp.zeros(count, np.float32), xp.zeros(count, np.float32), 0

    def run() -> Any:
        nonlocal steps, mean, square, weights
        steps += 1
        mean *= 0.9
        mean += 0.1 * slope
        square *= 0.999
        square += 0.001 * (slope * slope)
        weights -= 0.001 * (mean / (1 - 0.9**steps)) / (xp.sqrt(square / (1 - 0.999**steps)) + 1e-8)
        return (weights,)

    return run
