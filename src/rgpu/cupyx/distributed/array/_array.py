"""Arrays cut into chunks on several devices: made, read, moved, and computed with chunk by chunk.

A distributed array is a shape, a dtype, a mode and chunks, each an ordinary array; copies between chunks go from device
to device. Nothing here waits but ``get``: what two devices exchange is ordered by their commands.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from rgpu import cuda
from rgpu.client import failures
from rgpu.client.remote import Remote
from rgpu.cupyx.distributed.array import _modes
from rgpu.cupyx.distributed.array._chunk import _Chunk
from rgpu.cupyx.distributed.array._index_arith import (
    _index_for_subindex,
    _index_intersection,
    _normalize_index,
    _shape_after_indexing,
)
from rgpu.errors import PerformanceWarning
from rgpu.functions import creation, dispatch
from rgpu.functions.ufunc import UFUNCS

IndexMap = dict[int, list[tuple]]  # as given, a list or one index; within, normalized lists


class DistributedArray:
    """An array in chunks on several devices; made by ``distributed_array``. ``chunks_map``: device -> chunks."""

    __module__ = "cupyx.distributed.array"
    __array_priority__ = 200
    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self, shape: tuple, dtype: Any, chunks_map: dict[int, list[_Chunk]], mode: Any = None, comms: Any = None
    ) -> None:
        self.shape, self.dtype = tuple(shape), np.dtype(dtype)
        self._chunks_map, self._mode = chunks_map, _modes.of(mode)

    @property
    def mode(self) -> Any:
        """REPLICA, SUM, PROD, MAX or MIN: how chunks that overlap make up an element."""
        return self._mode

    @property
    def devices(self) -> Any:
        return self._chunks_map.keys()

    @property
    def index_map(self) -> IndexMap:
        return {device: [chunk.index for chunk in chunks] for device, chunks in self._chunks_map.items()}

    ndim = property(lambda self: len(self.shape))
    size = property(lambda self: int(np.prod(self.shape)))
    nbytes = property(lambda self: self.size * self.dtype.itemsize)

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return repr(self.get())

    def __str__(self) -> str:
        return str(self.get())

    def all_chunks(self) -> dict[int, list[Any]]:
        """The arrays of each device."""
        return {device: [chunk.array for chunk in chunks] for device, chunks in self._chunks_map.items()}

    def _chunks(self) -> list[_Chunk]:
        return [chunk for chunks in self._chunks_map.values() for chunk in chunks]

    def get(self, stream: Any = None, order: str = "C", out: Any = None, blocking: bool = True) -> np.ndarray:
        """The whole as a NumPy array (waits)."""
        result = np.empty(self.shape, self.dtype, order if order in ("C", "F") else "C") if out is None else out
        mode = self._mode
        if mode.ufunc is not None:
            result[...] = mode.identity_of(self.dtype)
        for chunk in self._chunks():
            part = chunk.array.get()
            result[chunk.index] = part if mode.ufunc is None else mode.ufunc(result[chunk.index], part)
        return result

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise TypeError(
            "Implicit conversion to a NumPy array is not allowed. Please use `.get()` to construct a NumPy array."
        )

    # ---- modes and places -------------------------------------------------------------------------

    def _mapped(self, make: Callable[[_Chunk], Any], mode: Any) -> DistributedArray:
        """The same chunks with other contents, each made on its device."""
        made: dict[int, list[_Chunk]] = {}
        dtype = self.dtype
        for device, chunks in self._chunks_map.items():
            with cuda.Device(device):
                made[device] = [_Chunk(make(chunk), None, chunk.index) for chunk in chunks]
                dtype = made[device][0].array.dtype if made[device] else dtype
        return DistributedArray(self.shape, dtype, made, mode)

    def change_mode(self, mode: Any) -> DistributedArray:
        """The same array in another mode."""
        return self._to_op_mode(_modes.of(mode))

    def _to_op_mode(self, mode: Any) -> DistributedArray:
        if mode is self._mode:
            return self
        replica = self._to_replica()
        if mode is _modes.REPLICA:
            return replica
        if mode.idempotent:
            return DistributedArray(self.shape, self.dtype, replica._chunks_map, mode)
        return replica._held_once(mode)

    def _to_replica(self) -> DistributedArray:
        if self._mode is _modes.REPLICA:
            return self
        ufunc = UFUNCS[self._mode.ufunc.__name__]
        chunks = self._chunks()

        def complete(chunk: _Chunk) -> Any:
            total = chunk.array.copy()
            for other in chunks:
                both = None if other is chunk else _index_intersection(chunk.index, other.index, self.shape)
                if both is not None:
                    here = _index_for_subindex(chunk.index, both, self.shape)
                    there = _index_for_subindex(other.index, both, self.shape)
                    total[here] = ufunc(total[here], moved(other.array[there]))
            return total

        return self._mapped(complete, _modes.REPLICA)

    def _held_once(self, mode: Any) -> DistributedArray:
        """Replicas to a mode in which each element must count once: elsewhere it is the mode's identity."""
        identity, before = mode.identity_of(self.dtype), []

        def keep(chunk: _Chunk) -> Any:
            array = chunk.array.copy()
            for index in before:
                both = _index_intersection(chunk.index, index, self.shape)
                if both is not None:
                    array[_index_for_subindex(chunk.index, both, self.shape)] = identity
            before.append(chunk.index)
            return array

        return self._mapped(keep, mode)

    def reshard(self, index_map: IndexMap) -> DistributedArray:
        """The same array, mode and content, in other chunks; what is there already is not moved."""
        wanted = _normalized(self.shape, index_map)
        if wanted == self.index_map:
            return self
        source = self._to_replica()
        made: dict[int, list[_Chunk]] = {}
        for device, indices in wanted.items():
            near = list(source._chunks_map.get(device, ()))
            rest = [chunk for chunk in source._chunks() if all(chunk is not other for other in near)]
            with cuda.Device(device):
                made[device] = [_Chunk(source._gathered(index, near + rest), None, index) for index in indices]
        result = DistributedArray(self.shape, self.dtype, made, _modes.REPLICA)
        return result._to_op_mode(self._mode)

    def _gathered(self, index: tuple, chunks: list[_Chunk]) -> Any:
        """The elements of an index, on the current device, out of the first chunks that have them."""
        target = creation.empty(_shape_after_indexing(self.shape, index), self.dtype)
        done: list[tuple] = []
        for chunk in chunks:
            both = _index_intersection(index, chunk.index, self.shape)
            if both is None or any(_index_intersection(both, other, self.shape) == both for other in done):
                continue
            there = _index_for_subindex(chunk.index, both, self.shape)
            target[_index_for_subindex(index, both, self.shape)] = moved(chunk.array[there])
            done.append(both)
        if sum(int(np.prod(_shape_after_indexing(self.shape, part))) for part in done) < target.size:
            raise RuntimeError(f"no device has all elements of {index}")
        return target

    # ---- element by element --------------------------------------------------------------------------

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if method != "__call__" or kwargs:
            raise RuntimeError(f"a distributed array does not support {ufunc}.{method} with {sorted(kwargs)}")
        return self.__cupy_override_elementwise_kernel__(UFUNCS[getattr(ufunc, "__name__", str(ufunc))], *inputs)

    def __cupy_override_elementwise_kernel__(self, kernel: Any, *args: Any, **kwargs: Any) -> Any:
        """A ufunc or elementwise kernel, chunk by chunk; other distributed arguments come into these chunks."""
        if any(isinstance(x, Remote | np.ndarray) and x.ndim for x in args):  # type: ignore[union-attr]
            raise RuntimeError("Mixing a distributed array with a non-distributed one is not supported")
        first = next(x for x in args if isinstance(x, DistributedArray))._to_replica()
        parts = [x._fitted(first) if isinstance(x, DistributedArray) else x for x in args]
        made: dict[int, list[_Chunk]] = {}
        dtype = first.dtype
        for device, chunks in first._chunks_map.items():
            with cuda.Device(device):
                made[device] = []
                for number, chunk in enumerate(chunks):
                    given = [
                        x._chunks_map[device][number].array if isinstance(x, DistributedArray) else x for x in parts
                    ]
                    result = kernel(*given, **kwargs)
                    if isinstance(result, tuple):
                        raise RuntimeError("a distributed array does not support functions with several results")
                    dtype = result.dtype
                    made[device].append(_Chunk(result, None, chunk.index))
        return DistributedArray(first.shape, dtype, made, _modes.REPLICA)

    def _fitted(self, other: DistributedArray) -> DistributedArray:
        if self.shape != other.shape:
            raise RuntimeError(f"distributed arrays of shapes {other.shape} and {self.shape} cannot be broadcast")
        replica = self._to_replica()
        if replica.index_map == other.index_map:
            return replica
        warnings.warn(
            "The chunks of two distributed arrays differ: they are copied for this operation. Peer access between "
            "the devices is used.",
            PerformanceWarning,
            stacklevel=failures.users_level(),
        )
        return replica.reshard(other.index_map)

    # ---- reductions -----------------------------------------------------------------------------------

    def __cupy_override_reduction_kernel__(self, kernel: Any, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(f"a distributed array does not support {getattr(kernel, 'name', kernel)}")

    def _reduced(self, name: str, mode: Any, axis: Any, dtype: Any, out: Any, keepdims: bool) -> DistributedArray:
        if out is not None or keepdims or not isinstance(axis, int | np.integer):
            raise RuntimeError(f"{name} of a distributed array takes one axis, and neither out nor keepdims")
        axis = int(axis) % self.ndim
        source = self._to_op_mode(mode) if not mode.idempotent or self._mode is mode else self._to_replica()
        keywords = {} if dtype is None else {"dtype": dtype}
        made: dict[int, list[_Chunk]] = {}
        found = self.dtype
        for device, chunks in source._chunks_map.items():
            with cuda.Device(device):
                made[device] = []
                for chunk in chunks:
                    part = dispatch.call(name, chunk.array, axis=axis, **keywords)
                    found = part.dtype
                    made[device].append(_Chunk(part, None, chunk.index[:axis] + chunk.index[axis + 1 :]))
        return DistributedArray(self.shape[:axis] + self.shape[axis + 1 :], found, made, mode)

    def sum(self, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False) -> DistributedArray:
        return self._reduced("sum", _modes.SUM, axis, dtype, out, keepdims)

    def prod(self, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False) -> DistributedArray:
        return self._reduced("prod", _modes.PROD, axis, dtype, out, keepdims)

    def max(self, axis: Any = None, out: Any = None, keepdims: bool = False) -> DistributedArray:
        return self._reduced("max", _modes.MAX, axis, None, out, keepdims)

    def min(self, axis: Any = None, out: Any = None, keepdims: bool = False) -> DistributedArray:
        return self._reduced("min", _modes.MIN, axis, None, out, keepdims)

    def __matmul__(self, other: Any) -> Any:
        from rgpu.cupyx.distributed.array._linalg import matmul

        return matmul(self, other)

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("a distributed array does not support this operation")

    __getitem__ = __setitem__ = argmax = argmin = mean = var = std = reshape = transpose = _refuse
    __iadd__ = __isub__ = __imul__ = __itruediv__ = _refuse


def _operator(name: str, swapped: bool) -> Callable[..., Any]:
    def operate(self: DistributedArray, other: Any) -> Any:
        args = (other, self) if swapped else (self, other)
        return self.__cupy_override_elementwise_kernel__(UFUNCS[name], *args)

    return operate


for _word, _name in {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "true_divide", "floordiv": "floor_divide",
    "mod": "remainder", "pow": "power", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
}.items():  # fmt: skip
    setattr(DistributedArray, f"__{_word}__", _operator(_name, False))
    setattr(DistributedArray, f"__r{_word}__", _operator(_name, True))
for _word, _name in {
    "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal", "eq": "equal", "ne": "not_equal",
}.items():  # fmt: skip
    setattr(DistributedArray, f"__{_word}__", _operator(_name, False))
for _word, _name in {"neg": "negative", "abs": "absolute", "invert": "invert"}.items():

    def _unary(self: DistributedArray, _name: str = _name) -> Any:
        return self.__cupy_override_elementwise_kernel__(UFUNCS[_name], self)

    setattr(DistributedArray, f"__{_word}__", _unary)


def moved(array: Any) -> Any:
    """The array on the current device."""
    return array if array.device.id == cuda.runtime.getDevice() else dispatch.to_device(array)


def _normalized(shape: tuple, index_map: IndexMap) -> IndexMap:
    """With the indices of each device in order; a device may have one index instead of a list (a tuple is one)."""
    found = {}
    for device, given in index_map.items():
        indices = [_normalize_index(shape, index) for index in (given if isinstance(given, list) else [given])]
        found[device] = sorted(indices, key=lambda index: [(part.start, part.stop, part.step) for part in index])
    return found


def distributed_array(array: Any, index_map: IndexMap, mode: Any = None, comms: Any = None) -> DistributedArray:
    """Cut an array (of a device, of the host, distributed, or nested lists) into chunks.

    ``index_map``: device -> index of its chunk, or a list of them; together they cover the array. ``mode``: how
    chunks that overlap make up an element (REPLICA by default).
    """
    if isinstance(array, DistributedArray):
        given = array if mode is None else array.change_mode(mode)
        return given.reshard(index_map)
    source = array if isinstance(array, Remote) else np.asarray(array)
    shape = source.shape
    made: dict[int, list[_Chunk]] = {}
    for device, indices in _normalized(shape, index_map).items():
        with cuda.Device(device):
            parts: list[Any] = [source[index] for index in indices]  # type: ignore[index]
            if isinstance(source, Remote):
                parts = [moved(part) for part in parts]
            made[device] = [_Chunk(creation.array(part), None, index) for part, index in zip(parts, indices)]
    return DistributedArray(shape, source.dtype, made, _modes.REPLICA).change_mode(_modes.of(mode))
