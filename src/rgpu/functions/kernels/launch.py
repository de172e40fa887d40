"""What all custom kernels share: their handles on workers, and arguments as a launch wants them.

A kernel is content: the same text is one object of a session, made at its first use there. After that a
launch sends the handle and the arguments. Nothing here waits.
"""

from __future__ import annotations

import re
import weakref
from typing import Any

import numpy as np

from rgpu.client import pool
from rgpu.client.quick import note
from rgpu.client.remote import Remote
from rgpu.client.stream import next_handle
from rgpu.functions import creation, dispatch
from rgpu.wire import ops, values
from rgpu.wire.functions import BY_NAME

_NAME = re.compile(r"[A-Za-z_]\w*(?:::\w+)*(?:<[^;{}]*>)?")
_kernels: weakref.WeakKeyDictionary[Any, dict] = weakref.WeakKeyDictionary()  # stream -> content -> Kernel
_T_CALL = ops.Call.tag
SCALARS = (bool, int, float, complex, np.generic)


class Kernel:
    """The name of a kernel's object on one worker, for arguments of calls."""

    __slots__ = ("_remote_handle", "ready")

    def __init__(self, handle: int) -> None:
        self._remote_handle = handle
        self.ready = False  # whether its worker has compiled it, as far as anybody asked


def kernel(stream: Any, constructor: str, *content: Any, anew: bool = False) -> Kernel:
    """The session's object for this content; submitted the first time it is needed."""
    known = _kernels.setdefault(stream, {})
    key = (constructor, *content)
    found = known.get(key)
    if found is None or anew:
        handle = next_handle()
        encoded = dispatch._Arguments(stream, content, {}, True)
        stream.submit(ops.Call.encode(BY_NAME[constructor].id, (handle,), encoded.wire, {}))
        found = known[key] = Kernel(handle)
    return found


def allowed() -> bool:
    """Whether the current device runs kernels of clients: what its server said when it was found."""
    return bool(pool.current_stream().device.info.get("kernels", True))


def checked_name(name: str) -> str:
    """A name a kernel may have; ValueError otherwise."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise ValueError(f'Invalid kernel name: "{name}"')
    return name


def converted(args: Any) -> list:
    """Arrays and scalars as they are, objects that hold an array as that array; TypeError for the rest."""
    result = []
    for x in args:
        if not isinstance(x, Remote):
            x = creation.cupy_like(x)
            if not isinstance(x, Remote) and not isinstance(x, SCALARS):
                raise TypeError(f"Unsupported type {type(x)}")
        result.append(x)
    return result


def place(arrays: list) -> Any:
    """The stream a launch runs on: its outputs' (inputs from elsewhere are copied), else the current one."""
    streams = {id(a._stream): a._stream for a in arrays}
    if len(streams) > 1:
        raise ValueError("the output arrays of a kernel must be on one device")
    return next(iter(streams.values())) if streams else pool.current_stream()


def scalar(x: Any, dtype: np.dtype) -> np.generic:
    """A scalar argument as the type its parameter has, converted as C would."""
    if isinstance(x, np.generic):
        return x.astype(dtype)
    if isinstance(x, int) and not isinstance(x, bool) and dtype.kind in "iu":
        return np.array(int(x) & (2 ** (8 * dtype.itemsize) - 1), f"u{dtype.itemsize}").astype(dtype)[()]
    with np.errstate(all="ignore"):
        return np.asarray(x).astype(dtype)[()]


def resolve_types(ins: tuple, outs: tuple, in_dtypes: list, out_dtypes: list) -> tuple[list, list]:
    """The dtype of every parameter: declared, or what an argument gives its letter; outputs come first."""
    letters: dict[str, np.dtype] = {}
    for parameter, dtype in (*zip(outs, out_dtypes), *zip(ins, in_dtypes)):
        if dtype is None:
            continue
        if parameter.dtype is not None:
            if parameter.dtype != dtype:
                raise TypeError(f"Type is mismatched. {parameter.name} {dtype.type} {parameter.dtype.type}")
        elif letters.setdefault(parameter.type, dtype) != dtype:
            known = letters[parameter.type].type
            raise TypeError(f"Type is mismatched. {parameter.name} {dtype.type} {known} {parameter.type}")
    return tuple([letters[p.type] if p.dtype is None else p.dtype for p in side] for side in (ins, outs))  # type: ignore[return-value]


def signature(args: tuple) -> Any:
    """The current stream (its number, which keeps nothing alive) and the layouts of arguments that are all
    arrays of its device; else None."""
    stream, array = pool.current_stream(), dispatch.ndarray
    key: list = [stream.number]
    for x in args:
        if type(x) is not array or x._stream is not stream:
            return None
        key.append(x._metadata)
    return tuple(key)


class Encoded:
    """A launch on arrays that was encoded before: only their handles are new."""

    __slots__ = ("_fn", "_kernel", "_made", "_rest")

    def __init__(self, name: str, kernel: Kernel, made: list, *rest: Any) -> None:
        wanted = tuple([(x.dtype, x.shape) for x in made])
        encoded = dispatch._Arguments(None, (kernel, wanted, *rest), {}, True)
        self._fn, self._made = BY_NAME[name].id, tuple(made)
        self._kernel, *self._rest = encoded.wire

    def run(self, args: tuple) -> list:
        stream, made = args[0]._stream, self._made
        if sum([meta.nbytes for meta in made]) > stream.device.memory_total:
            pool.refuse(sum([meta.nbytes for meta in made]), stream.device)
        handles = [next_handle() for _ in made]
        inputs = [values.TUPLE, *[(values.HANDLE, x._handle) for x in args]]
        command = (_T_CALL, self._fn, handles, (self._kernel, inputs, *self._rest), {})
        stream.submit_predicted(command, handles, made)
        if len(made) == 1:
            note(stream, command, handles[0])
        return [dispatch.new(meta, stream, handle) for meta, handle in zip(made, handles)]


def submit(name: str, stream: Any, made: list, outputs: list, *args: Any) -> list:
    """Launch; ``outputs`` are arrays, or layouts for the worker to make arrays of. All of them, as arrays."""
    wanted = tuple((x.dtype, x.shape) if x in made else x for x in outputs) if made else tuple(outputs)
    kernel_object, inputs, *rest = args
    with stream.device:
        encoded = dispatch._Arguments(stream, (kernel_object, inputs, wanted, *rest), {}, True)
    if not made:
        dispatch.run(BY_NAME[name], encoded)
        return outputs
    return list(dispatch.submit(BY_NAME[name], encoded, tuple(made)))
