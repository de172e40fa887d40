"""``RawKernel`` and ``RawModule``: CUDA C++ as it is, launched by grid and block.

A launch never waits: its errors, those of compiling too, come at the next wait. What only the compiler knows
(``get_function``, ``attributes``, ``compile``) is asked. Arrays are pointers to their first element.
"""

from __future__ import annotations

import functools
import os
import re
import warnings
from typing import Any

import numpy as np

from rgpu.client import pool
from rgpu.client.meta import fresh
from rgpu.client.remote import Remote
from rgpu.cuda import compiler as compiler  # its exception is what a failing compilation becomes
from rgpu.functions import dispatch, views
from rgpu.functions.kernels import headers, launch
from rgpu.wire.functions import BY_NAME

_ATTRIBUTES = (
    "max_threads_per_block shared_size_bytes const_size_bytes local_size_bytes num_regs ptx_version "
    "binary_version cache_mode_ca max_dynamic_shared_size_bytes preferred_shared_memory_carveout"
).split()
_STATE = (
    "code name options backend translate_cucomplex enable_cooperative_groups jitify name_expressions file_path"
).split()

#: a parameter that points to pointers, or an element of an array taken for one
_POINTERS = re.compile(r"\*\s*(?:const\b\s*|__restrict__\s*)*\*|reinterpret_cast\s*<[^<>]*\*\s*>\s*\(\s*\w+\s*\[")


def _jitify_warning(jitify: Any) -> None:
    if jitify is not None:
        text = (
            "jitify=True is deprecated" if jitify else "The jitify argument is deprecated. Avoid passing jitify=False"
        )
        warnings.warn(text, DeprecationWarning, stacklevel=3)


def _ask(stream: Any, name: str, *args: Any) -> Any:
    with stream.device:
        return dispatch.ask(BY_NAME[name], dispatch._Arguments(stream, args, {}, True))


class _Source:
    """What a kernel and a module have in common: a text, and its object in each session."""

    code: str | None
    file_path: str | None
    options: tuple
    backend: str
    translate_cucomplex: bool
    enable_cooperative_groups: bool
    name_expressions: tuple | None

    def _object(self, stream: Any, anew: bool = False) -> launch.Kernel:
        if self.code is None:
            raise _driver_error(
                801, f"{self.file_path}: a binary of a file is not sent to a server; give the source instead"
            )
        code = headers.inlined(self.code, self.options)
        content = (code, tuple(self.options), tuple(self.name_expressions or ()), self.backend)
        flags = (bool(self.translate_cucomplex), bool(self.enable_cooperative_groups))
        return launch.kernel(stream, "kernel.module", *content, *flags, anew=anew)

    def __reduce__(self) -> Any:
        """By content: whoever unpickles it compiles it again."""
        return _restored, (
            isinstance(self, RawKernel),
            {key: getattr(self, key) for key in _STATE if hasattr(self, key)},
        )

    def compile(self, log_stream: Any = None) -> None:
        """Compile now, and wait for it; the compiler's remarks go to ``log_stream``."""
        stream = pool.current_stream()
        log = _ask(stream, "kernel.module.load", self._object(stream), log_stream is not None)
        if log:
            log_stream.write(log)


class RawKernel(_Source):
    """One kernel of a CUDA source."""

    __module__ = "cupy"

    def __init__(
        self, code: str, name: str, options: tuple = (), backend: str = "nvrtc",
        translate_cucomplex: bool = False, *, enable_cooperative_groups: bool = False, jitify: Any = None,
    ) -> None:  # fmt: skip
        if not isinstance(options, tuple):
            raise TypeError(f"Argument 'options' has incorrect type (expected tuple, got {type(options).__name__})")
        _jitify_warning(jitify)
        self.code, self.name, self.options, self.backend = code, name, options, backend
        self.translate_cucomplex, self.jitify = translate_cucomplex, jitify
        self.enable_cooperative_groups = enable_cooperative_groups
        self.file_path, self.name_expressions = None, None
        self.__name__ = name

    def __call__(self, grid: tuple, block: tuple, args: Any, *, shared_mem: int = 0, stream: Any = None) -> None:
        """Launch on the current stream, or on ``stream``."""
        if stream is not None:
            with stream:
                return self._launch(grid, block, args, shared_mem)
        return self._launch(grid, block, args, shared_mem)

    def _launch(self, grid: tuple, block: tuple, args: Any, shared_mem: int) -> None:
        stream = pool.current_stream()
        arguments = [_argument(x, stream) for x in args]
        extents = [tuple(max(1, int(n)) for n in (*size, 1, 1)[:3]) for size in (grid, block)]
        by_value = tuple(not isinstance(x, Remote) for x in arguments)
        encoded = dispatch._Arguments(
            stream,
            (self._object(stream), self.name, *extents, tuple(arguments), by_value, int(shared_mem),
             bool(self.enable_cooperative_groups), *_tables(self, arguments, stream)),
            {},
            True,
        )  # fmt: skip
        dispatch.run(BY_NAME["kernel.launch"], encoded)

    @property
    def kernel(self) -> Any:
        """It as the driver's interface shows it (``cupy.cuda.Function``)."""
        from rgpu.cuda.function import Function

        return Function(self)

    @property
    def attributes(self) -> dict[str, int]:
        """What the compiler says of the kernel. Waits."""
        stream = pool.current_stream()
        return _ask(stream, "kernel.module.function", self._object(stream), self.name)


