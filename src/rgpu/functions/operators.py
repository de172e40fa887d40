"""The array's operators, and its methods that are also functions: from tables, not written by hand.

An operator issues one command, or leaves the work to the other operand by Python's protocol. Exact arrays of
the current device, or a number, in layouts seen before, go a short way: the C core's (csrc/issue_module.c), or without
it ``_forward`` and its kin here. Everything else goes ``dispatch``'s.
"""

from __future__ import annotations

from functools import partial
from sys import _getframe
from typing import Any

import numpy as np

from rgpu import _native
from rgpu.client import pool, repeat
from rgpu.client.failures import outside, place_of
from rgpu.client.queue import next_handle
from rgpu.client.quick import quick
from rgpu.client.remote import Remote
from rgpu.client.stream import BATCH
from rgpu.client.ticker import ticker
from rgpu.functions import creation, dispatch, indexing
from rgpu.functions.ufunc import UFUNCS
from rgpu.wire import ops, values
from rgpu.wire.functions import BY_NAME

_T_UNARY, _T_BINARY, _T_INPLACE, _INT = ops.Unary.tag, ops.Binary.tag, ops.Inplace.tag, values.INT
_FULL = 2 * BATCH  # a queued command takes two entries
_new = object.__new__
OPERANDS = (Remote, np.ndarray, bool, int, float, complex, np.generic)
_PRIORITY = 100
known: set = {float, int, bool, complex}  # and the array class: operands that never take over


def options(**options: Any) -> dict:
    """Keyword arguments without those that say nothing, so that signatures stay few."""
    return {key: value for key, value in options.items() if value is not None and value is not False}


_OPERATORS = {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "true_divide", "floordiv": "floor_divide",
    "mod": "remainder", "pow": "power", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
    "lshift": "left_shift", "rshift": "right_shift",
}  # fmt: skip
_WHOLE = {"divmod": "divmod", "matmul": "matmul"}  # without a form in place
COMPARISONS = {
    "eq": "equal",
    "ne": "not_equal",
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
}
_UNARIES = {"neg": "negative", "pos": "positive", "invert": "invert", "abs": "absolute"}
#: method -> parameters after self, for functions of the same name
_METHODS = {
    "sum": "axis dtype out keepdims", "prod": "axis dtype out keepdims", "mean": "axis dtype out keepdims",
    "std": "axis dtype out ddof keepdims", "var": "axis dtype out ddof keepdims", "min": "axis out keepdims",
    "any": "axis out keepdims", "all": "axis out keepdims", "argmax": "axis dtype out keepdims",
    "argmin": "axis dtype out keepdims", "ptp": "axis out keepdims", "cumsum": "axis dtype out",
    "cumprod": "axis dtype out", "argsort": "axis", "argpartition": "kth axis", "clip": "min max out",
    "round": "decimals out", "dot": "b out", "take": "indices axis out", "repeat": "repeats axis",
    "choose": "choices out mode", "compress": "condition axis out", "trace": "offset axis1 axis2 dtype out",
    "searchsorted": "v side sorter", "nonzero": "",
}  # fmt: skip


#: the methods' first parameter, where it must be there
_FIRST = {
    "dot": "b", "take": "indices", "repeat": "repeats", "choose": "choices", "searchsorted": "v",
    "argpartition": "kth", "compress": "condition",
}  # fmt: skip


def _defers(other: Any) -> bool:
    """Whether an operator must leave the work to the other operand (Python's protocol)."""
    if isinstance(
        other, Remote | bool | int | float | complex | np.generic | np.ndarray | list | tuple | str
    ):
        return False
    if hasattr(other, "__array_ufunc__"):
        return other.__array_ufunc__ is None
    return getattr(other, "__array_priority__", 0) > _PRIORITY


def _equality(name: str, different: bool) -> Any:
    """``==`` and ``!=``: an object with nothing but Python's default comparison equals no element."""
    function, own = BY_NAME[name], "__ne__" if different else "__eq__"

    def compare(self: Any, other: Any) -> Any:
        if type(other) in known:
            return dispatch.binary(function, self, _comparable(self, other))
        if _defers(other):
            return NotImplemented
        kind = type(other)
        if other is None or (kind.__eq__ is object.__eq__ and getattr(kind, own) is getattr(object, own)):
            return (creation.ones if different else creation.zeros)(self._metadata.shape, bool)
        if isinstance(other, np.ndarray) and not other.ndim:
            other = other[()]
        if not isinstance(other, OPERANDS):
            return getattr(np, name)(self, other)  # NumPy's protocol decides, or refuses
        return UFUNCS[name](self, other)

    compare.__name__ = own
    return compare


