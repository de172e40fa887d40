"""Decorators that run a test once for each dtype, combination of dtypes, order or axis, which it takes by keyword.

A case that skips itself is left out; one that fails says which it was and ends the test. With
``CUPY_TEST_FULL_COMBINATION=1`` every combination is run, otherwise a random part in which every dtype is twice.
"""

from __future__ import annotations

import functools
import inspect
import os
import random
import unittest
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from rgpu.testing.cases import product

FLOATS = (np.float64, np.float32, np.float16)
COMPLEX = (np.complex64, np.complex128)
SIGNED = tuple(np.dtype(code).type for code in "bhilq")
UNSIGNED = tuple(np.dtype(code).type for code in "BHILQ")
INTEGERS = SIGNED + UNSIGNED
Decorator = Callable[[Callable], Callable]


def skips() -> tuple[type[BaseException], ...]:
    """What a test raises to be skipped."""
    try:
        from _pytest.outcomes import Skipped
    except ImportError:
        return (unittest.SkipTest,)
    return unittest.SkipTest, Skipped


def without(test: Callable, names: Iterable[str]) -> Decorator:
    """Like ``functools.wraps(test)``, but callers (pytest) do not see these arguments: the decorator gives them."""
    hidden = set(names)

    def dress(wrapper: Callable) -> Callable:
        wrapper = functools.wraps(test)(wrapper)
        signature = inspect.signature(test)
        kept = [p for p in signature.parameters.values() if p.name not in hidden]
        wrapper.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
        return wrapper

    return dress


def _each(cases: list[dict], names: Iterable[str]) -> Decorator:
    """Run the test with the keywords of each case."""

    def decorator(test: Callable) -> Callable:
        @without(test, names)
        def run(*args: Any, **kwargs: Any) -> None:
            for case in cases:
                said = ", ".join(f"{name} is {value}" for name, value in case.items())
                try:
                    test(*args, **{**kwargs, **case})
                except skips() as reason:
                    print(f"skipped: {said} ({reason})")
                except Exception:
                    print(said)  # pytest shows it beside the failure
                    raise

        return run

    return decorator


def for_dtypes(dtypes: Iterable[Any], name: str = "dtype") -> Decorator:
    """Once for each of these dtypes, given as the scalar's type."""
    return _each([{name: np.dtype(dtype).type} for dtype in dtypes], [name])


def _all(no_float16: bool, no_bool: bool, no_complex: bool) -> tuple:
    chosen: tuple = FLOATS[:2] if no_float16 else FLOATS
    chosen += INTEGERS if no_bool else (*INTEGERS, np.bool_)
    return chosen if no_complex else chosen + COMPLEX


def for_all_dtypes(
    name: str = "dtype", no_float16: bool = False, no_bool: bool = False, no_complex: bool = False
) -> Decorator:
    """Once for each dtype that a device has."""
    return for_dtypes(_all(no_float16, no_bool, no_complex), name)


def for_float_dtypes(name: str = "dtype", no_float16: bool = False) -> Decorator:
    """Once for each real floating dtype."""
    return for_dtypes(FLOATS[:2] if no_float16 else FLOATS, name)


def for_signed_dtypes(name: str = "dtype") -> Decorator:
    """Once for each signed integer."""
    return for_dtypes(SIGNED, name)


def for_unsigned_dtypes(name: str = "dtype") -> Decorator:
    """Once for each unsigned integer."""
    return for_dtypes(UNSIGNED, name)


def for_int_dtypes(name: str = "dtype", no_bool: bool = False) -> Decorator:
    """Once for each integer, and bool."""
    return for_dtypes(INTEGERS if no_bool else (*INTEGERS, np.bool_), name)


def for_complex_dtypes(name: str = "dtype") -> Decorator:
    """Once for each complex dtype."""
    return for_dtypes(COMPLEX, name)


def for_dtypes_combination(
    types: Iterable[Any], names: Iterable[str] = ("dtype",), full: bool | None = None
) -> Decorator:
    """Once for each combination of dtypes, one for each name; ``full``: all of them (None: as the environment says)."""
    types, names = list(types), list(names)
    if len(types) == 1:
        return for_dtypes(types, *names)
    if full is None:
        full = os.environ.get("CUPY_TEST_FULL_COMBINATION", "0") not in ("", "0")
    if full:
        return _each(product(dict.fromkeys(names, types)), names)
    columns = [types + random.sample(types, len(types)) for _ in names]
    return _each([dict(zip(names, row)) for row in dict.fromkeys(zip(*columns))], names)


def for_all_dtypes_combination(
    names: Iterable[str] = ("dtype",), no_float16: bool = False, no_bool: bool = False, full: bool | None = None,
    no_complex: bool = False,
) -> Decorator:  # fmt: skip
    """Combinations of all dtypes."""
    return for_dtypes_combination(_all(no_float16, no_bool, no_complex), names, full)


def for_signed_dtypes_combination(names: Iterable[str] = ("dtype",), full: bool | None = None) -> Decorator:
    """Combinations of signed integers."""
    return for_dtypes_combination(SIGNED, names, full)


def for_unsigned_dtypes_combination(names: Iterable[str] = ("dtype",), full: bool | None = None) -> Decorator:
    """Combinations of unsigned integers."""
    return for_dtypes_combination(UNSIGNED, names, full)


def for_int_dtypes_combination(
    names: Iterable[str] = ("dtype",), no_bool: bool = False, full: bool | None = None
) -> Decorator:
    """Combinations of integers, and bool."""
    return for_dtypes_combination(INTEGERS if no_bool else (*INTEGERS, np.bool_), names, full)


def for_orders(orders: Iterable[Any], name: str = "order") -> Decorator:
    """Once for each of these memory orders."""
    return _each([{name: order} for order in orders], [name])


def for_CF_orders(name: str = "order") -> Decorator:  # noqa: N802
    """Once for each way to say C or Fortran order, and without saying."""
    return for_orders([None, "C", "F", "c", "f"], name)


def for_contiguous_axes(name: str = "axis") -> Decorator:
    """Once for each run of axes that is contiguous in memory, by the test's ``shape`` and ``order``: up to the last
    axis in C order, from the first in Fortran order."""

    def decorator(test: Callable) -> Callable:
        @without(test, [name])
        def run(self: Any, *args: Any, **kwargs: Any) -> None:
            ndim, order = len(kwargs["shape"]), kwargs["order"]
            if order not in ("c", "C", "f", "F"):
                raise ValueError("Please specify the array order.")
            for axis in range(ndim):
                axes = tuple(range(axis, ndim) if order in "cC" else range(axis + 1))
                try:
                    test(self, *args, **{**kwargs, name: axes})
                except Exception:
                    print(f"{name} is {axes}, ndim is {ndim}, shape is {kwargs['shape']}, order is {order}")
                    raise

        return run

    return decorator
