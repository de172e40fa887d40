"""Decorators that run a test twice, with a device and with NumPy, and compare what it returns.

The test takes the module by keyword (``xp``, and SciPy's as ``sp_name`` and ``scipy_name`` call it). Both runs must
return, or both raise a kind of error that the decorator accepts.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from rgpu.client.remote import Remote
from rgpu.functions import host
from rgpu.testing import assertions
from rgpu.testing.loops import FLOATS, SIGNED, UNSIGNED, Decorator, skips, without

Accepted = bool | type[BaseException] | tuple[type[BaseException], ...]

#: an error is of the same kind as another if it is one of just these that the other is
_KINDS = (
    AttributeError, IndexError, TypeError, ValueError, NotImplementedError, DeprecationWarning,
    np.exceptions.AxisError, np.linalg.LinAlgError, Exception,
)  # fmt: skip


class _Pair:
    """A test under both libraries."""

    def __init__(self, test: Callable, name: str, sp_name: str | None, scipy_name: str | None) -> None:
        self._test = test
        places = {name: ("rgpu", "numpy"), sp_name: ("rgpu.cupyx.scipy.sparse", "scipy.sparse"),
                  scipy_name: ("rgpu.cupyx.scipy", "scipy")}  # fmt: skip
        self._places: dict[str, tuple[str, str]] = {key: place for key, place in places.items() if key}
        self.names = list(self._places)

    def run(self, which: int, args: tuple, kwargs: dict) -> tuple[Any, BaseException | None]:
        """(what it returned, what it raised) with a device (0) or NumPy (1)."""
        modules = {name: importlib.import_module(place[which]) for name, place in self._places.items()}
        try:
            return self._test(*args, **kwargs, **modules), None
        except BaseException as error:
            if not isinstance(error, (Exception, *skips())):
                raise
            if error.__traceback__.tb_next is None:  # type: ignore[union-attr]
                raise  # the test cannot be called so
            return None, error

    def both(self, args: tuple, kwargs: dict, accepted: Accepted) -> tuple[Any, Any] | None:
        """What both returned; None if both raised what is accepted."""
        ours, error = self.run(0, args, kwargs)
        theirs, their_error = self.run(1, args, kwargs)
        if error is None and their_error is None:
            return ours, theirs
        _check_errors(error, their_error, accepted)
        return None


def _check_errors(error: BaseException | None, theirs: BaseException | None, accepted: Accepted) -> None:
    skipped = isinstance(error, skips()), isinstance(theirs, skips())
    if all(skipped):
        if (type(error), error.args) != (type(theirs), theirs.args):  # type: ignore[union-attr]
            raise AssertionError(f"both are skipped, for different reasons: {error!r}, {theirs!r}")
        raise theirs  # type: ignore[misc]
    said = f"\n\ncupy: {error!r}\n\nnumpy: {theirs!r}"
    allowed = Exception if accepted is True else accepted or ()
    if error is None or theirs is None:
        who = "numpy" if error is None else "cupy"
        raise AssertionError(f"Only {who} raises error{said}") from error or theirs
    if any(isinstance(error, kind) != isinstance(theirs, kind) for kind in _KINDS):
        raise AssertionError(f"Different types of errors occurred{said}") from error
    if not (isinstance(error, allowed) and isinstance(theirs, allowed)):
        raise AssertionError(f"Both cupy and numpy raise exceptions{said}") from error


def _arrays(ours: Any, theirs: Any, sparse: bool, formats: bool) -> tuple[Any, Any]:
    """What is compared of a pair of results."""
    if sparse and hasattr(ours, "toarray"):
        if not hasattr(theirs, "toarray") or (formats and ours.format != theirs.format):
            raise AssertionError(f"sparse matrices of different formats: {ours!r}, {theirs!r}")
        return ours.toarray(), theirs.toarray()
    if isinstance(ours, Remote) and isinstance(theirs, np.ndarray | np.generic):
        return ours, theirs
    if isinstance(theirs, np.poly1d) and hasattr(ours, "coeffs"):
        if ours.variable != theirs.variable:
            raise AssertionError(f"polynomials of {ours.variable} and {theirs.variable}")
        return ours.coeffs, theirs.coeffs
    if isinstance(ours, np.generic) and isinstance(theirs, np.generic):
        return ours, theirs
    if np.isscalar(ours) and np.isscalar(theirs):
        return np.array(ours), np.array(theirs)
    raise AssertionError(f"different types of results\ncupy: {type(ours)}\nnumpy: {type(theirs)}")


def _check_layout(ours: Any, theirs: Any) -> None:
    """What is contiguous with NumPy is so on a device."""
    if isinstance(theirs, np.ndarray):
        for flag in ("c_contiguous", "f_contiguous"):
            if getattr(theirs.flags, flag) and not getattr(ours.flags, flag):
                raise AssertionError(f"the state of {flag} flag is false")


def _mixes_signs(kwargs: dict) -> bool:
    given = {x for x in kwargs.values() if isinstance(x, type | np.dtype | str)}
    return any(x in given for x in UNSIGNED) and any(x in given for x in FLOATS + SIGNED)


def _where_defined(pair: _Pair, args: tuple, kwargs: dict) -> list[np.ndarray]:
    """A negative number that is made unsigned may be anything; where there is none, as signed types show it."""
    signed = {key: np.dtype(np.dtype(x).char.lower()).type if x in UNSIGNED else x for key, x in kwargs.items()}
    result, error = pair.run(0, args, signed)
    if error is not None:
        raise error
    return [host.asnumpy(x) >= 0 for x in _listed(result)]


def _listed(result: Any) -> list:
    return list(result) if isinstance(result, tuple | list) else [result]


def _comparing(
    check: Callable[[Any, Any], None], name: str, type_check: bool, contiguous_check: bool, accept_error: Accepted,
    sp_name: str | None, scipy_name: str | None, formats: bool = True,
) -> Decorator:  # fmt: skip
    def decorator(test: Callable) -> Callable:
        pair = _Pair(test, name, sp_name, scipy_name)

        @without(test, pair.names)
        def run(*args: Any, **kwargs: Any) -> None:
            results = pair.both(args, kwargs, accept_error)
            if results is None:
                return
            if any(result is None for result in results):
                raise AssertionError("the test returns nothing to compare")
            ours, theirs = map(_listed, results)
            if len(ours) != len(theirs):
                raise AssertionError(f"{len(ours)} results with cupy, {len(theirs)} with numpy")
            pairs = [_arrays(x, y, sp_name is not None, formats) for x, y in zip(ours, theirs)]
            for (x, y), raw in zip(pairs, zip(ours, theirs)):
                if type_check and x.dtype != y.dtype:
                    raise AssertionError(f"different dtypes are returned\ncupy: {x.dtype}\nnumpy: {y.dtype}")
                if contiguous_check:
                    _check_layout(*raw)
                if x.shape != y.shape:
                    raise AssertionError(f"different shapes are returned\ncupy: {x.shape}\nnumpy: {y.shape}")
            defined: list = [None] * len(pairs)
            if _mixes_signs(kwargs) and any(x.dtype in UNSIGNED for x, _ in pairs):
                defined = _where_defined(pair, args, kwargs)
            for (x, y), where in zip(pairs, defined):
                if where is None or x.dtype not in UNSIGNED:
                    check(x, y)
                elif where.any():
                    check(host.asnumpy(x)[where], np.asarray(y)[where])

        return run

    return decorator


def numpy_cupy_allclose(
    rtol: Any = 1e-7, atol: Any = 0, err_msg: str = "", verbose: bool = True, name: str = "xp",
    type_check: bool = True, accept_error: Accepted = False, sp_name: str | None = None,
    scipy_name: str | None = None, contiguous_check: bool = True, *, _check_sparse_format: bool = True,
) -> Decorator:  # fmt: skip
    """The results are close. A tolerance may be a dictionary by dtype, with ``"default"`` for the others."""
    tables = [tolerance for tolerance in (rtol, atol) if isinstance(tolerance, dict)]
    if any(not isinstance(key, type) and key != "default" for table in tables for key in table):
        raise TypeError("a tolerance is given by scalar types as numpy.float32, and 'default'")
    if tables and not type_check:
        raise TypeError("When `type_check` is `False`, `rtol` and `atol` must be supplied as float.")

    def tolerance(given: Any, dtype: np.dtype) -> float:
        if not isinstance(given, dict):
            return given
        found = given.get(dtype.type, given.get("default"))
        if found is None:
            raise TypeError(f"Can not find tolerance for {dtype.type}")
        return found

    def check(x: Any, y: Any) -> None:
        assertions.assert_allclose(
            x, y, tolerance(rtol, x.dtype), tolerance(atol, x.dtype), err_msg=err_msg, verbose=verbose
        )

    return _comparing(
        check, name, type_check, contiguous_check, accept_error, sp_name, scipy_name, _check_sparse_format
    )


def numpy_cupy_array_almost_equal(
    decimal: float = 6, err_msg: str = "", verbose: bool = True, name: str = "xp", type_check: bool = True,
    accept_error: Accepted = False, sp_name: str | None = None, scipy_name: str | None = None,
) -> Decorator:  # fmt: skip
    """The results agree to so many decimals."""

    def check(x: Any, y: Any) -> None:
        assertions.assert_array_almost_equal(x, y, decimal, err_msg, verbose)

    return _comparing(check, name, type_check, False, accept_error, sp_name, scipy_name)


def numpy_cupy_array_almost_equal_nulp(
    nulp: float = 1, name: str = "xp", type_check: bool = True, accept_error: Accepted = False,
    sp_name: str | None = None, scipy_name: str | None = None,
) -> Decorator:  # fmt: skip
    """The results are within so many units in the last place of each other."""

    def check(x: Any, y: Any) -> None:
        assertions.assert_array_almost_equal_nulp(x, y, nulp)

    return _comparing(check, name, type_check, False, accept_error, sp_name, scipy_name)


def numpy_cupy_array_max_ulp(
    maxulp: int = 1, dtype: Any = None, name: str = "xp", type_check: bool = True, accept_error: Accepted = False,
    sp_name: str | None = None, scipy_name: str | None = None,
) -> Decorator:  # fmt: skip
    """No element is further from NumPy's than so many units in the last place."""

    def check(x: Any, y: Any) -> None:
        assertions.assert_array_max_ulp(x, y, maxulp, dtype)

    return _comparing(check, name, type_check, False, accept_error, sp_name, scipy_name)