def _comparable(array: Any, other: Any) -> Any:
    """What a truth value compares with: an integer that no dtype holds is just one that is larger or smaller."""
    if type(other) is int and not -(2**63) <= other < 2**63 and array._metadata.dtype.kind == "b":
        return 2 if other > 0 else -1
    return other


def _comparison(name: str) -> Any:
    function = BY_NAME[name]

    def compare(self: Any, other: Any) -> Any:
        if type(other) in known or not _defers(other):
            return dispatch.binary(function, self, _comparable(self, other))
        return NotImplemented

    return compare


class _Binary:
    """The two long ways of an operator, ``a + b`` and ``b + a``."""

    def __init__(self, name: str) -> None:
        self.function: Any = BY_NAME.get(name)
        self.call = partial(dispatch.call, name) if name == "matmul" else partial(dispatch.binary, self.function)
        if name == "divmod":
            self.call = UFUNCS[name]

    def forward(self, a: Any, b: Any) -> Any:
        return self.call(a, b) if type(b) in known or not _defers(b) else NotImplemented

    def reflected(self, a: Any, b: Any) -> Any:
        return self.call(b, a) if not _defers(b) else NotImplemented

    def inplace(self, a: Any, b: Any) -> Any:
        return dispatch.inplace(self.function, a, b) if not _defers(b) else NotImplemented

    def either(self, a: Any, b: Any) -> Any:
        """What Python's protocol makes of ``a + b``, from within the one slot that C has for both ways."""
        if isinstance(a, Remote):
            result = self.forward(a, b)
            if result is not NotImplemented or not isinstance(b, Remote):
                return result
        return self.reflected(b, a)


def install(ndarray: Any) -> None:
    """Give the class its operators and the methods that are also functions."""
    known.add(ndarray)
    (_install_pure if _native.issue is None else _install_compiled)(ndarray)
    for name, parameters in _METHODS.items():
        setattr(ndarray, name, quick()(_method(name, parameters.split())))


def _install_compiled(ndarray: Any) -> None:
    """The C core's class has the operators; they are told what to ask."""
    _native.issue.configure(array=ndarray)

    def give(name: str, slow: Any, **how: bool) -> None:
        _native.issue.set_operator(name, _native.issue.Quick(slow, **how))

    for name, target in (_OPERATORS | _WHOLE).items():
        operator = _Binary(target)
        give(name, operator.either, numbers=True)
        if name in _OPERATORS:
            give(f"i{name}", operator.inplace, numbers=True, anywhere=True)
    for name, target in COMPARISONS.items():
        give(name, _compare(name, target), numbers=True)
    for name, target in _UNARIES.items():
        give(name, partial(dispatch.unary, BY_NAME[target]))
    give("getitem", indexing.getitem, anywhere=True)


def _install_pure(ndarray: Any) -> None:
    repeat.array = ndarray

    def give(name: str, method: Any) -> None:
        method.__name__ = f"__{name}__"
        setattr(ndarray, method.__name__, method)

    for name, target in (_OPERATORS | _WHOLE).items():
        operator = _Binary(target)
        short = name in _OPERATORS
        slow = operator.forward
        give(name, _forward(operator.function, ndarray, slow) if short else quick(numbers=True)(slow))
        give(f"r{name}", quick(numbers=True)(operator.reflected))
        if short:
            give(f"i{name}", _inplace(operator.function, ndarray, operator.inplace))
    for name, target in COMPARISONS.items():
        give(name, _forward(BY_NAME[target], ndarray, _compare(name, target)))
    for name, target in _UNARIES.items():
        give(name, _forward_unary(BY_NAME[target], ndarray))
    give("getitem", quick(anywhere=True)(indexing.getitem))


