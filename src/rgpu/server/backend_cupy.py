"""The cupy backend: CuPy on a CUDA (or ROCm) device. The only room that knows cupy.

Declared names are CuPy's own paths and are looked up once, when a session begins; what CuPy spells
differently from the table is in ``OVERRIDES``. Nothing of a client's is ever evaluated here. Importing it
touches no device, so that a worker can be warm before it knows its card.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable, Sequence
from typing import Any

import cupy
import cupyx
import numpy as np

from rgpu import config
from rgpu.server import (
    collective,
    cupy_collective,
    cupy_device,
    cupy_graphs,
    cupy_kernels,
    graphs,
    objects,
    peers,
    sparse,
    state,
)
from rgpu.server.backend import Backend
from rgpu.server.cupy_device import Pools
from rgpu.server.cupy_door import Door
from rgpu.server.table import OutOfMemoryError

_STAGE_BYTES = 1 << 20  # of each of two pinned buffers that uploads pass through
_PINNED_READ = 256 << 20  # larger reads take ordinary host memory

FUNCTIONS = {
    **cupy_device.FUNCTIONS, **cupy_kernels.FUNCTIONS, **peers.FUNCTIONS, **collective.FUNCTIONS, **state.FUNCTIONS,
}  # fmt: skip
OVERRIDES: dict[str, Callable[..., Any]] = {
    **sparse.overrides("cupyx.scipy.sparse"),
    **objects.overrides("cupyx.scipy"),
}


def override(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        OVERRIDES[name] = function
        return function

    return register


class CupyBackend(Backend):
    """One CUDA device, in a process of its own."""

    kind = "cupy"
    array = cupy.ndarray
    scalar = (np.generic, np.ndarray, bool, int, float, complex)  # where an array was promised

    def __init__(self, device: int = 0, memory_limit: int = 0) -> None:
        self.device, self.limit = device, memory_limit
        self.cuda = cupy.cuda.Device(device)
        self.cuda.use()
        self.pci = cupy.cuda.runtime.deviceGetPCIBusId(device)
        self.pools = Pools(memory_limit)
        self.pools.use(self.pools.default)
        self.streams = False  # whether there ever was another than the default one
        self._stage: list[_Stage] = []
        self._door = Door()
        if config.parse_flag(os.environ.get(config.GRAPHS, "1")):
            self.graphs = graphs.Graphs(cupy_graphs.Device(cupy, self))
            self.pools.relieve = self.graphs.drop

    def resolve(self, name: str) -> Callable[..., Any] | None:
        if name in FUNCTIONS:
            return functools.partial(FUNCTIONS[name], self)
        if name.startswith("cupyx."):  # these modules take seconds to import; few sessions use them
            return OVERRIDES.get(name) or functools.partial(_late, name)
        return OVERRIDES.get(name) or find(name)

    # ---- arrays -----------------------------------------------------------------------------------

    def empty(self, shape: Sequence[int], dtype: np.dtype, strides: Sequence[int] | None) -> Any:
        if strides is None or 0 in shape:
            return cupy.empty(tuple(shape), dtype)
        low, high = cupy_graphs.reach(shape, dtype.itemsize, strides)
        memory = cupy.cuda.alloc(high - low) - low
        return cupy.ndarray(tuple(shape), dtype, memptr=memory, strides=tuple(strides))

    def view(self, root: Any, shape: tuple, dtype: np.dtype, strides: tuple, offset: int) -> Any:
        if 0 in shape:
            return cupy.empty(shape, dtype)
        low, high = cupy_graphs.reach(shape, dtype.itemsize, strides)
        if offset + low < 0 or offset + high > root.nbytes:
            raise ValueError(
                f"a view of {high - low} bytes at offset {offset + low} leaves its {root.nbytes} bytes"
            )
        return cupy.ndarray(shape, dtype, memptr=root.data + offset, strides=strides)

    def address(self, array: Any) -> int:
        return array.data.ptr

    def entitle(self, allowance: Any, spill_to: Any = None) -> None:
        super().entitle(allowance, spill_to)
        allowance.held = lambda: max(self.table.used if self.table else 0, self.pools.held)

        def more(held: int) -> int:
            allowance.more(held)
            return allowance.memory

        self.pools.more = more

    def from_host(self, array: np.ndarray) -> Any:
        return cupy.array(array)

    def to_host(self, array: Any, order: str) -> np.ndarray:
        if self.streams:  # it may have been computed on a stream that the current one does not wait for
            self.cuda.synchronize()
        out = _host_buffer(array.nbytes)[: array.nbytes].view(array.dtype).reshape(array.shape, order=order)
        suits = array.flags.c_contiguous if out.flags.c_contiguous else array.flags.f_contiguous
        source = array if suits else array.copy(order=order)
        source.get(out=out)
        return out

    def write(self, array: Any, offset: int, data: Any) -> None:
        source = np.frombuffer(data, np.uint8)
        if offset + source.size > array.nbytes:
            raise ValueError("write beyond the end of the array")
        stream = cupy.cuda.get_current_stream()
        for start in range(0, source.size, _STAGE_BYTES):
            part = source[start : start + _STAGE_BYTES]
            self._next_stage().send(part, array.data + (offset + start), stream)

    def _next_stage(self) -> _Stage:
        if not self._stage:
            self._stage = [_Stage(), _Stage()]
        self._stage.reverse()
        return self._stage[0]

    def own(self, result: Any, order: str = "C") -> Any:
        return cupy.array(result, order=order, copy=True)

    # ---- other workers ----------------------------------------------------------------------------

    def ticket(self, array: Any) -> bytes | None:
        return self._door.ticket(array)

    def redeem(self, target: Any, ticket: bytes, nbytes: int) -> bool:
        return self._door.redeem(target, ticket, nbytes)

    def group(self, on: bool) -> None:
        cupy_collective.group(on)

    def communicator(self, *args: Any) -> Any:
        return cupy_collective.Communicator(*args)

    # ---- the device -------------------------------------------------------------------------------

    def synchronize(self) -> None:
        self.cuda.synchronize()

    def use_stream(self, stream: Any) -> None:
        (cupy.cuda.Stream.null if stream is None else stream).use()

    def release(self) -> None:
        if self.graphs is not None:
            self.graphs.drop()
        self.pools.free_all()
        cupy.get_default_pinned_memory_pool().free_all_blocks()

    def explain(self, error: BaseException) -> BaseException:
        if isinstance(error, cupy.cuda.memory.OutOfMemoryError):
            _, arguments = error.__reduce__()  # type: ignore[misc]
            return OutOfMemoryError(*arguments)
        if isinstance(error, cupy.cuda.compiler.CompileException):
            return _plain(error, error.get_message(), error.source, error.name)
        status = getattr(error, "status", None)
        if isinstance(status, int) and not isinstance(error, cupy.cuda.runtime.CUDARuntimeError):
            return _plain(error, status, str(error))
        return error


class _Stage:
    """A pinned buffer between a message and the device, used again when the device has it."""

    def __init__(self) -> None:
        self._memory = cupy.cuda.alloc_pinned_memory(_STAGE_BYTES)
        self._bytes = np.frombuffer(self._memory, np.uint8, _STAGE_BYTES)
        self._sent = cupy.cuda.Event(disable_timing=True)

    def send(self, part: np.ndarray, target: Any, stream: Any) -> None:
        self._sent.synchronize()
        self._bytes[: part.size] = part
        target.copy_from_host_async(self._bytes.ctypes.data, part.size, stream)
        self._sent.record(stream)


def _plain(error: BaseException, *arguments: Any) -> BaseException:
    """An exception of the same class name with arguments that can travel."""
    return type(type(error).__name__, (RuntimeError,), {})(*arguments)


def _host_buffer(nbytes: int) -> np.ndarray:
    if not 0 < nbytes <= _PINNED_READ:
        return np.empty(nbytes, np.uint8)
    return np.frombuffer(cupy.cuda.alloc_pinned_memory(nbytes), np.uint8, nbytes)


def find(name: str) -> Callable[..., Any] | None:
    """CuPy's function of a declared path (``linalg.solve``, ``cupyx.scipy.special.erf``), or None."""
    found: Any = cupy
    path = name.split(".")
    if path[0] == "cupyx":
        found, path = cupyx, path[1:]
    for part in path:
        inner = getattr(found, part, None)
        if inner is None and hasattr(found, "__path__"):
            try:
                inner = importlib.import_module(f"{found.__name__}.{part}")
            except ImportError:
                return None
        found = inner
    return found


