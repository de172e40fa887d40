"""Custom kernels on the cupy backend: CuPy's own classes compile and launch them.

The declared functions of the kernel group, with the same arguments as the cpu backend's. Part of the cupy
backend, which is the only one to import it.
"""

from __future__ import annotations

import ctypes
import io
from collections.abc import Callable
from typing import Any

import cupy
import numpy as np

_DEFAULT_SHARED = 48 << 10  # what a launch may use without asking first


class _Module:
    """A source; CuPy compiles it at its first use."""

    def __init__(
        self, code: str, options: tuple, names: tuple, backend: str, translate_cucomplex: bool, cooperative: bool
    ) -> None:
        self.cupy = cupy.RawModule(
            code=code, options=tuple(options), backend=backend, name_expressions=names or None,
            translate_cucomplex=translate_cucomplex, enable_cooperative_groups=cooperative,
        )  # fmt: skip
        self.kernels: dict[str, Any] = {}

    def kernel(self, name: str) -> Any:
        found = self.kernels.get(name)
        if found is None:
            found = self.kernels[name] = self.cupy.get_function(name)
        return found


def _elementwise(
    backend: Any, in_params: str, out_params: str, operation: str, name: str, reduce_dims: bool, preamble: str,
    loop_prep: str, after_loop: str, options: tuple,
) -> Any:  # fmt: skip
    given = {"loop_prep": loop_prep, "after_loop": after_loop, "options": tuple(options)}
    given = {key: value for key, value in given.items() if value}
    return cupy.ElementwiseKernel(in_params, out_params, operation, name, reduce_dims, preamble, **given)


def _reduction(
    backend: Any, in_params: str, out_params: str, map_expr: str, reduce_expr: str, post_map_expr: str, identity: str,
    name: str, reduce_type: str | None, preamble: str, options: tuple,
) -> Any:  # fmt: skip
    texts = (in_params, out_params, map_expr, reduce_expr, post_map_expr, identity)
    return cupy.ReductionKernel(*texts, name, reduce_type, True, preamble, tuple(options))


def _module(backend: Any, *content: Any) -> _Module:
    return _Module(*content)


def _made(outputs: Any) -> tuple[list, tuple]:
    """Output arrays, and those among them that are new: a new one is named by its dtype and shape."""
    arrays = [x if isinstance(x, cupy.ndarray) else cupy.empty(x[1], x[0]) for x in outputs]
    return arrays, tuple(a for a, x in zip(arrays, outputs) if a is not x)


def _launch_elementwise(backend: Any, kernel: Any, inputs: tuple, outputs: tuple, size: int) -> tuple:
    arrays, made = _made(outputs)
    kernel(*inputs, *arrays, **({} if size < 0 else {"size": size}))
    return made


def _launch_reduction(backend: Any, kernel: Any, inputs: tuple, outputs: tuple, axes: tuple, keepdims: bool) -> tuple:
    arrays, made = _made(outputs)
    kernel(*inputs, *arrays, axis=axes, keepdims=keepdims)
    return made


def _load(backend: Any, module: _Module, remarks: bool) -> str:
    log = io.StringIO()
    module.cupy.compile(log_stream=log if remarks else None)
    return log.getvalue()


def _function(backend: Any, module: _Module, name: str) -> dict:
    return dict(module.kernel(name).attributes)


def _symbol(backend: Any, module: _Module, name: str) -> Any:
    pointer = module.cupy.get_global(name)
    # CuPy asks the driver for the address and drops the size that comes with it.
    address, size = ctypes.c_uint64(), ctypes.c_size_t()
    driver = ctypes.CDLL("libcuda.so.1")
    compiled = ctypes.c_void_p(module.cupy.module.ptr)
    driver.cuModuleGetGlobal_v2(ctypes.byref(address), ctypes.byref(size), compiled, name.encode())
    return cupy.ndarray((size.value,), np.uint8, memptr=pointer)


def _launch(
    backend: Any, module: _Module, name: str, grid: tuple, block: tuple, arguments: tuple, by_value: tuple, shared: int,
    cooperative: bool,
) -> None:  # fmt: skip
    kernel = module.kernel(name)
    if shared > _DEFAULT_SHARED and kernel.max_dynamic_shared_size_bytes < shared:
        kernel.max_dynamic_shared_size_bytes = shared
    kernel(grid, block, arguments, shared_mem=shared)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "kernel.elementwise": _elementwise, "kernel.elementwise.launch": _launch_elementwise,
    "kernel.reduction": _reduction, "kernel.reduction.launch": _launch_reduction,
    "kernel.module": _module, "kernel.module.load": _load, "kernel.module.function": _function,
    "kernel.module.symbol": _symbol, "kernel.launch": _launch,
}  # fmt: skip
