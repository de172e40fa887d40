"""Calls that were made before, issued the short way: it is decided once what a signature means.

``quick`` puts the C core's ``Quick`` before a function, or its twin (``client.repeat``). When a call has put exactly
one command into the queue and the function's room has noted it as one that the signature decides (``note``), ``learn``
turns the command into bytes with holes for handles and numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from rgpu import _native
from rgpu.client import failures
from rgpu.client.remote import root_of
from rgpu.client.repeat import DTYPES, FRESH, HANDLE, ITSELF, NOTHING, NUMBER, OFFSET, OUT, ROOT, VIEW, repeating
from rgpu.wire import codec, declare, ops, values

_LARGE = 16 << 20  # bytes that a device might refuse
_MARK = 0xFEDC_BA98_7654_0000  # + n: stands for hole n while a command is encoded; nine bytes, as what replaces it


def quick(**how: bool) -> Callable[[Callable[..., Any]], Any]:
    """A decorator: repeated calls of the function are issued the short way.

    ``numbers``: integers are alike in what they decide, those from 0 to 127 and the others of 32 bits;
    ``anywhere``: it works on its first array's device; ``itself``: the first argument is an object that decides
    by its identity; ``here``: it takes no arrays and works on the current device.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        if _native.issue is None:
            return repeating(function, learn, **how)
        return functools.update_wrapper(_native.issue.Quick(function, **how), function)

    return decorate


def note(stream: Any, command: tuple, handle: int = 0) -> None:
    """``command``, just submitted, is what its signature will always send; ``handle``: its result's."""
    stream.noted = (stream.total, command, handle)


class _Template:
    """A command on its way to bytes with holes."""

    def __init__(self, arrays: list, numbers: list, out: int) -> None:
        self.numbers, self.found = numbers, 0
        self.out = out
        self.handles = {array._handle: i for i, array in enumerate(arrays)}
        self.holes: list[tuple[int, int]] = []

    def hole(self, kind: int, index: int = 0) -> int:
        self.holes.append((kind, index))
        return _MARK + len(self.holes) - 1

    def handle(self, x: Any) -> Any:
        if x == self.out:
            return self.hole(OUT)
        return self.hole(HANDLE, self.handles[x]) if x in self.handles else x

    def value(self, x: Any) -> Any:
        if type(x) in (list, tuple):
            if len(x) == 2 and x[0] == values.HANDLE:
                return [values.HANDLE, self.handle(x[1])]
            if len(x) == 2 and x[0] == values.INT:
                return [values.INT, self.number(x[1])]
            return [self.value(item) for item in x]
        return self.number(x) if type(x) is float else x

    def number(self, x: Any) -> Any:
        for i, number in enumerate(self.numbers):
            if number is x:
                self.found += 1
                return self.hole(NUMBER, i)
        return x

    def field(self, kind: Any, x: Any) -> Any:
        if kind is declare.HANDLE:
            return self.handle(x)
        if kind is declare.HANDLES:
            return [self.handle(item) for item in x]
        if kind is values.OPERAND:
            return self.handle(x) if type(x) is int else self.value(x)
        if kind is values.VALUES:
            return [self.value(item) for item in x]
        if kind is values.VALUE_MAP:
            return {name: self.value(item) for name, item in x.items()}
        return x

    def encoded(self, command: list) -> tuple[bytes, tuple]:
        data, at = codec.pack(command), []
        for i, (kind, index) in enumerate(self.holes):
            mark = bytes([codec.UINT64]) + (_MARK + i).to_bytes(8, "big")
            if data.count(mark) != 1:
                raise ValueError("a number of the command looks like a mark")
            at.append((data.index(mark), kind, index))
        return data, tuple(at)


def learn(arrays: list, numbers: list, result: Any, stream: Any) -> tuple | None:
    """How to repeat the call that was just made with these arrays and gave this result; None: not at all.
    (bytes, ((position, kind, index), ...), what it returns, layout, offset in the array, whether that counts)"""
    if stream.noted is None or stream.noted[0] + (stream.check and result is not None) < stream.total:
        return None
    _, command, handle = stream.noted
    stream.noted = None
    if len({*map(id, numbers)}) < len(numbers):
        return None  # which of two holes would be whose: ``clip(a, 0.5, 0.5)``, of one constant of the program
    template = _Template(arrays, numbers, handle)
    fields = ops.Command.registry[command[0]].fields
    if not handle:
        if result is not None and result is not arrays[0]:
            return None
        returns, meta, offset = (NOTHING if result is None else ITSELF), None, 0
    elif (arrays and type(result) is not type(arrays[0])) or result._handle != handle:
        return None
    else:
        returns, meta, offset = FRESH, result._metadata, 0
        if result._root is None and meta.nbytes > _LARGE:
            return None  # whether the device holds it is asked each time
    if command[0] == ops.View.tag:
        source = arrays[0]
        if result._root is not root_of(source) or numbers:
            return None
        _, _, _, *layout, _ = command
        inside = result._metadata.size > 0
        returns, offset = VIEW, result._offset - source._offset if inside else 0
        marked = [ops.View.tag, template.hole(OUT), template.hole(ROOT), *layout]
        marked.append(template.hole(OFFSET) if inside else 0)
        return *template.encoded(marked), returns, meta, offset, inside
    marked = [command[0], *[template.field(kind, x) for (_, kind), x in zip(fields, command[1:])]]
    if template.found != len(numbers) or len(template.handles) != len(arrays):
        return None  # a number that the command does not carry has decided something
    return *template.encoded(marked), returns, meta, offset, False


if _native.issue is not None:
    _native.issue.configure(learn=learn, outside=failures.is_outside, place_of=failures.place_of, constants=DTYPES)
