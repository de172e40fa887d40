"""From a CuPy call to a command: encode the arguments, predict the result, submit or ask.

Every declared function goes through ``call``; there is no hand-written method per function.
``binary`` and ``unary`` are the short way for operators. This room never waits unless only the
worker can know the result.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from rgpu.client import failures, pool, predict
from rgpu.client.meta import Meta, ordered
from rgpu.client.quick import note
from rgpu.client.remote import Remote
from rgpu.client.stream import next_handle
from rgpu.errors import PerformanceWarning
from rgpu.functions.recording import listener
from rgpu.wire import limits, ops, values
from rgpu.wire.functions import BY_NAME, Function

_T_UNARY, _T_BINARY, _T_INPLACE, _T_CALL = ops.Unary.tag, ops.Binary.tag, ops.Inplace.tag, ops.Call.tag
_SCALARS = (bool, int, float, complex, np.generic)

#: set by ``rgpu._ndarray``: the class of results, and how another device's array is brought here
ndarray: Any = Remote
WIDE = "wide"  # an integer in a signature, see ``signature``
plain: set = {float, int, bool, complex}  # operands that leave a result's class alone
to_device: Any = None
managed: Any = None  # an array over memory for all devices, on the current one; None for any other
to_order: Any = None  # a copy of an array in an order
like: Any = None  # a device array for an object that stands for one
upload: Any = None  # a host array as one of a stream's device
#: set while somebody looks at allocations (``cuda.allocations``): given each new array, it returns what to use for it
made: Any = None


#: number of a function -> {layouts of its operands: layout of the result}, for the short way of ``operators``
known: dict[int, dict] = {function.id: {} for function in BY_NAME.values()}
_SMALL = 16 << 20  # bytes that no device refuses unasked
_KEPT = 10_000  # layouts of one function: a program that makes endless shapes must not keep them


def new(meta: Meta, stream: Any, handle: int, cls: Any = None) -> Any:
    """An array object for a fresh handle. Raises OutOfMemoryError for what no device could hold."""
    array = object.__new__(cls or ndarray)
    array._handle, array._metadata, array._stream = handle, meta, stream
    array._root, array._offset = None, 0
    return array if made is None else made(array)


def operand(x: Any) -> Any:
    """Wire form of a scalar operand; TypeError like CuPy's for anything else."""
    kind = type(x)
    if kind is float or kind is bool:
        return x
    if kind is int:
        return [values.INT, x] if -(2**63) <= x < 2**63 else values.encode(x, _no_special)
    if isinstance(x, _SCALARS):
        if isinstance(x, int):  # a subclass of int must not look like a handle
            return operand(int(x))
        return values.encode(x, _no_special)
    raise TypeError(f"Unsupported type {kind}")


def _no_special(_: Any) -> None:
    return None


def here(array: Remote) -> Remote:
    """The array on the current device: itself, or a copy (as peer access would read it)."""
    stream = pool.current_stream()
    if array._stream is stream:
        return array
    found = None if managed is None else managed(array)
    if found is not None:
        return found
    warn_peer(array, stream)
    return to_device(array)


def warn_peer(array: Remote, stream: Any) -> None:
    """Say what CuPy says when a kernel reads another device's array."""
    warnings.warn(
        f"The device where the array resides ({array._stream.device.ordinal}) is different from the current device "
        f"({stream.device.ordinal}): it is copied for this operation.",
        PerformanceWarning,
        stacklevel=failures.users_level(),
    )


def signature(x: Any, other: Any) -> Any:
    """What of a layout or scalar decides the result, None for what ``operators`` do not handle. An integer that
    every dtype holds is one for all, and for floating point any that fits 32 bits."""
    kind = type(x)
    if kind is Meta:
        return x
    if kind is not int or 0 <= x <= 127:
        return kind if kind is float or kind is int else None
    floating = type(other) is Meta and other.dtype.kind in "fc" and other.dtype.itemsize >= 4
    return WIDE if floating and -(2**31) <= x < 2**31 else None


def remember(function: Function, operands: Any, meta: Any) -> None:
    """The layout of a result, for the next time."""
    if type(meta) is Meta and meta.nbytes <= _SMALL:
        found = known[function.id]
        if len(found) >= _KEPT:
            found.clear()
        found[operands] = meta


