"""``RandomState``, one for each device by default, and the functions that get, set and seed it.

The state lives on the worker that made it; a draw is one command whose layout is known here, so
drawing never waits. Seeds are made on the client: the same seed gives the same samples on one
kind of backend.
"""

from __future__ import annotations

import hashlib
import math
import os
from typing import Any

import numpy as np

from rgpu.client import pool
from rgpu.client.meta import fresh
from rgpu.client.remote import Remote
from rgpu.functions import creation
from rgpu.functions.objects import RemoteObject
from rgpu.random import _arguments

_UINT64_MAX = 2**64 - 1

#: distribution -> signature; the words before ``size`` are its parameters
DISTRIBUTIONS = {
    "beta": "a b size=None dtype=float",
    "binomial": "n p size=None dtype=int",
    "chisquare": "df size=None dtype=float",
    "dirichlet": "alpha size=None dtype=float",
    "exponential": "scale=1.0 size=None dtype=float",
    "f": "dfnum dfden size=None dtype=float",
    "gamma": "shape scale=1.0 size=None dtype=float",
    "geometric": "p size=None dtype=l",
    "gumbel": "loc=0.0 scale=1.0 size=None dtype=float",
    "hypergeometric": "ngood nbad nsample size=None dtype=l",
    "laplace": "loc=0.0 scale=1.0 size=None dtype=float",
    "logistic": "loc=0.0 scale=1.0 size=None dtype=float",
    "lognormal": "mean=0.0 sigma=1.0 size=None dtype=float",
    "logseries": "p size=None dtype=l",
    "negative_binomial": "n p size=None dtype=int",
    "noncentral_chisquare": "df nonc size=None dtype=float",
    "noncentral_f": "dfnum dfden nonc size=None dtype=float",
    "normal": "loc=0.0 scale=1.0 size=None dtype=float",
    "pareto": "a size=None dtype=float",
    "poisson": "lam=1.0 size=None dtype=l",
    "power": "a size=None dtype=float",
    "random_sample": "size=None dtype=float",
    "rayleigh": "scale=1.0 size=None dtype=float",
    "standard_cauchy": "size=None dtype=float",
    "standard_exponential": "size=None dtype=float",
    "standard_gamma": "shape size=None dtype=float",
    "standard_normal": "size=None dtype=float",
    "standard_t": "df size=None dtype=float",
    "triangular": "left mode right size=None dtype=float",
    "uniform": "low=0.0 high=1.0 size=None dtype=float",
    "vonmises": "mu kappa size=None dtype=float",
    "wald": "mean scale size=None dtype=float",
    "weibull": "a size=None dtype=float",
    "zipf": "a size=None dtype=int",
}

#: parameters that CuPy refuses
_REFUSED = {
    "exponential": "scale < 0",
    "hypergeometric": "ngood < 0; nbad < 0; nsample < 1",
    "logseries": "p <= 0.0; p >= 1.0",
    "negative_binomial": "n <= 0; p < 0; p > 1",
    "noncentral_chisquare": "df <= 0; nonc < 0",
    "noncentral_f": "dfnum <= 0; dfden <= 0; nonc < 0",
    "power": "a < 0",
    "rayleigh": "scale < 0",
    "triangular": "left > mode; mode > right; left == right",
    "weibull": "a < 0",
    "zipf": "a <= 1.0",
}

#: drawn by cuRAND itself, which knows two dtypes
_FLOATS_ONLY = set(
    """exponential gumbel laplace lognormal normal pareto power random_sample rayleigh standard_cauchy
standard_exponential standard_normal triangular uniform wald weibull""".split()
)


def _check_and_get_dtype(dtype: Any) -> np.dtype:
    dtype = np.dtype(dtype)
    if dtype.char not in ("f", "d"):
        raise TypeError("cupy.random only supports float32 and float64")
    return dtype


def _seed_value(seed: Any) -> int:
    """The 64-bit seed that CuPy makes of a seed argument; fresh entropy for None."""
    if seed is None:
        return int.from_bytes(os.urandom(8), "big")
    if isinstance(seed, np.ndarray):
        return int(hashlib.md5(np.ascontiguousarray(seed), usedforsecurity=False).hexdigest()[:16], 16)
    value = np.asarray(seed.get() if isinstance(seed, Remote) else seed)  # type: ignore[attr-defined]
    if value.dtype.kind not in "biu":
        raise TypeError("Seed must be an integer.")
    number = int(value)
    if not 0 <= number <= _UINT64_MAX:
        raise ValueError("Seed must be an integer between 0 and 2**64 - 1")
    return number


