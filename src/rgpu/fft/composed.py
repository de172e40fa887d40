"""Transforms that are made of others: Hermitian ones of ``rfft`` and ``irfft``, cosine and sine ones of ``fft``.

The Hermitian ones are made here. The others are one function of the worker each; what is done here is the record of
the plans that CuPy would have cached. Nothing here waits.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from rgpu.client.meta import fresh
from rgpu.fft import callbacks, plans

_SWAPPED = {None: "forward", "backward": "forward", "forward": "backward", "ortho": "ortho"}
_REAL = {"hfft": "irfft", "ihfft": "rfft", "hfft2": "irfft2", "ihfft2": "rfft2", "hfftn": "irfftn", "ihfftn": "rfftn"}


def _through(name: str, real: Callable[..., Any], x: Any, where: tuple, norm: Any) -> Any:
    """A Hermitian transform by the real one in the other direction."""
    if norm not in _SWAPPED:
        raise ValueError(f'Invalid norm value {norm}; should be "backward", "ortho", or "forward".')
    return real(x, *where, _SWAPPED[norm]).conj() if name.startswith("i") else real(x.conj(), *where, _SWAPPED[norm])


def hermitian(names: dict[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """``hfft`` and ``ihfft`` of ``cupy.fft``, over its functions."""

    def made(name: str) -> Callable[..., Any]:
        real = names[_REAL[name]]

        def call(a: Any, n: Any = None, axis: Any = -1, norm: Any = None) -> Any:
            return _through(name, real, a, (n, axis), norm)

        return call

    return {name: made(name) for name in ("hfft", "ihfft")}


def scipy_hermitian(names: dict[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """The Hermitian transforms of ``cupyx.scipy.fft``, which take no plans."""

    def planless(name: str, plan: Any) -> None:
        if plan is not None:
            raise NotImplementedError(f"a plan for {name} is not yet supported")

    def one(name: str) -> Callable[..., Any]:
        def call(x: Any, n: Any = None, axis: Any = -1, norm: Any = None, overwrite_x: bool = False, *,
                 plan: Any = None) -> Any:  # fmt: skip
            planless(name, plan)
            return _through(name, names[_REAL[name]], x, (n, axis), norm)

        return call

    def several(name: str, default: Any) -> Callable[..., Any]:
        def call(x: Any, s: Any = None, axes: Any = default, norm: Any = None, overwrite_x: bool = False, *,
                 plan: Any = None) -> Any:  # fmt: skip
            planless(name, plan)
            return _through(name, names[_REAL[name]], x, (s, axes), norm)

        return call

    makers = {"": one, "2": lambda name: several(name, (-2, -1)), "n": lambda name: several(name, None)}
    return {name: makers[name.rpartition("fft")[2]](name) for name in _REAL}


# --- cosines, sines and logarithmic steps, whose transforms inside leave plans in the cache --------


def _record(x: Any, places: list[tuple[int, int]]) -> None:
    """The plans of one complex transform after the other, each of an extent along an axis; twice for complex input,
    whose real and imaginary parts go one after the other."""
    for _ in range(2 if x.dtype.kind == "c" else 1):
        shape = list(x.shape)
        for n, axis in places:
            shape[axis] = n
            plans.remember(fresh(tuple(shape), x.dtype), (n,), (axis,), "C2C", False, callbacks.current())


def _check_type(type: int) -> None:
    """CuPy has the cosine and sine transforms of two types."""
    if type in (1, 4):
        raise NotImplementedError("only the types 2 and 3 of cosine and sine transforms are there, as in CuPy")
    if type not in (2, 3):
        raise ValueError(f"{type!r} is no type of a cosine or sine transform")


def _cosine(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(x: Any, type: int = 2, n: Any = None, axis: int = -1, norm: Any = None, overwrite_x: bool = False) -> Any:
        _check_type(type)
        result = function(x, type, n, axis, norm, overwrite_x)
        _record(x, [(x.shape[axis] if n is None else operator.index(n), operator.index(axis))])
        return result

    return call


def _cosines(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(
        x: Any, type: int = 2, s: Any = None, axes: Any = None, norm: Any = None, overwrite_x: bool = False
    ) -> Any:
        _check_type(type)
        result = function(x, type, s, axes, norm, overwrite_x)
        sizes, over = ((value,) if isinstance(value, int) else value for value in (s, axes))
        if over is None:
            over = range(-(x.ndim if sizes is None else len(sizes)), 0)
        sizes = [-1] * len(over) if sizes is None else sizes
        pairs = ((operator.index(n), operator.index(axis)) for n, axis in zip(sizes, over))
        _record(x, [(x.shape[axis] if n == -1 else n, axis) for n, axis in pairs])
        return result

    return call


def _logarithmic(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(a: Any, dln: Any, mu: Any, offset: Any = 0.0, bias: Any = 0.0) -> Any:
        # Without a bias single precision stays: what the client learns of the result is by the number of arguments.
        result = function(a, dln, mu, offset, bias) if bias != 0 else function(a, dln, mu, offset)
        n, manager = a.shape[-1], callbacks.current()
        plans.remember(a._metadata, None, (-1,), "R2C", False, manager)
        plans.remember(fresh((*a.shape[:-1], n // 2 + 1), a.dtype), (n,), (-1,), "C2R", False, manager)
        return result

    return call


def recorded(functions: dict[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """The functions of ``cupyx.scipy.fft`` that transform inside, with the record of their plans."""
    made = {name: _cosine(functions[name]) for name in ("dct", "idct", "dst", "idst")}
    made |= {name: _cosines(functions[name]) for name in ("dctn", "idctn", "dstn", "idstn")}
    return made | {name: _logarithmic(functions[name]) for name in ("fht", "ifht")}