def _late(name: str, *args: Any, **kwargs: Any) -> Any:
    """Look a function up when it is called for the first time, and call it."""
    function = _found.get(name)
    if function is None:
        function = find(name)
        if function is None:
            raise NotImplementedError(f"{name} is not available on the cupy backend of this server")
        _found[name] = function
    return function(*args, **kwargs)


_found: dict[str, Callable[..., Any]] = {}


# ---- what the table spells differently ------------------------------------------------------------


@override("ndarray.getitem")
def _getitem(array: Any, index: tuple) -> Any:
    return array[index].copy()


@override("ndarray.setitem")
def _setitem(array: Any, index: Any, value: Any) -> None:
    array[index] = cupy.asarray(value) if isinstance(value, np.ndarray) else value


@override("ndarray.astype")
def _astype(target: Any, source: Any) -> None:
    if source.dtype.kind == "c" and target.dtype.kind not in "cb":
        source = source.real
    cupy.copyto(target, source, casting="unsafe")


@override("ndarray.copy")
def _copy(source: Any, dtype: np.dtype) -> Any:
    if source.dtype.kind == "c" and dtype.kind not in "cb":
        source = source.real
    return source.astype(dtype, order="C")


@override("ndarray.byteswap")
def _byteswap(array: Any) -> None:
    array.byteswap(inplace=True)