def numpy_cupy_array_equal(
    err_msg: str = "", verbose: bool = True, name: str = "xp", type_check: bool = True,
    accept_error: Accepted = False, sp_name: str | None = None, scipy_name: str | None = None,
    strides_check: bool = False,
) -> Decorator:  # fmt: skip
    """The results are equal; with ``strides_check`` in their strides, too."""

    def check(x: Any, y: Any) -> None:
        assertions.assert_array_equal(x, y, err_msg, verbose, strides_check=strides_check)

    return _comparing(check, name, type_check, False, accept_error, sp_name, scipy_name)


def numpy_cupy_array_list_equal(
    err_msg: str = "", verbose: bool = True, name: str = "xp", sp_name: str | None = None,
    scipy_name: str | None = None,
) -> Decorator:  # fmt: skip
    """Deprecated: ``numpy_cupy_array_equal`` compares lists as well."""
    message = "numpy_cupy_array_list_equal is deprecated. Use numpy_cupy_array_equal instead."
    warnings.warn(message, DeprecationWarning, stacklevel=2)

    def check(x: Any, y: Any) -> None:
        assertions.assert_array_equal(x, y, err_msg, verbose)

    return _comparing(check, name, False, False, False, sp_name, scipy_name)


def numpy_cupy_array_less(
    err_msg: str = "", verbose: bool = True, name: str = "xp", type_check: bool = True,
    accept_error: Accepted = False, sp_name: str | None = None, scipy_name: str | None = None,
) -> Decorator:  # fmt: skip
    """The device's result is less than NumPy's."""

    def check(x: Any, y: Any) -> None:
        assertions.assert_array_less(x, y, err_msg, verbose)

    return _comparing(check, name, type_check, False, accept_error, sp_name, scipy_name)


