"""What runs a message's commands: the C core's loop (csrc/execute_loop.c), its twin here, or nobody but the executor.

The twin does in place what small programs consist of, on NumPy's arrays: element-wise functions, calls with arrays and
plain values, and freeing. Whatever is unusual about a command in any way is the executor's, and nothing of it has
happened; so are its errors.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy import ndarray

from rgpu import _native
from rgpu.errors import ProtocolError
from rgpu.server.backend import Backend
from rgpu.server.table import PureTable
from rgpu.wire import codec, limits, ops, values
from rgpu.wire.functions import TABLE

_T_FREE, _T_VIEW, _T_CALL = ops.Free.tag, ops.View.tag, ops.Call.tag
_T_UNARY, _T_BINARY, _T_INPLACE = ops.Unary.tag, ops.Binary.tag, ops.Inplace.tag
_PLAIN = frozenset((type(None), bool, int, float, str, bytes))
_DOUBLE = np.dtype("d").num  # the last of the dtypes whose reductions are NumPy's own
_SCALARS = frozenset(np.dtype(char).type for char in "?bBhHiIlLqQfd")
_OPERANDS = frozenset((ndarray, int, float))
_FEW = 8  # arguments


class NoLoop:
    """Where no loop is: every message goes the long way."""

    chunk = 0
    lent = False  # an array's memory may still be on its way to the client
    watched = False  # every command goes through the handlers, which record it
    answered = 0
    twin = False  # new memory and reads go through their handlers: there is another worker

    def run(self, executor: Any, body: bytes, payload: list) -> tuple[int, list | None] | None:
        """The number of commands run, and the last one's answer if that is still to be told; None: this is no message,
        or not for a loop, and nothing has happened."""
        return None

    def answer(self, frames: list) -> None:
        return None

    def place(self, frames: list) -> Any:
        """Where the next frame of this message belongs; NotImplemented: the executor knows."""
        return NotImplemented

    def define(self, *template: Any) -> None:
        """It is kept elsewhere as well."""


class PureLoop(NoLoop):
    """The loop in Python. A way returns whether it has run the command."""

    def __init__(self, table: PureTable, functions: list, shortcuts: list) -> None:
        self._table = table
        self._get, self._put, self._release = table.entries.get, table.put, table.release
        self._functions = functions
        self._ufuncs = {number: f for number, f in enumerate(functions) if type(f) is np.ufunc}
        self._reductions = {n: x[0].reduce for n, x in enumerate(shortcuts) if type(x) is tuple and len(x) == 1}
        self._ways = {
            _T_FREE: self._free, _T_UNARY: self._unary, _T_BINARY: self._binary, _T_INPLACE: self._inplace,
            _T_CALL: self._call, _T_VIEW: self._view,
        }  # fmt: skip

    def run(self, executor: Any, body: bytes, payload: list) -> tuple[int, list | None] | None:
        try:
            batch, commands = codec.unpack(body)
        except (ProtocolError, TypeError, ValueError):
            return None
        if type(batch) is not int or batch < 0 or type(commands) is not list or len(commands) > limits.BATCH:
            return None
        index, ways = 0, self._ways
        for command in commands:
            way = ways.get(command[0]) if type(command) is list and command and type(command[0]) is int else None
            try:
                done = way is not None and not self.watched and way(executor, command)
            except ProtocolError:
                raise
            except Exception as error:  # whatever a function raises belongs to the client
                executor.fail(error, batch, index, command)
                done = True
            index += 1 if done else executor._run(batch, index, command)
        return index, None

    @staticmethod
    def _number(x: Any) -> Any:
        """An operand that is no handle; None for what the executor has to look at."""
        if type(x) is list and len(x) == 2 and x[0] == values.INT and type(x[1]) is int:
            return x[1]
        return x if type(x) is float else None

    def _view(self, executor: Any, command: list) -> bool:
        if len(command) != 7:
            return False
        _, out, root, dtype, shape, strides, offset = command
        if (
            type(out) is not int
            or type(root) is not int
            or type(offset) is not int
            or type(dtype) is not str
            or out < 1
        ):
            return False
        base = self._get(root)
        if (
            type(base) is not ndarray
            or base.dtype.num > _DOUBLE
            or not base.flags.c_contiguous
            or self._table.root(root)
        ):
            return False
        if type(shape) is not list or type(strides) is not list or not len(shape) == len(strides) <= limits.NDIM:
            return False
        kind = values.decode_dtype(dtype)
        low, high = offset, offset + kind.itemsize
        for extent, stride in zip(shape, strides):
            if type(extent) is not int or type(stride) is not int or extent < 1:
                return False
            if stride < 0:
                low += (extent - 1) * stride
            else:
                high += (extent - 1) * stride
        if low < 0 or high > base.nbytes:
            return False
        self._table.put_view(out, ndarray(shape, kind, base, offset, strides), root)
        return True

    def _unary(self, executor: Any, command: list) -> bool:
        if len(command) != 4:
            return False
        _, fn, out, a = command
        if type(fn) is not int or type(out) is not int or type(a) is not int or out < 1:
            return False
        function, x = self._ufuncs.get(fn), self._get(a)
        if function is None or type(x) is not ndarray:
            return False
        result = function(x)
        if type(result) is ndarray and result.flags.c_contiguous:  # nobody else's: a ufunc has made it
            self._put(out, result, result.nbytes)
        else:
            executor.bind_fresh(out, result)
        return True

    def _binary(self, executor: Any, command: list) -> bool:
        if len(command) != 5:
            return False
        _, fn, out, a, b = command
        if type(fn) is not int or type(out) is not int or out < 1 or (function := self._ufuncs.get(fn)) is None:
            return False
        get = self._get
        x = get(a) if type(a) is int else self._number(a)
        y = get(b) if type(b) is int else self._number(b)
        if type(x) not in _OPERANDS or type(y) not in _OPERANDS:
            return False
        result = function(x, y)
        if type(result) is ndarray and result.flags.c_contiguous:  # nobody else's: a ufunc has made it
            self._put(out, result, result.nbytes)
        else:
            executor.bind_fresh(out, result)
        return True

    def _inplace(self, executor: Any, command: list) -> bool:
        if len(command) != 4:
            return False
        _, fn, a, b = command
        if type(fn) is not int or type(a) is not int or (function := self._ufuncs.get(fn)) is None:
            return False
        x, y = self._get(a), self._get(b) if type(b) is int else self._number(b)
        if type(x) is not ndarray or type(y) not in _OPERANDS:
            return False
        if self.lent:
            executor.settle()
        function(x, y, x)
        return True

    def _call(self, executor: Any, command: list) -> bool:
        if len(command) != 5:
            return False
        _, fn, outs, args, kwargs = command
        if type(fn) is not int or not 0 <= fn < len(self._functions) or type(outs) is not list or len(outs) > 1:
            return False
        out = outs[0] if outs else 1
        if type(out) is not int or out < 1 or type(args) is not list or type(kwargs) is not dict:
            return False
        if len(args) > _FEW or len(kwargs) > _FEW:
            return False
        arrays, given = [], []
        for x in args:
            if type(x) is list and len(x) == 2 and x[0] == values.HANDLE and type(x[1]) is int:
                x = self._get(x[1])
                if type(x) is not ndarray:
                    return False
                arrays.append(x)
            elif type(x) not in _PLAIN:
                return False
            given.append(x)
        for word, x in kwargs.items():
            if type(word) is not str or len(word) > limits.TEXT or type(x) not in _PLAIN:
                return False
        if self._reduced(executor, fn, outs, given, kwargs):
            return True
        if self.lent:
            executor.settle()
        self._bound(executor, fn, outs, self._functions[fn](*given, **kwargs), arrays)
        return True

    def _reduced(self, executor: Any, fn: int, outs: list, given: list, kwargs: dict) -> bool:
        """What NumPy's functions do in the end, of a whole array or over one axis."""
        reduction = self._reductions.get(fn)
        if reduction is None or len(given) != 1 or not outs or type(x := given[0]) is not ndarray:
            return False
        axis = kwargs.get("axis") if kwargs else None
        if x.dtype.num > _DOUBLE or (kwargs and (len(kwargs) > 1 or type(axis) is not int)):
            return False
        self._bound(executor, fn, outs, reduction(x, axis), given)
        return True

    def _bound(self, executor: Any, fn: int, outs: list, result: Any, arrays: list) -> None:
        """Enter what a call returned."""
        if not outs:
            return
        if type(result) in _SCALARS:
            self._put(outs[0], np.array(result), result.nbytes)
            return
        if type(result) is ndarray and result.flags.owndata and result.flags.c_contiguous:
            for x in arrays:
                if x is result:
                    break
            else:
                self._put(outs[0], result, result.nbytes)
                return
        executor.arguments[:] = arrays
        executor.bind_results(outs, result, fn)
        executor.arguments.clear()

    def _free(self, executor: Any, command: list) -> bool:
        if len(command) != 2 or type(command[1]) is not list or len(command[1]) > limits.HANDLES:
            return False
        for handle in command[1]:
            if type(handle) is not int or handle < 1:
                return False
        self._release(command[1])
        return True


def loop_of(table: Any, backend: Backend, functions: list, watched: Iterable[int] = ()) -> Any:
    """The loop for a backend whose arrays are NumPy's. It does not do by itself what ``watched`` functions do."""
    if backend.array is not ndarray:
        return NoLoop()
    shortcuts = [backend.shortcuts.get(function.name) for function in TABLE]
    for number in watched:
        shortcuts[number] = None
    if type(table) is PureTable:
        return PureLoop(table, functions, shortcuts)
    if _native.execute is None or not isinstance(table, _native.execute.Table):
        return NoLoop()
    return _native.execute.Loop(table, functions, shortcuts, np.ufunc, backend.at_rest)