def unary(function: Function, a: Remote) -> Any:
    """``function(a)`` for an element-wise function."""
    stream = pool.current_stream()
    if a._stream is not stream:
        a = here(a)
    meta = known[function.id].get(a._metadata)
    if meta is None:
        meta = predict.elementwise(function.name, (a._metadata,))
        remember(function, a._metadata, meta)
    handle = next_handle()
    command = (_T_UNARY, function.id, handle, a._handle)
    stream.submit_predicted(command, (handle,), (meta,))
    note(stream, command, handle)
    return new(meta, stream, handle) if type(a) in plain else adopt(meta, stream, handle, (a,))


def binary(function: Function, a: Any, b: Any) -> Any:
    """``function(a, b)``; at least one operand is an array."""
    stream = pool.current_stream()
    if isinstance(a, Remote):
        if a._stream is not stream:
            a = here(a)
        left, wire_a = a._metadata, a._handle
    elif type(a) not in plain and like(a) is not a:
        return binary(function, like(a), b)
    else:
        if not isinstance(a, _SCALARS) and hasattr(a, "__cupy_get_ndarray__"):
            return binary(function, a.__cupy_get_ndarray__(), b)
        left, wire_a = a, operand(a)
    if isinstance(b, Remote):
        if b._stream is not stream:
            b = here(b)
        right, wire_b = b._metadata, b._handle
    elif type(b) not in plain and like(b) is not b:
        return binary(function, a, like(b))
    else:
        if not isinstance(b, _SCALARS) and hasattr(b, "__cupy_get_ndarray__"):
            return binary(function, a, b.__cupy_get_ndarray__())
        right, wire_b = b, operand(b)
    meta = predict.elementwise(function.name, (left, right))
    if type(meta) is tuple:
        return call_predicted("ufunc.call", meta, None, function.name, a, b, (), {})
    if meta.nbytes > stream.device.memory_total:
        pool.refuse(meta.nbytes, stream.device)
    signed = signature(left, right), signature(right, left)
    remember(function, signed, meta)
    handle = next_handle()
    command = (_T_BINARY, function.id, handle, wire_a, wire_b)
    stream.submit_predicted(command, (handle,), (meta,))
    if None not in signed:
        note(stream, command, handle)
    if type(a) in plain and type(b) in plain:
        return new(meta, stream, handle)
    return adopt(meta, stream, handle, (a, b))


def adopt(meta: Meta, stream: Any, handle: int, operands: tuple) -> Any:
    """The result of operands that may be of a subclass: the first of highest priority gives its class."""
    found = [x for x in operands if isinstance(x, ndarray)]
    source = max(found, key=lambda x: x.__array_priority__ + (type(x) is not ndarray) * 1e-6, default=None)
    array = new(meta, stream, handle, type(source) if source is not None else None)
    if type(array) is not ndarray:
        array.__array_finalize__(source)
    return array


def inplace(function: Function, a: Remote, b: Any) -> Any:
    """``function(a, b, out=a)``."""
    stream = a._stream
    if isinstance(b, Remote):
        if b._stream is not stream:
            with stream.device:
                b = here(b)
        right, wire_b = b._metadata, b._handle
    else:
        right, wire_b = b, operand(b)
    predict.inplace(function.name, a._metadata, right)
    signed = signature(right, a._metadata)
    remember(function, (a._metadata, signed, "in place"), a._metadata)
    command = (_T_INPLACE, function.id, a._handle, wire_b)
    stream.submit(command)
    if signed is not None:
        note(stream, command)
    return a


_DIMENSIONS = 64  # NumPy's most
_NUMBERS = frozenset({"axes", "s", "shape", "shift"})  # keywords that may come as an array of numbers


