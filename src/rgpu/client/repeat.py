"""Calls that were made before, without the C core: the twin of csrc/issue_quick.c.

Of a call whose signature is known only the handles and numbers are new: they are put into the bytes that were sent
then. A signature holds all that decides what a call sends and returns, so two that are equal may be taken for one
another.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from operator import itemgetter
from sys import _getframe
from typing import Any

import numpy as np

from rgpu.client import pool
from rgpu.client.failures import outside, place_of
from rgpu.client.queue import BATCH, next_handle
from rgpu.client.remote import root_of
from rgpu.client.ticker import ticker
from rgpu.wire import codec

OUT, HANDLE, ROOT, OFFSET, NUMBER = range(5)  # what stands in a hole of a command
NOTHING, ITSELF, FRESH, VIEW = range(1, 5)  # what a call returns
_ELEMENTS = 48  # of a signature; longer ones are not remembered
_TEXT = 256  # characters
_DEPTH = 3  # of tuples in tuples
_KEPT = 4096  # signatures of one function: a program that makes endless shapes must not keep them
_TRIES = 4  # calls of one signature after which nobody asks any more; the first is not worth asking
#: The dtypes of single numbers: there is one object of each, which nobody can change.
DTYPES = tuple(dict.fromkeys(np.dtype(char) for char in "?bBhHiIlLqQefdFD"))
_dtypes = {id(dtype) for dtype in DTYPES}
# Say in a signature what follows; nothing else equals them, so 1 is not taken for True, nor a name for a text.
_INT, _SMALL, _WIDE, _FLOAT, _SLICE, _TUPLE, _NAME, _DTYPE, _OBJECT, _SAME = (object() for _ in range(10))
_PLAIN = frozenset((str, bool, type(None), type(Ellipsis), type))  # equal only to what is the same
_EDGES = frozenset((int, type(None)))  # of slices
_FULL = 2 * BATCH  # a queued command takes two entries
_new = object.__new__
array: Any = None  # the class of arrays, once there is one


def _sign(x: Any, key: list, things: list, values: list, numbers: bool, depth: int = 0) -> bool:
    """Add what an argument says to the signature; False for one that has to be looked at each time."""
    kind = type(x)
    if kind is array:
        key.append(x._metadata)
        things.append(x)
        values.append(x._handle)
    elif kind is float or (kind is int and numbers):
        if kind is float:
            key.append(_FLOAT)  # its value never decides a layout
        elif -(2**31) <= x < 2**31:
            key.append(_SMALL if 0 <= x <= 127 else _WIDE)  # every dtype holds the small ones
        else:
            return False
        things.append(x)
        values.append(x)
    elif kind is int:
        key += (_INT, x)
    elif kind in _PLAIN:
        key.append(x)
    elif kind is slice:
        start, stop, step = x.start, x.stop, x.step
        key += (_SLICE, start, stop, step)
        return type(start) in _EDGES and type(stop) in _EDGES and type(step) in _EDGES
    elif kind is tuple and depth < _DEPTH and len(x) < _ELEMENTS:
        key += (_TUPLE, len(x))
        for item in x:
            if not _sign(item, key, things, values, numbers, depth + 1):
                return False
    elif id(x) in _dtypes:
        key += (_DTYPE, x)
    else:
        return False
    return True


class _Repetition:
    """How to repeat calls of one signature: what ``learn`` said of one. ``fill(out, values, root, offset)`` gives the
    command of such a call: with the result's handle, those of the arrays and the numbers, and for a view the root's
    handle and the place in it."""

    __slots__ = ("fill", "returns", "meta", "offset", "inside", "kept")

    def __init__(self, lesson: tuple, arrays: list, numbers: list, things: list, kept: Any) -> None:
        data, holes, self.returns, self.meta, self.offset, self.inside = lesson
        self.kept = kept  # the object that decides by its identity
        layout, constants, places, end = ">", [], [], 0
        for at, kind, index in holes:
            number = numbers[index] if kind == NUMBER else None
            code, mark = ("d", codec.FLOAT64) if type(number) is float else ("Q", codec.UINT64)
            if kind == OFFSET or type(number) is int:
                code, mark = "q", codec.INT64
            thing = arrays[index] if kind == HANDLE else number
            places.append(_PLACES[kind] if kind in _PLACES else 3 + next(i for i, x in enumerate(things) if x is thing))
            constants.append(data[end:at] + bytes([mark]))
            layout += f"{at + 1 - end}s{code}"
            end = at + 9
        self.fill = _filler(struct.Struct(f"{layout}{len(data) - end}s").pack, [*constants, data[end:]], places)


_PLACES = {OUT: 0, ROOT: 1, OFFSET: 2}  # of what stands in a hole, before the call's arrays and numbers


def _filler(pack: Callable[..., bytes], constants: list[bytes], places: list[int]) -> Callable[..., bytes]:
    """The values in these places between constants; what is frequent without a detour."""
    if places == [0, 3]:
        head, between, tail = constants
        return lambda out, values, root=0, offset=0: pack(head, out, between, values[0], tail)
    if places == [0, 3, 4]:
        head, first, second, tail = constants
        return lambda out, values, root=0, offset=0: pack(head, out, first, values[0], second, values[1], tail)
    order = [x for i, place in enumerate(places) for x in (i, len(constants) + place)]
    pick = itemgetter(*order, len(places))
    return lambda out, values, root=0, offset=0: pack(*pick((*constants, out, root, offset, *values)))


def repeating(
    function: Callable[..., Any],
    learn: Callable[..., Any],
    *,
    numbers: bool = False,
    anywhere: bool = False,
    itself: bool = False,
    here: bool = False,
) -> Callable[..., Any]:
    """The function, whose repeated calls go the short way (``client.quick`` says what the words mean)."""
    known: dict[tuple, Any] = {}  # signature -> its repetition, or how often it was met

    def sign(args: tuple, named: dict) -> tuple | None:
        """The signature; the call's arrays and numbers, and what stands for them in a command; the first array and
        its stream."""
        key: list = []
        things: list = []
        values: list = []
        for x in args:
            if type(x) is array:  # the most frequent, in place
                key.append(x._metadata)
                things.append(x)
                values.append(x._handle)
            elif not _sign(x, key, things, values, numbers):
                if key or not itself:
                    return None
                key += (_OBJECT, id(x))
        for name, x in named.items():
            key += (_NAME, name)
            if not _sign(x, key, things, values, numbers):
                return None
        first, stream = None, pool._thread.stream if here else None
        for x in things:
            if type(x) is array:
                if first is None and not here:
                    first, stream = x, x._stream
                elif x._stream is not stream or here:
                    return None
        if stream is None or len(key) > _ELEMENTS:
            return None
        key.append(stream.number)
        if len(things) > 1 and len({*map(id, things)}) < len(things):  # which of them are one may decide
            ids = [*map(id, things)]
            key += (_SAME, *map(ids.index, ids))
        return tuple(key), things, values, first, stream

    def call(*args: Any, **named: Any) -> Any:
        key: tuple | None = None
        values: Any
        first = args[0] if args else None
        if type(first) is array and not named:  # the frequent cases of ``sign`` in place
            stream = first._stream
            if len(args) == 1:
                key, values = (first._metadata, stream.number), (first._handle,)
            elif len(args) == 2:
                x = args[1]
                kind = type(x)
                if kind is array:
                    if x is not first and x._stream is stream:
                        key = (first._metadata, x._metadata, stream.number)
                        values = (first._handle, x._handle)
                elif kind is float:
                    key, values = (first._metadata, _FLOAT, stream.number), (first._handle, x)
                elif kind is int and not numbers:
                    key, values = (first._metadata, _INT, x, stream.number), (first._handle,)
                elif kind is slice:
                    start, stop, step = x.start, x.stop, x.step
                    if type(start) in _EDGES and type(stop) in _EDGES and type(step) in _EDGES:
                        key = (first._metadata, _SLICE, start, stop, step, stream.number)
                        values = (first._handle,)
        if key is None:
            signed = sign(args, named)
            if signed is None:
                return function(*args, **named)
            key, _, values, first, stream = signed
        if not stream.direct or (stream is not pool._thread.stream and not anywhere):
            return function(*args, **named)
        found = known.get(key)
        if type(found) is not _Repetition:
            return slowly(stream, args, named)
        if (returns := found.returns) is FRESH:
            handle = next_handle()
            data = found.fill(handle, values)
            result = _new(array)
            result._handle, result._metadata, result._stream = handle, found.meta, stream
            result._root, result._offset = None, 0
        elif returns is VIEW:
            handle = next_handle()
            root = first if first._root is None else root_of(first)
            offset = first._offset + found.offset if found.inside else 0
            data = found.fill(handle, values, root._handle, offset)
            result = _new(array)
            result._handle, result._metadata, result._stream = handle, found.meta, stream
            result._root, result._offset = root, offset
        else:
            data, result = found.fill(0, values), None if returns == NOTHING else first
        frame, pending = _getframe(1), stream.pending
        code = frame.f_code
        pending += (data, (code, frame.f_lasti) if outside.get(code.co_filename) else place_of(frame))
        if not stream.armed:
            stream.armed = True
            ticker.arm()
        if stream.check and returns >= FRESH:
            stream.expect(result)
        if len(pending) >= _FULL:
            stream.flush_batch()
        return result

    def slowly(stream: Any, args: tuple, named: dict) -> Any:
        before = stream.total
        result = function(*args, **named)
        # The arguments are alive, but what they are may have changed: their signature is made anew.
        if stream.total == before + 1 + stream.check and (signed := sign(args, named)) is not None:
            try:
                remember(signed, args, result)
            except Exception:
                pass  # nobody's: the call has succeeded
        return result

    def remember(signed: tuple, args: tuple, result: Any) -> None:
        key, things, _, _, stream = signed
        met = known.get(key, 0)
        if type(met) is not int or met >= _TRIES or (here and type(result) is not array):
            return
        if any(type(x) is str and len(x) > _TEXT or type(x) is int and x.bit_length() > 64 for x in key):
            return  # thousands of such keys would be much
        if len(known) >= _KEPT:
            known.clear()
        known[key] = met + 1
        if met:
            arrays = list({id(x): x for x in things if type(x) is array}.values())
            figures = [x for x in things if type(x) is not array]
            lesson = learn(arrays, figures, result, stream)
            if lesson is not None:
                known[key] = _Repetition(lesson, arrays, figures, things, args[0] if itself else None)

    functools.update_wrapper(call, function)
    call.known = known
    return call
