"""``cupy.testing`` for programs: NumPy's assertions on device arrays, and arrays of a given shape to test with.

The decorators that CuPy's own suite is written with (``for_all_dtypes``, ``numpy_cupy_allclose``, ...) are that
suite's; here they refuse by name.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from rgpu import surface
from rgpu.client.remote import Remote
from rgpu.functions import creation, host

_ASSERTIONS = (
    "assert_allclose assert_array_almost_equal assert_array_almost_equal_nulp assert_array_equal assert_array_less "
    "assert_array_max_ulp"
).split()


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


globals().update({name: _assertion(name) for name in _ASSERTIONS})


def assert_array_list_equal(xlist: Any, ylist: Any, err_msg: str = "", verbose: bool = True) -> None:
    """Compare two sequences of arrays, one by one."""
    if len(xlist) != len(ylist):
        raise AssertionError(f"List size is different: {len(xlist)} != {len(ylist)}")
    for x, y in zip(xlist, ylist):
        np.testing.assert_array_equal(_host(x), _host(y), err_msg=err_msg, verbose=verbose)


def _on(xp: Any, host: np.ndarray) -> Any:
    return host if xp is np else creation.array(host)


def shaped_arange(shape: Any, xp: Any = None, dtype: Any = np.float32, order: str = "C") -> Any:
    """1, 2, 3, ... in the given shape (booleans: alternating, complex: with an imaginary part)."""
    dtype = np.dtype(dtype)
    values = np.arange(1, int(np.prod(shape)) + 1, 1)
    if dtype.kind == "b":
        values = values % 2 == 0
    elif dtype.kind == "c":
        values = values + values * 1j
    return _on(xp, np.array(values.astype(dtype).reshape(shape), order=order))  # type: ignore[call-overload]


def shaped_reverse_arange(shape: Any, xp: Any = None, dtype: Any = np.float32) -> Any:
    """..., 3, 2, 1 in the given shape."""
    dtype = np.dtype(dtype)
    values = np.arange(int(np.prod(shape)), 0, -1)
    if dtype.kind == "b":
        values = values % 2 == 0
    elif dtype.kind == "c":
        values = values + values * 1j
    return _on(xp, values.astype(dtype).reshape(shape))


def shaped_linspace(start: Any, stop: Any, shape: Any, xp: Any = None, dtype: Any = np.float32) -> Any:
    """Evenly spaced values in the given shape."""
    return _on(xp, np.linspace(start, stop, int(np.prod(shape))).reshape(shape).astype(dtype))


def shaped_random(
    shape: Any, xp: Any = None, dtype: Any = np.float32, scale: float = 10, seed: int = 0, order: str = "C"
) -> Any:
    """Random values below ``scale`` in the given shape; the same for the same seed."""
    numbers, dtype = np.random.RandomState(seed), np.dtype(dtype)
    values = numbers.rand(*shape) * scale
    if dtype.kind == "b":
        values = numbers.randint(2, size=shape)
    elif dtype.kind == "c":
        values = values + 1j * (numbers.rand(*shape) * scale)
    return _on(xp, np.array(values, dtype=dtype, order=order))  # type: ignore[call-overload]


__getattr__, __dir__ = surface.face(__name__)