class _Arguments:
    """One walk over the arguments of a call: wire form, layouts, signature, arrays.

    ``exact``: floats may be counts, which decide by their values, but for those of ``free`` (``_FREE``).
    ``whole``: all that is on the host is in the key.
    ``single``, ``few``: among the arrays are single numbers or integers in a row, which may be counts and extents.
    """

    def __init__(
        self, stream: Any, args: tuple, kwargs: dict, accept_host: bool, exact: bool = False, free: Any = frozenset()
    ) -> None:
        self.stream, self.accept_host = stream, accept_host
        self.whole, self.single, self.few = True, False, False
        self.key: list = []
        self.given: list[int] = []  # handles of arrays
        self.kept: list = []
        self.wire = []
        for place, x in enumerate(args):
            self.exact = exact and place not in free
            self.wire.append(self.walk(x))
        self.wire_kw = {}
        for name, x in kwargs.items():
            self.exact = exact and name not in free
            self.key.append(name)
            self.wire_kw[name] = self.walk(x)

    def walk(self, x: Any) -> Any:
        kind = type(x)
        if kind is tuple or kind is list:
            self.key.append((kind, len(x)))
            tag = values.TUPLE if kind is tuple else values.LIST
            return [tag, *[self.walk(item) for item in x]]
        return values.encode(x, self.special) if kind not in (bool, int, float, str, type(None)) else self.plain(x)

    def plain(self, x: Any) -> Any:
        # A float's value decides a layout only where it may be a count; an integer's, a string's or a flag's anywhere.
        self.key.append(float if type(x) is float and not self.exact else (type(x), x))
        return x if type(x) is not int or -(2**63) <= x < 2**63 else values.encode(x, _no_special)

    def special(self, x: Any) -> Any:
        if isinstance(x, Remote):
            if x._stream is not self.stream:
                with self.stream.device:
                    x = here(x)
                self.kept.append(x)  # until the command that uses it is queued
            meta = x._metadata
            self.single = self.single or not meta.ndim
            self.few = self.few or (meta.ndim == 1 and meta.dtype.kind in "iu" and meta.size <= _DIMENSIONS)
            # Which arguments are one array may decide, too: the spectrum of a signal with itself is real.
            self.key.append((meta, self.given.index(x._handle)) if x._handle in self.given else meta)
            self.given.append(x._handle)
            return [values.HANDLE, x._handle]
        found = getattr(x, "_remote_handle", None)
        if found is not None:
            self.key.append((type(x), found))  # what is learned of one object need not be true of another
            return [values.HANDLE, found]
        if hasattr(type(x), "__cupy_override_reduction_kernel__"):
            raise RuntimeError("a distributed array does not support this function")
        if isinstance(x, np.ndarray):
            if not self.accept_host:
                raise TypeError(f"Unsupported type {type(x)}")
            if x.nbytes > limits.INLINE_BYTES and not x.dtype.hasobject:  # too large for the command itself
                self.kept.append(upload(x, self.stream))
                return self.special(self.kept[-1])
            self.whole = self.whole and x.size <= 256
            self.key.append((x.shape, x.dtype, x.tobytes()) if x.size <= 256 else None)
            return None
        if isinstance(x, np.generic):
            self.key.append(x.dtype if x.dtype.kind in "fc" and not self.exact else (x.dtype, x.item()))
            return None
        if isinstance(x, dict):
            self.key.append((dict, tuple(x)))
            return [values.DICT, *[self.walk(item) for pair in x.items() for item in pair]]
        self.key.append((slice, x.start, x.stop, x.step) if isinstance(x, slice) else x)
        return None

    def signature(self, function: Function) -> Any:
        """What decides the result of a function, to look it up; None where not all of that is in it."""
        key = (function.id, *self.key)
        try:
            hash(key)
        except TypeError:
            return None
        return key if self.whole else None


def metas(x: Any) -> Any:
    """The same arguments with arrays as their layouts, for the rules."""
    if isinstance(x, Remote):
        return x._metadata
    if type(x) in (tuple, list):
        return type(x)(metas(item) for item in x)
    return x


_HOST_KINDS = {"object", "internal"}
#: CuPy makes device arrays of what these are given
_HOST_FUNCTIONS = {
    "percentile", "quantile", "pad", "interp", "take", "tile", "repeat", "histogram", "histogramdd", "histogram2d",
    "average", "einsum", "isclose", "allclose", "linspace", "logspace", "gradient", "diff", "roll", "resize",
    "unravel_index", "ravel_multi_index", "iscomplex", "isreal", "append", "cross", "tril", "triu", "vander", "unwrap",
    "diag", "diagflat", "fft.fftshift", "fft.ifftshift", "around", "round", "linalg.cond", "extract", "compress",
    "delete", "cov", "corrcoef", "polynomial.polynomial.polyval", "polynomial.polynomial.polyvalfromroots",
}  # fmt: skip


