"""Custom kernels on the cupy backend: CuPy's own classes compile and launch them.

Of the client's compiler options only those that change the code are passed on: none may name a file of
this host or run another program. The declared functions of the kernel group, with the same arguments as
the cpu backend's. Part of the cupy backend, which is the only one to import it.
"""

from __future__ import annotations

import ctypes
import io
import re
from collections.abc import Callable
from typing import Any

import cupy
import numpy as np

from rgpu.server.addressed import followed

_OPTION = re.compile(
    r"(-D|-U|--define-macro=|--undefine-macro=|--?std=|-O\d|--?use_fast_math|--?ftz=|--?prec-|--?fmad=|-G$|-w$"
    r"|--?lineinfo|--generate-line-info|--device-debug|--?maxrregcount=|--?default-device|--restrict"
    r"|--device-as-default-execution-space|--extra-device-vectorization|--disable-warnings)"
)
_INCLUDE = re.compile(r"-I|--include-path=")
_DEFAULT_SHARED = 48 << 10  # what a launch may use without asking first


def options(given: Any) -> tuple[str, ...]:
    """The client's options that NVRTC gets. Folders of headers are the client's own and mean nothing here."""
    kept = [str(option) for option in given or () if not _INCLUDE.match(str(option))]
    for option in kept:
        if not _OPTION.match(option):
            raise ValueError(f"compiler option {option!r} is not passed on to a server")
    return tuple(kept)


class _Module:
    """A source; CuPy compiles it at its first use."""

    def __init__(
        self, code: str, given: tuple, names: tuple, backend: str, translate_cucomplex: bool, cooperative: bool
    ) -> None:
        if backend != "nvrtc":
            raise NotImplementedError(f"backend={backend!r} would run a program on the server; use 'nvrtc'")
        self.cupy = cupy.RawModule(
            code=code, options=options(given), backend=backend, name_expressions=names or None,
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
    loop_prep: str, after_loop: str, given: tuple,
) -> Any:  # fmt: skip
    rest = {"loop_prep": loop_prep, "after_loop": after_loop, "options": options(given)}
    rest = {key: value for key, value in rest.items() if value}
    return cupy.ElementwiseKernel(in_params, out_params, operation, name, reduce_dims, preamble, **rest)


def _reduction(
    backend: Any, in_params: str, out_params: str, map_expr: str, reduce_expr: str, post_map_expr: str, identity: str,
    name: str, reduce_type: str | None, preamble: str, given: tuple,
) -> Any:  # fmt: skip
    texts = (in_params, out_params, map_expr, reduce_expr, post_map_expr, identity)
    return cupy.ReductionKernel(*texts, name, reduce_type, True, preamble, options(given))


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


def _followed(table: Any, places: list) -> Any:
    """An array of pointers with real addresses in place of the client's. Waits for it, and only for such arrays."""
    if not places or table.dtype.char not in "lLqQ":
        return table
    given = table.get()
    real = followed(given, places)
    return table if real is given else cupy.asarray(real)


def _launch(
    backend: Any, module: _Module, name: str, grid: tuple, block: tuple, arguments: tuple, by_value: tuple, shared: int,
    cooperative: bool, addressed: tuple = ((), ()),
) -> None:  # fmt: skip
    spans, arrays = addressed
    places = [(*span, x.data.ptr) for span, x in zip(spans, arrays)]
    arguments = tuple(x if value else _followed(x, places) for x, value in zip(arguments, by_value))
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