class RandomState(RemoteObject):
    """A pseudo-random number generator on the current device; ``seed`` None draws fresh entropy."""

    __module__ = "cupy.random._generator"

    def __init__(self, seed: Any = None, method: Any = None) -> None:
        self.method = 100 if method is None else method  # cuRAND's default generator
        self._create("random.RandomState", _seed_value(seed), self.method)

    def seed(self, seed: Any = None) -> None:
        """Start over from a seed."""
        self._call("random.RandomState.seed", None, _seed_value(seed))

    def _distribution(self, name: str, values: dict) -> Any:
        """One draw of a distribution of the table."""
        check_dtype = _check_and_get_dtype if name in _FLOATS_ONLY else creation.checked_dtype
        dtype = check_dtype(values["dtype"])
        _arguments.check(_REFUSED.get(name, ""), values)
        size = None if values["size"] is None else creation.checked_shape(values["size"])
        with self._stream.device:
            parameters = [
                _arguments.on_device(x) for key, x in values.items() if key not in ("size", "dtype")
            ]
            if name == "dirichlet":
                shape = (size or ()) + _arguments.shape_of(parameters[0])
            else:
                shape = _arguments.drawn_shape(size, parameters, strict=name not in ("uniform", "triangular"))
            layout = fresh(shape, dtype)
            drawn = self._call(f"random.RandomState.{name}", layout, *parameters, size=size, dtype=dtype)
        if name in _REFUSED and any(isinstance(x, Remote) for x in values.values()):
            self._stream.sync()  # CuPy looks at the parameters here, too, and raises at once
        return drawn

    def rand(self, *size: int, **kwargs: Any) -> Any:
        """Uniform samples over [0, 1), of the shape given as arguments."""
        return self.random_sample(size=size, dtype=_only_dtype("rand", kwargs))  # type: ignore[attr-defined]

    def randn(self, *size: int, **kwargs: Any) -> Any:
        """Standard normal samples, of the shape given as arguments."""
        return self.normal(size=size, dtype=_only_dtype("randn", kwargs))  # type: ignore[attr-defined]

    def tomaxint(self, size: Any = None) -> Any:
        """Integers between 0 and the largest ``int_``, inclusive."""
        size = () if size is None else creation.checked_shape(size)
        return self._call("random.RandomState.tomaxint", fresh(size, np.dtype(np.int_)), size)

    def randint(self, low: Any, high: Any = None, size: Any = None, dtype: Any = int) -> Any:
        """Integers over [low, high), or [0, low)."""
        dtype = np.dtype(dtype)
        if np.isscalar(low):
            low, high = (0, int(low)) if high is None else (int(low), int(high))  # type: ignore[call-overload]
            _check_bounds(low, high - 1, dtype)
            shape = () if size is None else creation.checked_shape(size)
            return self._call(
                "random.RandomState.randint", fresh(shape, dtype), low, high, size=shape, dtype=dtype
            )
        with self._stream.device:
            bounds = [_arguments.on_device(x) for x in (low, high) if x is not None]
            shape = _arguments.drawn_shape(size, bounds)
            high = bounds[1] if len(bounds) > 1 else None
            return self._call(
                "random.RandomState.randint", fresh(shape, dtype), bounds[0], high, size=shape, dtype=dtype
            )

    def _interval(self, mx: int, size: Any) -> Any:
        """Unsigned integers over [0, mx]."""
        if mx < 0 or mx > _UINT64_MAX:
            raise ValueError(f"mx must be within uint64 range (actual: {mx})")
        return self.randint(0, mx + 1, size, np.uint32 if mx < 2**32 else np.uint64)

    def choice(self, a: Any, size: Any = None, replace: bool = True, p: Any = None) -> Any:
        """Samples of a one-dimensional array, or of ``arange(a)``, with probabilities ``p``."""
        _check_choice(a, size, replace, p)
        with self._stream.device:
            if isinstance(a, int):
                population, dtype = a, np.dtype(np.int64)
            else:
                a = creation.array(a, copy=False)
                if a.ndim != 1:
                    raise ValueError("a must be 1-dimensional or an integer")
                population, dtype = a.size, a.dtype
            p = None if p is None else creation.array(p)
            shape = creation.checked_shape(size)
            _check_sample(population, math.prod(shape), replace, p)
            return self._call("random.RandomState.choice", fresh(shape, dtype), a, shape, replace, p)

    def shuffle(self, a: Any) -> None:
        """Permute an array in place along its first axis."""
        if not isinstance(a, Remote):
            raise TypeError("The array must be cupy.ndarray")
        if not a._metadata.ndim:
            raise TypeError("An array whose ndim is 0 is not supported")
        if a._stream is not self._stream:
            raise RuntimeError("the array and the random state are on different devices")
        self._call("random.RandomState.shuffle", None, a)

    def permutation(self, a: Any) -> Any:
        """A permuted range, or a permutation of an array along its first axis."""
        if isinstance(a, int):
            layout = fresh((a,), np.dtype(np.int64))
            if a < 0:
                raise ValueError("negative dimensions are not allowed")
        else:
            if not a.ndim:
                raise TypeError("len() of unsized object")
            layout = fresh(a.shape, a.dtype)
        return self._call("random.RandomState.permutation", layout, a)

    def multivariate_normal(
        self, mean: Any, cov: Any, size: Any = None, check_valid: str = "ignore", tol: float = 1e-08,
        method: str = "cholesky", dtype: Any = float,
    ) -> Any:  # fmt: skip
        """Samples of the multivariate normal distribution."""
        dtype = _check_and_get_dtype(dtype)
        with self._stream.device:
            mean, cov = creation.asarray(mean, dtype), creation.asarray(cov, dtype)
            if mean.ndim != 1:
                raise ValueError("mean must be 1 dimensional")
            if cov.ndim != 2 or cov.shape[0] != cov.shape[1]:
                raise ValueError("cov must be 2 dimensional and square")
            if mean.shape[0] != cov.shape[0]:
                raise ValueError("mean and cov must have same length")
            if method not in ("eigh", "svd", "cholesky"):
                raise ValueError("method must be one of {'eigh', 'svd', 'cholesky'}")
            if check_valid not in ("ignore", "warn", "raise"):
                raise ValueError("check_valid must equal 'warn', 'raise', or 'ignore'")
            size = () if size is None else creation.checked_shape(size)
            layout = fresh((*size, mean.shape[0]), dtype)
            return self._call(
                "random.RandomState.multivariate_normal",
                layout,
                mean,
                cov,
                list(size),
                check_valid,
                tol,
                method,
                dtype,
            )


