"""``cupy.vectorize``: a Python function of numbers, translated to a device function and run as one kernel.

Where the server runs no client code, the function runs on this host with the values brought here: slower, and
the same results. A client's Python never runs on a server.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rgpu.client.remote import Remote
from rgpu.functions import creation
from rgpu.functions.kernels import launch
from rgpu.functions.kernels.jit.translate import translate_device
from rgpu.functions.kernels.jit.types import Struct
from rgpu.functions.kernels.loops import ElementwiseKernel


class vectorize:  # noqa: N801 - CuPy's name
    """``vectorize(f)(*arrays)``: f element by element, broadcast as NumPy broadcasts.

    ``f`` is translated once for each combination of dtypes, when it is called: ``if``, ``while``, ``for`` over a
    ``range``, local variables, NumPy's element-wise functions, tuples as results. Its source must be readable.
    NotImplementedError for ``otypes``, ``excluded`` and ``signature``, as in CuPy.
    """

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
        self._kernels: dict[tuple, tuple[ElementwiseKernel, list]] = {}

    def __call__(self, *args: Any) -> Any:
        if self.otypes is not None:
            raise NotImplementedError("cupy.vectorize does not support `otypes` option currently.")
        types = tuple([x.dtype if hasattr(x, "dtype") else np.dtype(type(x)) for x in args])
        found = self._kernels.get(types)
        if found is None:
            found = self._kernels[types] = self._made(types)
        kernel, results = found
        return kernel(*args) if launch.allowed() else self._here(args, results)

    def _made(self, types: tuple) -> tuple[ElementwiseKernel, list]:
        device = translate_device(self.pyfunc, types)
        call = f"{device.name}({', '.join(f'in{i}' for i in range(len(types)))})"
        if isinstance(device.result, Struct):
            results = list(device.result.fields.values())
            stores = "".join(f" out{i} = rgpu_all._{i};" for i in range(len(results)))
            body = f"const {device.result.c} rgpu_all = {call};{stores}"
        elif isinstance(device.result, np.dtype):
            results, body = [device.result], f"out0 = {call};"
        else:
            raise TypeError(f"Invalid return type: {device.result}")
        ins, outs = (
            ", ".join(f"{dtype.name} {side}{i}" for i, dtype in enumerate(dtypes))
            for side, dtypes in (("in", types), ("out", results))
        )
        return ElementwiseKernel(ins, outs, body, "cupy_vectorize", preamble=device.code), results

    def _here(self, args: tuple, results: list) -> Any:
        """One call of the function for each element, on this host."""
        host = [x.get() if isinstance(x, Remote) else x for x in args]  # type: ignore[attr-defined]
        found = np.frompyfunc(self.pyfunc, len(args), len(results))(*host)
        arrays = found if isinstance(found, tuple) else (found,)
        made = tuple(creation.array(np.asarray(x).astype(dtype)) for x, dtype in zip(arrays, results))
        return made if len(made) > 1 else made[0]
