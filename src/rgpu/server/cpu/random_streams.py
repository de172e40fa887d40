"""Random states and generators of the cpu backend, over NumPy's bit generators.

``draw`` makes any distribution of any shape in CuPy's dtype; the declared methods of RandomState
and Generator are tables over it. The bits differ from a GPU's: a seed repeats on one kind of
backend only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

# ---- distributions ----------------------------------------------------------------------------


def _float(dtype: np.dtype) -> np.dtype:
    """The dtype to draw in: NumPy draws float32 and float64."""
    return dtype if dtype.char in "fd" else np.dtype(np.float64)


def _uniform(g: Any, shape: tuple, dtype: np.dtype, low: Any = 0.0, high: Any = 1.0) -> Any:
    low, high = np.asarray(low, _float(dtype)), np.asarray(high, _float(dtype))
    return low + g.random(shape, _float(dtype)) * (high - low)


def _normal(g: Any, shape: tuple, dtype: np.dtype, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    return g.standard_normal(shape, _float(dtype)) * scale + loc


def _dirichlet(g: Any, shape: tuple, dtype: np.dtype, alpha: Any) -> Any:
    gammas = g.standard_gamma(np.asarray(alpha, float), shape)
    return gammas / gammas.sum(axis=-1, keepdims=True)


def _hypergeometric(g: Any, shape: tuple, dtype: np.dtype, good: Any, bad: Any, sample: Any) -> Any:
    good, bad, sample = (np.asarray(x).astype(np.int64) for x in (good, bad, sample))
    return g.hypergeometric(good, bad, np.minimum(sample, good + bad), shape)


def _binomial(g: Any, shape: tuple, dtype: np.dtype, n: Any, p: Any) -> Any:
    return g.binomial(np.asarray(n).astype(np.int64), np.asarray(p, float), shape)


def _exponential(g: Any, shape: tuple, dtype: np.dtype, scale: Any = 1.0) -> Any:
    if np.any(np.asarray(scale) < 0):
        raise ValueError("scale < 0")
    return g.standard_exponential(shape, _float(dtype)) * np.asarray(scale)


def _standard_t(g: Any, shape: tuple, dtype: np.dtype, df: Any) -> Any:
    return g.standard_t(np.asarray(df, float), shape)


def _power(g: Any, shape: tuple, dtype: np.dtype, a: Any) -> Any:
    if np.any(np.asarray(a) < 0):
        raise ValueError("a < 0")
    return (1 - np.exp(-g.standard_exponential(shape))) ** (1.0 / np.asarray(a))


def _logseries(g: Any, shape: tuple, dtype: np.dtype, p: Any) -> Any:
    if np.any(np.asarray(p) <= 0):
        raise ValueError("p <= 0.0")
    return g.logseries(np.asarray(p, float), shape)


_DRAWS: dict[str, Callable[..., Any]] = {
    "random": _uniform, "random_sample": _uniform, "uniform": _uniform, "normal": _normal,
    "standard_normal": _normal, "dirichlet": _dirichlet, "hypergeometric": _hypergeometric,
    "binomial": _binomial, "exponential": _exponential, "standard_exponential": _exponential,
    "standard_t": _standard_t, "power": _power, "logseries": _logseries,
}  # fmt: skip

#: NumPy's own method of the same name serves
_PLAIN = """beta chisquare f gamma geometric gumbel laplace logistic lognormal negative_binomial
noncentral_chisquare noncentral_f pareto poisson rayleigh standard_cauchy standard_gamma triangular vonmises
wald weibull zipf""".split()


def _plain(name: str) -> Callable[..., Any]:
    method = getattr(np.random.Generator, name)

    def draw(g: Any, shape: tuple, dtype: np.dtype, *parameters: Any) -> Any:
        return method(g, *[np.asarray(x, float) for x in parameters], size=shape)

    return draw


_DRAWS.update({name: _plain(name) for name in _PLAIN})


def _drawer(name: str, default: Any) -> Callable[..., Any]:
    """The declared method of a state: parameters, then ``size``, ``dtype`` and ``out`` by name."""
    draw = _DRAWS[name]

    def method(state: Any, *parameters: Any, size: Any = None, dtype: Any = default, out: Any = None) -> Any:
        shape = np.broadcast_shapes(*[np.shape(x) for x in parameters]) if size is None else tuple(size)
        if name == "dirichlet":
            shape = (*(size or ()), *np.shape(parameters[0]))
        elif name in ("exponential", "uniform", "triangular"):
            shape = np.broadcast_shapes(shape, *[np.shape(x) for x in parameters])
        dtype = np.dtype(dtype)
        result = np.asarray(draw(state.generator, shape, dtype, *parameters)).astype(dtype, copy=False)
        if out is None:
            return result
        out[...] = result
        return None

    return method


# ---- the classes --------------------------------------------------------------------------------


class CpuRandomState:
    """The state behind the old interface. ``method`` (cuRAND's generator) only separates streams."""

    def __init__(self, seed: int, method: int = 100) -> None:
        self.method = method
        self.seed(seed)

    def seed(self, seed: int) -> None:
        self.generator = np.random.Generator(np.random.PCG64DXSM([int(seed), int(self.method)]))


class CpuBitGenerator:
    """A NumPy bit generator in the place of one of cuRAND's."""

    def __init__(self, kind: type, words: np.ndarray) -> None:
        self.bits = kind(np.random.SeedSequence(words))


class CpuGenerator:
    """The worker's side of ``Generator``."""

    def __init__(self, source: CpuBitGenerator) -> None:
        if not isinstance(source, CpuBitGenerator):
            raise TypeError("a Generator needs a bit generator")
        self.generator = np.random.Generator(source.bits)


def _bits(kind: type) -> Callable[..., Any]:
    return lambda words, size=-1: CpuBitGenerator(kind, words)


def _raw(source: CpuBitGenerator, shape: tuple) -> Any:
    count = int(np.prod(shape))
    return (source.bits.random_raw(count) & 0xFFFFFFFF).astype(np.uint32).view(np.int32).reshape(shape)


# ---- methods that are no distributions ----------------------------------------------------------


def _seed(state: CpuRandomState, seed: int) -> None:
    state.seed(seed)


def _tomaxint(state: Any, size: tuple) -> Any:
    return state.generator.integers(0, np.iinfo(np.int_).max, size, np.int_, endpoint=True)


def _integers(state: Any, low: Any, high: Any, size: tuple, dtype: Any, endpoint: bool = False) -> Any:
    """Bounded integers in any dtype; drawn wide, so that no bound overflows."""
    if np.ndim(low) or (high is not None and np.ndim(high)):
        low, high = (0, low) if high is None else (low, high)
        return state.generator.integers(low, high, size, np.int64, endpoint=endpoint).astype(dtype)
    wide = np.uint64 if high > 2**63 - 1 else np.int64
    return state.generator.integers(low, high, size, wide, endpoint=endpoint).astype(dtype)


def _randint(state: Any, low: Any, high: Any = None, size: tuple = (), dtype: Any = int) -> Any:
    return _integers(state, low, high, size, dtype)


def _choice(state: Any, a: Any, size: tuple, replace: bool = True, p: Any = None) -> Any:
    g = state.generator
    population = a if isinstance(a, int) else len(a)
    if p is not None:
        if not (p >= 0).all():
            raise ValueError("probabilities are not non-negative")
        if not np.allclose(p.sum(), 1):
            raise ValueError("probabilities do not sum to 1")
        sums = np.cumsum(p, dtype=float)
        index = np.searchsorted(sums / sums[-1], g.random(size), side="right")
    elif replace:
        index = g.integers(0, max(population, 1), size)
    else:
        index = g.choice(population, int(np.prod(size)), replace=False).reshape(size)
    return index if isinstance(a, int) else a[index]


def _shuffle(state: Any, a: np.ndarray) -> None:
    a[...] = a[state.generator.permutation(len(a))]


def _permutation(state: Any, a: Any) -> Any:
    order = state.generator.permutation(a if isinstance(a, int) else len(a))
    return order if isinstance(a, int) else a[order]


def _multivariate_normal(
    state: Any, mean: Any, cov: Any, size: list, check_valid: str, tol: float, method: str, dtype: Any
) -> Any:
    kind = "raise" if check_valid == "raise" else "ignore"
    drawn = state.generator.multivariate_normal(
        mean, cov, tuple(size), check_valid=kind, tol=tol, method=method
    )
    return drawn.astype(dtype)


def _bit_generator(source: Any) -> Any:
    """NumPy's, of a state or of a bit generator."""
    return source.generator.bit_generator if isinstance(source, CpuRandomState) else source.bits


def _restore(source: Any, state: dict) -> None:
    _bit_generator(source).state = state


OVERRIDES: dict[str, Callable[..., Any]] = {
    "random.state": lambda source: _bit_generator(source).state,
    "random.restore": _restore,
    "random.RandomState": CpuRandomState,
    "random.RandomState.seed": _seed,
    "random.RandomState.tomaxint": _tomaxint,
    "random.RandomState.randint": _randint,
    "random.RandomState.choice": _choice,
    "random.RandomState.shuffle": _shuffle,
    "random.RandomState.permutation": _permutation,
    "random.RandomState.multivariate_normal": _multivariate_normal,
    "random.Generator": CpuGenerator,
    "random.Generator.integers": _integers,
    "random.XORWOW": _bits(np.random.PCG64),
    "random.MRG32k3a": _bits(np.random.SFC64),
    "random.Philox4x3210": _bits(np.random.Philox),
    "random.BitGenerator.random_raw": _raw,
}
_INTEGERS = ("binomial", "geometric", "hypergeometric", "logseries", "poisson", "negative_binomial", "zipf")
for _name in _DRAWS:
    _default = np.int64 if _name in _INTEGERS else np.float64
    OVERRIDES[f"random.RandomState.{_name}"] = OVERRIDES[f"random.Generator.{_name}"] = _drawer(
        _name, _default
    )