def _add_distributions() -> None:
    for name, text in DISTRIBUTIONS.items():
        body = lambda self, values, name=name: self._distribution(name, values)  # noqa: E731
        setattr(RandomState, name, _arguments.signed(name, text, body))


_add_distributions()


def _only_dtype(name: str, kwargs: dict) -> Any:
    dtype = kwargs.pop("dtype", float)
    if kwargs:
        raise TypeError(f"{name}() got unexpected keyword arguments {', '.join(kwargs)}")
    return dtype


def _check_bounds(low: int, last: int, dtype: np.dtype) -> None:
    if low > last:
        raise ValueError("low >= high")
    info = np.iinfo(dtype) if dtype.kind != "b" else None
    if low < (info.min if info else 0):
        raise ValueError(f"low is out of bounds for {dtype.name}")
    if last > (info.max if info else 1):
        raise ValueError(f"high is out of bounds for {dtype.name}")


def _check_choice(a: Any, size: Any, replace: bool, p: Any) -> None:
    if a is None:
        raise ValueError("a must be 1-dimensional or an integer")
    if isinstance(a, Remote) and not a._metadata.ndim:
        raise NotImplementedError("choice() of a zero-dimensional array is not supported")
    if isinstance(a, int) and a < 0:
        raise ValueError("a must be greater than or equal to 0")
    if not isinstance(a, int | Remote) and np.ndim(a) != 1:
        raise ValueError("a must be 1-dimensional or an integer")
    if p is not None and not isinstance(p, Remote):
        p = np.asarray(p)
        if p.ndim != 1:
            raise ValueError("p must be 1-dimensional")
        if len(p) != (a if isinstance(a, int) else len(a)):
            raise ValueError("a and p must have same size")
        if not (p >= 0).all():
            raise ValueError("probabilities are not non-negative")
        if not np.allclose(p.sum(), 1):
            raise ValueError("probabilities do not sum to 1")
    if size is None:
        raise NotImplementedError("choice() without specifying size is not supported yet")
    if not replace and p is not None:
        raise NotImplementedError("choice() with p and without replacement is not supported")


def _check_sample(population: int, count: int, replace: bool, p: Any) -> None:
    if p is not None and (p.ndim != 1 or p.size != population):
        raise ValueError("p must be 1-dimensional" if p.ndim != 1 else "a and p must have same size")
    if not population and count > 0:
        raise ValueError("a cannot be empty unless no samples are taken")
    if not replace and population < count:
        raise ValueError("Cannot take a larger sample than population when 'replace=False'")


_random_states: dict[int, Any] = {}


def reset_states() -> None:
    """Forget the states of all devices."""
    global _random_states
    _random_states = {}


def get_random_state() -> RandomState:
    """The state of the current device, made (seeded by CUPY_SEED if set) at first use."""
    device = pool.current().ordinal
    state = _random_states.get(device)
    if isinstance(state, RandomState) and state._stream.closed:
        state = None  # it belonged to a session that is gone
        _random_states.pop(device, None)
    if state is None:
        seed = os.environ.get("CUPY_SEED")
        state = RandomState(None if seed is None else np.uint64(int(seed)))
        state = _random_states.setdefault(device, state)
    return state


def set_random_state(rs: Any) -> None:
    """Make a state the one of the current device."""
    if not isinstance(rs, RandomState):
        raise TypeError(f"Random state must be an instance of RandomState. Actual: {type(rs)}")
    _random_states[pool.current().ordinal] = rs


def seed(seed: Any = None) -> None:
    """Seed the state of the current device."""
    get_random_state().seed(seed)