#: parameters, by place and by name, whose floats are values of elements or tolerances: never counts, axes, flags
#: or what CuPy checks on the caller's line. No layout depends on them (tests/conformance/test_free_floats.py).
_FREE: dict[str, frozenset] = {
    name: frozenset(int(word) if word.isdigit() else word for word in words.split())
    for name, words in {
        "clip": "1 2 min max a_min a_max",
        "where": "1 2",
        "isclose": "2 3 rtol atol",
        "allclose": "2 3 rtol atol",
        "nan_to_num": "nan posinf neginf",
        "interp": "3 4 left right",
    }.items()
}
_NONE: frozenset = frozenset()
_OF_OPERANDS = {"clip", "where"}  # whose arrays are no counts either, which matters where no rule is asked (NumPy 1)
_EXACT = frozenset((int, bool, str, type(None)))
_calls: dict[Any, tuple[int, Meta]] = {}  # signature of ``_quick`` -> number of the function, result's layout


def _remember_call(signature: Any, function: Function, tree: Any) -> None:
    if type(tree) is Meta and tree.c and tree.nbytes <= _SMALL:
        if len(_calls) >= _KEPT:
            _calls.clear()
        _calls[signature] = function.id, tree


def _whole(x: tuple) -> bool:
    """Whether a tuple has only integers that travel as they are, as axes are given."""
    return all(type(n) is int and -(2**63) <= n < 2**63 for n in x)


def _quick(
    stream: Any, name: Any, args: tuple, kwargs: dict, exact: bool, free: frozenset
) -> tuple[Any, list, dict, bool] | None:
    """(signature, wire form, wire form of the keywords, whether floats' values are in the signature) of a call with
    arrays of this device and simple values only, else None: ``_Arguments`` in a quarter of its time."""
    key: list = [name]
    wire: list = []
    held = False
    for place, x in enumerate(args):
        kind = type(x)
        if kind is ndarray and x._stream is stream:
            given = (values.HANDLE, x._handle)
            key.append((x._metadata, wire.index(given)) if given in wire else x._metadata)
            wire.append(given)
        elif kind in _EXACT and (kind is not int or -(2**63) <= x < 2**63):
            key += (kind, x)
            wire.append(x)
        elif kind is float:
            if exact and place not in free:
                key += (float, x)
                held = True
            else:
                key.append(float)
            wire.append(x)
        elif kind is tuple and _whole(x):
            key += (tuple, x)
            wire.append((values.TUPLE, *x))
        else:
            return None
    named = kwargs
    for word, x in kwargs.items():
        kind = type(x)
        if kind is float:
            if exact and word not in free:
                key += (word, float, x)
                held = True
            else:
                key += (word, float)
        elif kind is tuple and _whole(x):
            key += (word, tuple, x)
            named = named | {word: (values.TUPLE, *x)}
        elif kind in _EXACT and (kind is not int or -(2**63) <= x < 2**63):
            key += (word, kind, x)
        else:
            return None
    return tuple(key), wire, named, held


def _again(stream: Any, quick: tuple, found: tuple) -> Any:
    """Submit a call whose signature was met before."""
    fn, meta = found
    handle = next_handle()
    command = (_T_CALL, fn, (handle,), quick[1], quick[2])
    stream.submit_predicted(command, (handle,), (meta,))
    if not quick[3]:
        note(stream, command, handle)
    return new(meta, stream, handle)


def call(name: str, *args: Any, **kwargs: Any) -> Any:
    """Run a declared function and return its result as the user sees it."""
    quick = _quick(stream := pool.current_stream(), name, args, kwargs, True, _FREE.get(name, _NONE))
    if quick is None:
        return _call(name, None, args, kwargs)
    found = _calls.get(quick[0])
    if found is None:
        return _call(name, quick[0], args, kwargs)
    return _again(stream, quick, found)