def _compare(name: str, target: str) -> Any:
    return _equality(target, name == "ne") if target in ("equal", "not_equal") else _comparison(target)


# ---- the short way without the C core: from the user's line to the queue in one function -----------------------


def _forward(function: Any, array: Any, slow: Any) -> Any:
    fn, layouts = function.id, dispatch.known[function.id]

    def forward(self: Any, other: Any) -> Any:
        stream, kind, found = self._stream, type(other), None
        if kind is array:
            if other._stream is stream:
                found, wire = layouts.get((self._metadata, other._metadata)), other._handle
        elif kind is float:
            found, wire = layouts.get((self._metadata, float)), other
        elif kind is int and -(2**31) <= other < 2**31:
            found, wire = layouts.get((self._metadata, int if 0 <= other <= 127 else dispatch.WIDE)), (_INT, other)
        if found is None or type(self) is not array or stream is not pool._thread.stream or not stream.direct:
            return slow(self, other)
        handle = next_handle()
        _enter(stream, (_T_BINARY, fn, handle, self._handle, wire), _getframe(1))
        result = _new(array)
        result._handle, result._metadata, result._stream = handle, found, stream
        result._root, result._offset = None, 0
        return result

    return forward


def _forward_unary(function: Any, array: Any) -> Any:
    fn, layouts = function.id, dispatch.known[function.id]

    def operator(self: Any) -> Any:
        stream, found = self._stream, layouts.get(self._metadata)
        if found is None or type(self) is not array or stream is not pool._thread.stream or not stream.direct:
            return dispatch.unary(function, self)
        handle = next_handle()
        _enter(stream, (_T_UNARY, fn, handle, self._handle), _getframe(1))
        result = _new(array)
        result._handle, result._metadata, result._stream = handle, found, stream
        result._root, result._offset = None, 0
        return result

    return operator


def _inplace(function: Any, array: Any, slow: Any) -> Any:
    fn, layouts = function.id, dispatch.known[function.id]

    def inplace(self: Any, other: Any) -> Any:
        stream, kind, found = self._stream, type(other), None
        if kind is array:
            if other._stream is stream:
                found, wire = layouts.get((self._metadata, other._metadata, "in place")), other._handle
        elif kind is float:
            found, wire = layouts.get((self._metadata, float, "in place")), other
        elif kind is int and 0 <= other <= 127:
            found, wire = layouts.get((self._metadata, int, "in place")), (_INT, other)
        if found is None or not stream.direct:
            return slow(self, other)
        _enter(stream, (_T_INPLACE, fn, self._handle, wire), _getframe(1))
        return self

    return inplace


def _enter(stream: Any, command: tuple, frame: Any) -> None:
    """What ``CommandStream.submit`` does."""
    code, pending = frame.f_code, stream.pending
    pending += (command, (code, frame.f_lasti) if outside.get(code.co_filename) else place_of(frame))
    if len(pending) >= _FULL:
        stream.flush_batch()
    elif not stream.armed:
        stream.armed = True
        ticker.arm()


def _method(name: str, parameters: list[str]) -> Any:
    simple = name != "clip" and name not in _FIRST  # needs nothing but the array

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not args and not kwargs and simple:
            return dispatch.call(name, self)
        if len(args) > len(parameters):
            raise TypeError(f"{name}() takes at most {len(parameters)} arguments ({len(args)} given)")
        for key, value in zip(parameters, args):
            if key in kwargs:
                raise TypeError(f"{name}() got multiple values for argument '{key}'")
            kwargs[key] = value
        given = options(**kwargs)
        if name in ("argsort", "argpartition") and "axis" in kwargs:
            given["axis"] = kwargs["axis"]  # None means flattened, and is not what leaving it out means
        return _call_on(self, name, given)

    method.__name__ = name
    method.__doc__ = f"See ``cupy.{name}``."
    return method


def _call_on(array: Any, name: str, options: dict) -> Any:
    if name == "clip":
        return dispatch.call("clip", array, options.pop("min", None), options.pop("max", None), **options)
    if name == "compress":
        return dispatch.call("compress", options.pop("condition"), array, **options)
    first = _FIRST.get(name)
    if first is not None:
        return dispatch.call(name, array, options.pop(first), **options)
    return dispatch.call(name, array, **options)
