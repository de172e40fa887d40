"""``rawkernel``: the decorator, one translation for each combination of argument types, and the launch.

Arrays travel as a pointer with their extents and strides; everything else by value. A launch waits for
nothing: the compiler's errors, being the server's, come at the next wait.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rgpu.client.remote import Remote
from rgpu.functions.kernels.jit.translate import c_function, translate
from rgpu.functions.kernels.jit.types import Array, scalar_dtype
from rgpu.functions.kernels.raw import RawKernel


class _JitRawKernel:
    """A Python function as a kernel: ``kernel(grid, block, args)`` or ``kernel[grid, block](*args)``."""

    __module__ = "cupyx.jit._interface"

    def __init__(self, function: Callable[..., Any], mode: str, device: bool) -> None:
        self.function, self.mode, self.device = function, mode, device
        self.__name__, self.__doc__ = function.__name__, function.__doc__
        self._translated: dict[tuple, tuple[str, RawKernel]] = {}

    def __call__(self, grid: Any, block: Any, args: Any, shared_mem: int = 0, stream: Any = None) -> None:
        if self.device:
            raise TypeError(f"{self.__name__} is a device function: only kernels call it")
        _, kernel = self._for(tuple(self._type(x) for x in args))
        kernel(grid, block, self._flat(args), shared_mem=shared_mem, stream=stream)

    def __getitem__(self, grid_and_block: Any) -> Callable[..., None]:
        grid, block = (x if isinstance(x, tuple) else (x,) for x in grid_and_block)

        def launch(*args: Any, **kwargs: Any) -> None:
            self(grid, block, args, **kwargs)

        return launch

    @property
    def cached_codes(self) -> dict[tuple, str]:
        """The C++ text of each combination of argument types so far."""
        return {types: code for types, (code, _) in self._translated.items()}

    @property
    def cached_code(self) -> str | None:
        if len(self._translated) > 1:
            raise ValueError("the kernel was translated for several types: see `cached_codes`")
        return next(iter(self.cached_codes.values()), None)

    def _type(self, x: Any) -> Any:
        if isinstance(x, Remote):
            return Array(x.dtype, x.ndim)
        if not np.isscalar(x):
            raise TypeError(f"{type(x)} is not supported for RawKernel")
        return scalar_dtype(self.mode, x)

    def _for(self, types: tuple) -> tuple[str, RawKernel]:
        found = self._translated.get(types)
        if found is None:
            code, backend, cooperative = translate(self.function, self.mode, types)
            name = c_function(self.function)
            kernel = RawKernel(code, name, backend=backend, enable_cooperative_groups=cooperative)
            found = self._translated[types] = code, kernel
        return found

    def _flat(self, args: Any) -> tuple:
        flat: list[Any] = []
        for x in args:
            if isinstance(x, Remote):
                flat += [x, *(np.int64(n) for n in x.shape), *(np.int64(n) for n in x.strides)]
            else:
                flat.append(self._type(x).type(x))
        return tuple(flat)


def rawkernel(*, mode: str = "cuda", device: bool = False) -> Callable[[Callable[..., Any]], _JitRawKernel]:
    """Make a kernel of a Python function, or with ``device=True`` a function that kernels call."""
    if mode not in ("cuda", "numpy"):
        raise ValueError(f"mode is 'cuda' or 'numpy', not {mode!r}")

    def decorate(function: Callable[..., Any]) -> _JitRawKernel:
        return _JitRawKernel(function, mode, device)

    return decorate
