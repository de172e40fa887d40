"""Calls of the declared sparse operations, with matrices taken apart and put together again.

Where the result is dense its layout is learned by signature; where it is a matrix the number of its
elements depends on the data, and the client waits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rgpu.client import pool
from rgpu.client.remote import Remote
from rgpu.functions import creation, dispatch
from rgpu.wire.functions import BY_NAME

_PREFIX = "cupyx.scipy.sparse."
classes: dict[str, Any] = {}  # 'csr_matrix' -> class, filled by the module of the classes


def plain(x: Any) -> Any:
    """Matrices as tagged tuples, at any depth; host arrays as device arrays."""
    x = getattr(x, "_whole", x)  # an operator that is a matrix
    parts = getattr(x, "_parts", None)
    if parts is not None:
        return parts()
    if isinstance(x, tuple | list):
        return type(x)(plain(item) for item in x)
    if isinstance(x, np.ndarray):
        return creation.array(x)
    if callable(x) and not isinstance(x, type | np.dtype):
        raise NotImplementedError("sparse functions with a Python callable are not available in rgpu")
    return x


def restored(x: Any) -> Any:
    """Tagged tuples as matrices, at any depth."""
    if isinstance(x, tuple) and x and isinstance(x[0], str) and x[0].startswith("sparse:"):
        return classes[x[0][7:]]._of(x[2:], x[1])
    if isinstance(x, tuple):
        return tuple(restored(item) for item in x)
    return x


def ask(name: str, *args: Any, **kwargs: Any) -> Any:
    """An operation whose result only the worker knows."""
    args, kwargs = plain(args), {key: plain(value) for key, value in kwargs.items()}
    with _device_of(args):
        encoded = dispatch._Arguments(pool.current_stream(), args, kwargs, True)
        return restored(dispatch.ask(BY_NAME[_PREFIX + name], encoded))


def dense(name: str, *args: Any, **kwargs: Any) -> Any:
    """An operation with a dense result, whose layout follows from the signature."""
    args, kwargs = plain(args), {key: plain(value) for key, value in kwargs.items()}
    with _device_of(args):
        return dispatch.call_learned(_PREFIX + name, *args, **kwargs)


def _device_of(x: Any) -> Any:
    """The device of the first array in the arguments, else the current one."""
    return _first_device(x) or pool.current()


def _first_device(x: Any) -> Any:
    if isinstance(x, Remote):
        return x._stream.device
    if isinstance(x, tuple | list):
        return next((found for item in x if (found := _first_device(item)) is not None), None)
    return None