def _call(name: str, signature: Any, args: tuple, kwargs: dict) -> Any:
    """The long way. ``signature`` is what ``_quick`` made of the call."""
    recorder = listener(args)
    if recorder is not None:
        return recorder.call(name, args, kwargs)
    function = BY_NAME[name]
    kind = function.kind
    if kind == "unary" and len(args) == 1 and not kwargs and isinstance(args[0], Remote):
        return unary(function, args[0])
    stream = pool.current_stream()
    out = kwargs.get("out")
    if kind == "scan" and not isinstance(args[0], Remote):
        raise TypeError(f"Unsupported type {type(args[0])}")
    if isinstance(out, Remote) and out._stream is not stream:
        with out._stream.device:
            return call(name, *args, **kwargs)
    accept = kind in _HOST_KINDS or name in _HOST_FUNCTIONS
    for word in _NUMBERS & kwargs.keys():
        if isinstance(kwargs[word], np.ndarray):
            kwargs[word] = tuple(kwargs[word].ravel().tolist())
    if kind in ("reduce", "scan") and not name.startswith("arg"):  # of positions nothing is lost
        warn_of_lost_parts(args[:1], kwargs.get("dtype"))
    counted = name not in _OF_OPERANDS
    encoded = _Arguments(stream, args, kwargs, accept, True, _FREE.get(name, _NONE))
    if kind in ("mutate", "internal"):
        return run(function, encoded, out)
    if out is not None:
        return into(out, name, args, kwargs)
    if kind == "wait":
        return ask(function, encoded)
    key = encoded.signature(function)
    tree = None if key is None else predict.known.get(key)
    if tree is None:
        found = _learned(stream, key)
        if found is not None:
            return submit(function, encoded, found)
        tree = predict.predict(name, kind, metas(args), {k: metas(x) for k, x in kwargs.items()})
        if tree is None or tree is predict.WAIT:
            held = counted and kind == "pure" and (encoded.single or encoded.few)  # arrays may hold what decides
            return ask(function, encoded, None if held or tree is predict.WAIT else key)
        predict.remember(predict.known, key, tree)
    if signature is not None:
        _remember_call(signature, function, tree)
    return submit(function, encoded, tree)


def warn_of_lost_parts(arrays: Any, dtype: Any) -> None:
    """ComplexWarning when an unsafe cast to ``dtype`` drops imaginary parts."""
    if dtype is None or np.dtype(dtype).kind in "bc":
        return
    if any(isinstance(a, Remote) and a._metadata.dtype.kind == "c" for a in arrays):
        warnings.warn(
            "Casting complex values to real discards the imaginary part",
            np.exceptions.ComplexWarning,
            stacklevel=failures.users_level(),
        )


def into(out: Any, name: str, args: tuple, kwargs: dict) -> Any:
    """``name(..., out=out)``: the result, assigned. Reductions and scans cast as they like, as CuPy's do."""
    if not isinstance(out, Remote):
        raise TypeError(f"Output arguments type must be cupy.ndarray, not {type(out)}")
    casting = kwargs.get("casting") if name == "matmul" else None
    rest = {key: x for key, x in kwargs.items() if key != "out" and (key != "casting" or casting is None)}
    result = call(name, *args, **rest)
    source, target = result._metadata, out._metadata
    if source.shape != target.shape:
        raise ValueError(f"Output shape mismatch: expected {source.shape}, got {target.shape}")
    if name == "dot" and (source.dtype != target.dtype or not target.c):
        raise ValueError("output array is not acceptable (must have the right datatype, and be a C-Array)")
    if name == "take" and source.dtype != target.dtype:
        raise TypeError(f"Output dtype mismatch: expected {source.dtype}, got {target.dtype}")
    if casting is None:
        casting = "unsafe" if BY_NAME[name].kind in ("reduce", "scan") or name.startswith("cumulative") else "same_kind"
    if not np.can_cast(source.dtype, target.dtype, casting):
        raise TypeError(
            f"Cannot cast the result from {source.dtype!r} to {target.dtype!r} with casting rule {casting!r}"
        )
    run_internal("ndarray.astype", out, result)
    return out


def _learned(stream: Any, key: Any) -> Any:
    """What workers like the stream's have answered before: another server's may be of another kind."""
    return None if key is None else predict.learned.get((stream.device.maker, key))


