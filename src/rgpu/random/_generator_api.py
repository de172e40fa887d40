"""``Generator``: NumPy's newer interface to random numbers, over a bit generator.

Draws are single commands with layouts known here, so nothing waits; parameters are device arrays
or Python numbers, as CuPy demands.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rgpu.client.meta import fresh
from rgpu.client.remote import Remote
from rgpu.functions import creation
from rgpu.functions.objects import RemoteObject
from rgpu.random import _arguments
from rgpu.random._generator import _check_bounds

#: method -> (signature, dtype of the result where there is no dtype argument)
_METHODS = {
    "random": ("size=None dtype=float64 out=None", None),
    "uniform": ("low=0.0 high=1.0 size=None dtype=float64", None),
    "beta": ("a b size=None dtype=float64", None),
    "binomial": ("n p size=None", np.int64),
    "chisquare": ("df size=None", np.float64),
    "dirichlet": ("alpha size=None", np.float64),
    "exponential": ("scale=1.0 size=None", np.float64),
    "f": ("dfnum dfden size=None", np.float64),
    "gamma": ("shape scale=1.0 size=None", np.float64),
    "geometric": ("p size=None", np.int64),
    "hypergeometric": ("ngood nbad nsample size=None", np.int64),
    "logseries": ("p size=None", np.int64),
    "poisson": ("lam=1.0 size=None", np.int64),
    "power": ("a size=None", np.float64),
    "standard_exponential": ("size=None dtype=float64 method=inv out=None", None),
    "standard_gamma": ("shape size=None dtype=float64 out=None", None),
    "standard_normal": ("size=None dtype=float64 out=None", None),
}
_ANY_PARAMETER = ("uniform", "exponential")
_FLOATS_ONLY = ("standard_gamma", "standard_normal")


class _Drawer(RemoteObject):
    """The worker's generator over one bit generator."""

    def __init__(self, bit_generator: Any) -> None:
        self._create("random.Generator", bit_generator)


class Generator:
    """Random numbers of many distributions from one bit generator."""

    __module__ = "cupy.random._generator_api"

    def __init__(self, bit_generator: Any) -> None:
        self.bit_generator = bit_generator

    @property
    def bit_generator(self) -> Any:
        return self._bit_generator

    @bit_generator.setter
    def bit_generator(self, bit_generator: Any) -> None:
        with bit_generator._stream.device:
            self._drawer = _Drawer(bit_generator)
        self._bit_generator = bit_generator

    def _draw(self, name: str, values: dict, result: Any) -> Any:
        self._bit_generator._check_device()
        out, size = values.pop("out", None), values.pop("size")
        if values.pop("method", "inv") == "zig":
            raise NotImplementedError("Ziggurat method is not supported")
        dtype = np.dtype(values.pop("dtype", result))
        if name in _FLOATS_ONLY and dtype.char not in ("f", "d"):
            raise TypeError(f"Unsupported dtype {dtype.name} for {name}")
        if out is not None:
            _check_out(dtype, size, out, name == "standard_gamma")
            size = out._metadata.shape
        if name == "hypergeometric":
            _arguments.check("ngood < 0; nbad < 0; nsample < 0", values)
        size = None if size is None else creation.checked_shape(size)
        parameters = [_parameter(name, key, x) for key, x in values.items()]
        if name == "dirichlet":
            shape = (() if size is None else creation.checked_shape(size)) + _arguments.shape_of(
                parameters[0]
            )
        else:
            shape = _arguments.drawn_shape(size, parameters, strict=name not in _ANY_PARAMETER)
        options = {"size": size} if result is not None else {"size": size, "dtype": dtype}
        if out is not None:
            self._drawer._call(f"random.Generator.{name}", None, *parameters, **options, out=out)
            return out
        return self._drawer._call(f"random.Generator.{name}", fresh(shape, dtype), *parameters, **options)

    def integers(
        self, low: Any, high: Any = None, size: Any = None, dtype: Any = np.int64, endpoint: bool = False
    ) -> Any:
        """Integers over [low, high), or [low, high] with ``endpoint``."""
        self._bit_generator._check_device()
        first, last = (0, int(low)) if high is None else (int(low), int(high))
        last -= not endpoint
        dtype = np.dtype(dtype)
        _check_bounds(first, last, dtype)
        if last - first >= 2**64:
            raise ValueError(f"high - low must be within uint64 range (actual: {last - first})")
        shape = () if size is None else creation.checked_shape(size)
        return self._drawer._call(
            "random.Generator.integers",
            fresh(shape, dtype),
            first,
            last,
            size=shape,
            dtype=dtype,
            endpoint=True,
        )


def _parameter(name: str, key: str, x: Any) -> Any:
    if isinstance(x, Remote):
        return x
    if name in _ANY_PARAMETER:
        return _arguments.on_device(x)
    allowed = (float,) if (name, key) == ("binomial", "p") else (float, int)
    if type(x) in allowed:
        return x
    if name in ("standard_gamma", "gamma") and key == "shape" and x is not None:
        raise ValueError("shape is required to be a cupy.ndarray or a scalar")
    raise TypeError(f"{key} is required to be a cupy.ndarray or a scalar")


def _check_out(dtype: np.dtype, size: Any, out: Any, c_only: bool) -> None:
    meta = out._metadata
    if meta.dtype.char != dtype.char:
        raise TypeError(
            f"Supplied output array has the wrong type. Expected {dtype.name}, got {meta.dtype.name}"
        )
    if not (meta.c or (meta.f and not c_only)):
        raise ValueError("Supplied output array is not contiguous, writable or aligned.")
    if size is not None and (tuple(size) if isinstance(size, tuple | list) else (size,)) != meta.shape:
        raise ValueError("size must match out.shape when used together")


def _add_methods() -> None:
    for name, (text, result) in _METHODS.items():
        body = lambda self, values, name=name, result=result: self._draw(name, values, result)  # noqa: E731
        setattr(Generator, name, _arguments.signed(name, text, body))


_add_methods()