def _attribute(name: str) -> Any:
    def get(self: RawKernel) -> int:
        return self.__dict__.get(f"_{name}", None) or self.attributes[name]

    def set_(self: RawKernel, value: int) -> None:
        self.__dict__[f"_{name}"] = int(value)

    settable = name in ("max_dynamic_shared_size_bytes", "preferred_shared_memory_carveout")
    return property(get, set_ if settable else None, doc=f"The kernel's {name.replace('_', ' ')}.")


for _name in _ATTRIBUTES:
    setattr(RawKernel, _name, _attribute(_name))


def _argument(x: Any, stream: Any) -> Any:
    """An array for a pointer; a NumPy scalar or array of one element for a value."""
    if isinstance(x, Remote):
        if x._stream is not stream:
            raise ValueError(f"an array on {x._stream.name} is an argument of a kernel on {stream.name}: copy it first")
        return x
    if x is None:
        return np.int64(0)
    if isinstance(x, bool):
        return np.bool_(x)
    if isinstance(x, int):
        return _integer(x)
    if isinstance(x, float):
        return np.float64(x)
    if isinstance(x, complex):
        return np.complex128(x)
    if isinstance(x, np.generic):
        return x
    if isinstance(x, np.ndarray):
        if x.size != 1:
            raise TypeError(
                f"You are trying to pass a numpy.ndarray of shape {x.shape} as a kernel parameter. Only "
                "numpy.ndarrays of size one can be passed by value. If you meant to pass a pointer to "
                "__global__ memory, you need to pass a cupy.ndarray instead."
            )
        return x
    if hasattr(x, "mem") and hasattr(x, "ptr"):  # a MemoryPointer
        return _integer(x.ptr)
    get = getattr(x, "__cupy_get_ndarray__", None)
    if get is not None:
        return get()
    raise TypeError(f"Unsupported type {type(x)}")


@functools.lru_cache(maxsize=256)
def _follows_pointers(code: str) -> bool:
    return _POINTERS.search(code) is not None


def _tables(source: _Source, arguments: list, stream: Any) -> tuple:
    """What the worker needs to know of addresses, where an argument may be an array of them."""
    from rgpu.cuda import addresses

    if not any(isinstance(x, Remote) and x._metadata.dtype.char in "lLqQ" for x in arguments):
        return ()
    if source.code is None or not _follows_pointers(headers.inlined(source.code, source.options)):
        return ()
    spans, arrays = addresses.living(stream)
    return ((spans, arrays),) if spans else ()


def _integer(x: int) -> Any:
    """A number; or, where it is the address of an array of ours, that array's memory."""
    from rgpu.cuda import addresses

    if addresses.is_device(x):
        root, offset = addresses.find(x)
        if root._offset == offset and root._root is None:
            return root
        return views.make(root, fresh((max(root._metadata.nbytes - offset, 0),), np.dtype(np.uint8)), offset)
    return np.int64(x) if -(2**63) <= x < 2**63 else np.uint64(x)


class RawModule(_Source):
    """A CUDA source with several kernels, templates and global variables."""

    __module__ = "cupy"

    def __init__(
        self, code: str | None = None, *, path: str | None = None, options: tuple = (),
        backend: str = "nvrtc", translate_cucomplex: bool = False,
        enable_cooperative_groups: bool = False, name_expressions: Any = None,
        jitify: Any = None,
    ) -> None:  # fmt: skip
        if (code is None) == (path is None):
            raise TypeError("Exactly one of `code` and `path` keyword arguments must be given.")
        if name_expressions is not None:
            if code is None:
                raise ValueError("need CUDA C++ code for the requested kernels")
            if backend != "nvrtc":
                raise ValueError("only nvrtc supports retrieving the mangled names for the given name expressions")
        if jitify and (code is None or backend != "nvrtc"):
            raise ValueError(
                "Jitify does not support precompiled objects" if code is None else "Jitify only supports NVRTC"
            )
        _jitify_warning(jitify)
        self.code, self.file_path, self.jitify = code, path, jitify
        self.name_expressions = None if name_expressions is None else tuple(name_expressions)
        self.enable_cooperative_groups = enable_cooperative_groups
        self.options = options if code is not None else ()
        self.backend = backend if code is not None else "nvcc"
        self.translate_cucomplex = translate_cucomplex and code is not None

    @property
    def module(self) -> RawModule:
        self.compile()
        return self

    def get_function(self, name: str) -> RawKernel:
        """The kernel of this name or name expression. Waits: it compiles, and fails if there is none."""
        stream = pool.current_stream()
        if self.code is None:
            self._no_file()
        _ask(stream, "kernel.module.function", self._object(stream), name)
        return _restored(True, {**{key: getattr(self, key) for key in _STATE if key != "name"}, "name": name})

    def _no_file(self) -> None:
        if not os.path.exists(str(self.file_path)):
            raise _driver_error(301, f"there is no file {self.file_path}")
        self._object(None)

    def get_global(self, name: str) -> Any:
        """A pointer to a ``__constant__`` or ``__device__`` variable. Waits."""
        from rgpu.cuda.memory import pointer_of

        stream = pool.current_stream()
        return pointer_of(_ask(stream, "kernel.module.symbol", self._object(stream), name))


def _restored(kernel: bool, state: dict) -> Any:
    found = object.__new__(RawKernel if kernel else RawModule)
    found.__dict__.update(state)
    if kernel:
        found.__name__ = state["name"]
    return found


def _driver_error(status: int, why: str) -> Exception:
    from rgpu.cuda.errors import CUDADriverError

    error = CUDADriverError(status)
    error.add_note(why)
    return error
