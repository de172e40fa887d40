"""Python callables over whole arrays: ``vectorize`` and ``pad`` with a function.

The callable runs here, on the client, with device arrays; a client's Python never runs on a
server. A callable that must see values one by one (an ``if`` on its argument) gets host copies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rgpu.client.remote import Remote
from rgpu.functions import creation, dispatch, shapes, signatures


class vectorize:  # noqa: N801 - CuPy's name
    """``vectorize(f)(*arrays)``: f element by element, written with operators and CuPy's functions."""

    __module__ = "cupy"

    def __init__(
        self, pyfunc: Callable[..., Any], otypes: Any = None, doc: str | None = None, excluded: Any = None,
        cache: bool = False, signature: Any = None,
    ) -> None:  # fmt: skip
        if excluded is not None:
            raise NotImplementedError("cupy.vectorize does not support `excluded` option currently.")
        if signature is not None:
            raise NotImplementedError("cupy.vectorize does not support `signature` option currently.")
        self.pyfunc, self.excluded, self.cache, self.signature = pyfunc, excluded, cache, signature
        self.__doc__ = doc or pyfunc.__doc__
        self.otypes = None if otypes is None else "".join(np.dtype(t).char for t in otypes)

    def __call__(self, *args: Any) -> Any:
        if self.otypes is not None:
            raise NotImplementedError("cupy.vectorize does not support `otypes` option currently.")
        shape = np.broadcast_shapes(*[x._meta.shape for x in args if isinstance(x, Remote)])
        try:
            result = self.pyfunc(*args)
        except ValueError as error:
            if "truth value" not in str(error):
                raise
            host = [x.get() if isinstance(x, Remote) else x for x in args]  # type: ignore[attr-defined]
            result = np.asarray(np.frompyfunc(self.pyfunc, len(args), 1)(*host).tolist())
        return tuple(_whole(x, shape) for x in result) if isinstance(result, tuple) else _whole(result, shape)


def _whole(x: Any, shape: tuple) -> Any:
    if isinstance(x, Remote) and x._meta.shape == shape:
        return x
    return shapes.NAMES["broadcast_to"](creation.array(x), shape).copy()


_bind = signatures.binder("pad")


def pad(array: Any, pad_width: Any, mode: Any = "constant", **kwargs: Any) -> Any:
    """CuPy's ``pad``; a function as ``mode`` is called with every padded line, to be changed in place."""
    if not callable(mode):
        (array, pad_width, *rest), kwargs = _bind((array, pad_width, mode), kwargs)
        return dispatch.call("pad", array, pad_width, *rest, **kwargs)
    widths = np.broadcast_to(np.asarray(pad_width), (array.ndim, 2)).tolist()
    padded = dispatch.call("pad", array, widths)
    for axis in range(array.ndim):
        lines = shapes.NAMES["moveaxis"](padded, axis, -1)
        for index in np.ndindex(lines.shape[:-1]):
            mode(lines[(*index, Ellipsis)], tuple(widths[axis]), axis, kwargs)
    return padded


NAMES: dict[str, Any] = {"vectorize": vectorize, "pad": pad}
