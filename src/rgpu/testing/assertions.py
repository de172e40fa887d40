"""NumPy's assertions on device arrays."""

from __future__ import annotations

import contextlib
import functools
import inspect
import unittest
import warnings
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np

from rgpu.client.remote import Remote
from rgpu.functions import host


def _host(x: Any) -> Any:
    """Arguments of an assertion: device arrays on the host, containers item by item."""
    if isinstance(x, Remote) or hasattr(type(x), "__cupy_override_elementwise_kernel__"):  # of one device, of several
        return host.asnumpy(x)
    if isinstance(x, list | tuple):
        return type(x)(_host(item) for item in x)
    return x


def _assertion(name: str) -> Any:
    compare = getattr(np.testing, name)

    @functools.wraps(compare)
    def check(*args: Any, strides_check: bool = False, **kwargs: Any) -> None:
        compare(*[_host(x) for x in args], **kwargs)
        if strides_check and args[0].strides != args[1].strides:
            raise AssertionError(f"strides differ: {args[0].strides} and {args[1].strides}")

    return check


assert_allclose = _assertion("assert_allclose")
assert_array_almost_equal = _assertion("assert_array_almost_equal")
assert_array_almost_equal_nulp = _assertion("assert_array_almost_equal_nulp")
assert_array_equal = _assertion("assert_array_equal")
assert_array_less = _assertion("assert_array_less")
assert_array_max_ulp = _assertion("assert_array_max_ulp")


def assert_array_list_equal(xlist: Any, ylist: Any, err_msg: str = "", verbose: bool = True) -> None:
    """Compare two sequences of arrays, one by one."""
    if len(xlist) != len(ylist):
        raise AssertionError(f"List size is different: {len(xlist)} != {len(ylist)}")
    for x, y in zip(xlist, ylist):
        np.testing.assert_array_equal(_host(x), _host(y), err_msg=err_msg, verbose=verbose)


@contextlib.contextmanager
def assert_warns(expected: type[Warning]) -> Iterator[None]:
    """AssertionError unless the block warns so."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        yield
    if not any(isinstance(warning.message, expected) for warning in seen):
        raise AssertionError(f"{expected.__name__} not triggered")


@contextlib.contextmanager
def assert_function_is_called(*args: Any, times_called: int = 1, **kwargs: Any) -> Iterator[None]:
    """AssertionError unless the block calls what ``mock.patch(*args, **kwargs)`` replaces so often."""
    with mock.patch(*args, **kwargs) as replaced:
        yield
    if replaced.call_count != times_called:
        raise AssertionError(f"called {replaced.call_count} times, not {times_called}")


AssertFunctionIsCalled = assert_function_is_called


class _NumpyAlias(unittest.TestCase):
    """Of a function that is NumPy's under the same name: ``func`` names it."""

    func: Any = None

    @property
    def cupy_func(self) -> Any:
        import rgpu

        return getattr(rgpu, self.func)

    @property
    def numpy_func(self) -> Any:
        return getattr(np, self.func)


class NumpyAliasBasicTestBase(_NumpyAlias):
    """Its signature is NumPy's, its documentation is its own."""

    def test_argspec(self) -> None:
        self.assertEqual(inspect.signature(self.cupy_func), inspect.signature(self.numpy_func))

    def test_docstring(self) -> None:
        self.assertTrue(self.cupy_func.__doc__)
        self.assertIsNot(self.cupy_func.__doc__, self.numpy_func.__doc__)


class NumpyAliasValuesTestBase(_NumpyAlias):
    """It gives what NumPy's gives for ``args``."""

    args: tuple = ()

    def test_values(self) -> None:
        self.assertEqual(self.cupy_func(*self.args), self.numpy_func(*self.args))