def numpy_cupy_equal(name: str = "xp", sp_name: str | None = None, scipy_name: str | None = None) -> Decorator:
    """The results, whatever they are, are equal."""

    def decorator(test: Callable) -> Callable:
        pair = _Pair(test, name, sp_name, scipy_name)

        @without(test, pair.names)
        def run(*args: Any, **kwargs: Any) -> None:
            results = pair.both(args, kwargs, False)
            if results is not None and results[0] != results[1]:
                raise AssertionError(f"Results are not equal:\ncupy: {results[0]}\nnumpy: {results[1]}")

        return run

    return decorator


def numpy_cupy_raises(
    name: str = "xp", sp_name: str | None = None, scipy_name: str | None = None, accept_error: Accepted = Exception
) -> Decorator:
    """Deprecated: both raise errors of the same kind."""
    warnings.warn("cupy.testing.numpy_cupy_raises is deprecated.", DeprecationWarning, stacklevel=2)

    def decorator(test: Callable) -> Callable:
        pair = _Pair(test, name, sp_name, scipy_name)

        @without(test, pair.names)
        def run(*args: Any, **kwargs: Any) -> None:
            if pair.both(args, kwargs, accept_error) is not None:
                raise AssertionError("Both cupy and numpy are expected to raise errors, but not")

        return run

    return decorator