@override("interp")
def _interp(x: Any, xp: Any, fp: Any, *args: Any, **kwargs: Any) -> Any:
    return cupy.interp(cupy.asarray(x), cupy.asarray(xp), cupy.asarray(fp), *args, **kwargs)


def _ufunc(name: str) -> Any:
    from rgpu.wire.functions import BY_NAME

    found = getattr(cupy, name, None)
    if name not in BY_NAME or not isinstance(found, cupy.ufunc):
        raise TypeError(f"{name!r} is not a ufunc")
    return found


@override("ufunc.call")
def _ufunc_call(target: Any, name: str, *args: Any) -> Any:
    *operands, outs, options = args
    options = {"_where" if key == "where" else key: value for key, value in options.items()}
    if outs:
        options["out"] = outs if len(outs) > 1 else outs[0]
    return _ufunc(name)(*operands, **options)


def _ufunc_method(method: str) -> Callable[..., Any]:
    def call(name: str, *args: Any, **kwargs: Any) -> Any:
        return getattr(_ufunc(name), method)(*args, **kwargs)

    return call


for _method in ("reduce", "accumulate", "reduceat", "outer"):
    OVERRIDES[f"ufunc.{_method}"] = _ufunc_method(_method)


@override("ufunc.at")
def _ufunc_at(target: Any, name: str, indices: Any, b: Any = None) -> None:
    _ufunc(name).at(target, indices, *([] if b is None else [b]))


@override("random.Generator")
def _generator(bits: Any) -> Any:
    return cupy.random.Generator(bits)


def _bit_generator(kind: str) -> Callable[..., Any]:
    return lambda words, size=-1: getattr(cupy.random, kind)(np.random.SeedSequence(words), size=size)


for _kind in ("XORWOW", "MRG32k3a", "Philox4x3210"):
    OVERRIDES[f"random.{_kind}"] = _bit_generator(_kind)


@override("random.BitGenerator.random_raw")
def _random_raw(bits: Any, shape: tuple) -> Any:
    return bits.random_raw(shape)


#: what fails on a singular matrix, by declared name
_MAY_FAIL = {"linalg.inv": "inv", "linalg.cholesky": "cholesky", "linalg.solve": "solve"}


@override("linalg.strict")
def _strict(name: str, *args: Any, **kwargs: Any) -> Any:
    """A function of linear algebra with CuPy's check of its outcome, which waits."""
    with cupyx.errstate(linalg="raise"):
        return getattr(cupy.linalg, _MAY_FAIL[name])(*args, **kwargs)