def call_learned(name: str, *args: Any, **kwargs: Any) -> Any:
    """Run an internal function whose result layout its signature decides: the first call waits."""
    return learn(name, args, kwargs)


def learn(name: str, args: tuple, kwargs: dict, exact: bool = False) -> Any:
    """The same; ``exact``: floats may be counts, and what is learned is learned for their values."""
    stream = pool.current_stream()
    quick = _quick(stream, (name, stream.device.maker), args, kwargs, exact, _NONE)
    found = None if quick is None else _calls.get(quick[0])
    if found is not None:
        return _again(stream, quick, found)  # type: ignore[arg-type]
    function = BY_NAME[name]
    out = kwargs.get("out")
    encoded = _Arguments(stream, args, kwargs, True, exact)
    if out is not None:
        return run(function, encoded, out)
    key = None if exact and encoded.single else encoded.signature(function)
    tree = _learned(encoded.stream, key)
    if tree is not None and quick is not None:
        _remember_call(quick[0], function, tree)
    return ask(function, encoded, key) if tree is None else submit(function, encoded, tree)


def run(function: Function, encoded: _Arguments, result: Any = None) -> Any:
    """Submit a call that makes no new array."""
    encoded.stream.submit((_T_CALL, function.id, (), encoded.wire, encoded.wire_kw))
    return result


def submit(function: Function, encoded: _Arguments, tree: Any) -> Any:
    """Submit a call whose results the client knows. They come in C order; what was once in another is put in that."""
    wanted: list[Meta] = []
    flatten(tree, wanted)
    stream, leaves = encoded.stream, [meta if meta.c else ordered(meta, "C") for meta in wanted]
    if sum(meta.nbytes for meta in leaves) > stream.device.memory_total:
        pool.refuse(sum(meta.nbytes for meta in leaves), stream.device)
    handles = [next_handle() for _ in leaves]
    stream.submit_predicted((_T_CALL, function.id, handles, encoded.wire, encoded.wire_kw), handles, leaves)
    arrays = [new(meta, stream, handle) for meta, handle in zip(leaves, handles)]
    return rebuild(tree, iter([x if meta.c else to_order(x, "F") for x, meta in zip(arrays, wanted)]))


def ask(function: Function, encoded: _Arguments, key: Any = None) -> Any:
    """Wait for the worker's answer; learn the layouts when the signature decides them."""
    stream = encoded.stream
    leaves: list[Meta] = []
    answer = stream.ask(function.id, encoded.wire, encoded.wire_kw)

    def result(handle: int, dtype: Any, shape: list, order: str = "C") -> Any:
        meta = predict.fresh(tuple(shape), values.decode_dtype(dtype))
        if order != "C":
            meta = ordered(meta, order)
        leaves.append(meta)
        return new(meta, stream, handle)

    value = values.Decoder(lambda handle: None, result)(answer)
    if key is not None:
        tree = shape_of(value)
        if tree is not None:
            predict.remember(predict.learned, (stream.device.maker, key), tree)
    return value


def shape_of(value: Any) -> Any:
    """Tree of layouts of a result made of arrays only, else None."""
    if isinstance(value, Remote):
        return value._metadata
    if isinstance(value, tuple | list) and value:
        items = [shape_of(item) for item in value]
        return None if any(item is None for item in items) else type(value)(items)
    return None


def flatten(tree: Any, into: list) -> None:
    if type(tree) is Meta:
        into.append(tree)
    else:
        for item in tree:
            flatten(item, into)


def rebuild(tree: Any, arrays: Any) -> Any:
    if type(tree) is Meta:
        return next(arrays)
    return type(tree)(rebuild(item, arrays) for item in tree)


def run_internal(name: str, *args: Any, **kwargs: Any) -> None:
    """Submit a declared internal function that makes no new array, on its first argument's device."""
    encoded = _Arguments(args[0]._stream, args, kwargs, True)
    run(BY_NAME[name], encoded)


def call_predicted(name: str, tree: Any, *args: Any, **kwargs: Any) -> Any:
    """Submit a declared function whose result layout the caller already knows."""
    return submit(BY_NAME[name], _Arguments(pool.current_stream(), args, kwargs, True), tree)
