"""Custom kernels on the cupy backend: CuPy's own kernel classes, compiled by NVRTC in this worker.

Of the client's compiler options only those that change the code are passed on: none may name a file of
this host or run another program. Part of the cupy backend, which is the only one to import it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import cupy

_OPTION = re.compile(
    r"(-D|-U|--define-macro=|--undefine-macro=|--?std=|-O\d|--?use_fast_math|--?ftz=|--?prec-|--?fmad=|-G$|-w$"
    r"|--?lineinfo|--generate-line-info|--device-debug|--?maxrregcount=|--?default-device|--restrict"
    r"|--device-as-default-execution-space|--extra-device-vectorization|--disable-warnings)"
)
_INCLUDE = re.compile(r"-I|--include-path=")


def options(given: Any) -> tuple[str, ...]:
    """The client's options that NVRTC gets. Folders of headers are the client's own and mean nothing here."""
    kept = [str(option) for option in given or () if not _INCLUDE.match(str(option))]
    for option in kept:
        if not _OPTION.match(option):
            raise ValueError(f"compiler option {option!r} is not passed on to a server")
    return tuple(kept)


def _elementwise(
    in_params: str, out_params: str, operation: str, name: str, reduce_dims: bool, preamble: str,
    loop_prep: str, after_loop: str, given: Any,
) -> Any:  # fmt: skip
    return cupy.ElementwiseKernel(
        in_params, out_params, operation, name, reduce_dims, preamble,
        loop_prep=loop_prep, after_loop=after_loop, options=options(given),
    )  # fmt: skip


def _reduction(
    in_params: str, out_params: str, map_expr: str, reduce_expr: str, post_map_expr: str, identity: str,
    name: str, reduce_type: str | None, preamble: str, given: Any,
) -> Any:  # fmt: skip
    return cupy.ReductionKernel(
        in_params, out_params, map_expr, reduce_expr, post_map_expr, identity, name, reduce_type,
        preamble=preamble, options=options(given),
    )  # fmt: skip


def _made(outputs: Any) -> tuple[list, tuple]:
    """Output arrays, and those among them that are new: a new one is named by its dtype and shape."""
    arrays = [x if isinstance(x, cupy.ndarray) else cupy.empty(tuple(x[1]), x[0]) for x in outputs]
    return arrays, tuple(a for a, x in zip(arrays, outputs) if a is not x)


def _launch_elementwise(kernel: Any, inputs: tuple, outputs: tuple, size: int) -> tuple:
    arrays, made = _made(outputs)
    kernel(*inputs, *arrays, **({} if size == -1 else {"size": size}))
    return made


def _launch_reduction(kernel: Any, inputs: tuple, outputs: tuple, axes: tuple, keepdims: bool) -> tuple:
    arrays, made = _made(outputs)
    kernel(*inputs, *arrays, axis=tuple(axes), keepdims=keepdims)
    return made


def _module(
    code: str, given: Any, names: Any, backend: str, translate_cucomplex: bool, cooperative: bool
) -> Any:
    if backend != "nvrtc":
        raise NotImplementedError(f"backend={backend!r} would run a program on the server; use 'nvrtc'")
    return cupy.RawModule(
        code=code,
        options=options(given),
        name_expressions=tuple(names) or None,
        translate_cucomplex=translate_cucomplex,
        enable_cooperative_groups=cooperative,
    )


def _launch(
    module: Any, name: str, grid: tuple, block: tuple, arguments: tuple, by_value: tuple, shared: int, _: bool
) -> None:
    module.get_function(name)(tuple(grid), tuple(block), tuple(arguments), shared_mem=shared)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "kernel.elementwise": _elementwise,
    "kernel.elementwise.launch": _launch_elementwise,
    "kernel.reduction": _reduction,
    "kernel.reduction.launch": _launch_reduction,
    "kernel.module": _module,
    "kernel.module.load": lambda module: module.compile(),
    "kernel.module.function": lambda module, name: dict(module.get_function(name).attributes),
    "kernel.launch": _launch,
}
