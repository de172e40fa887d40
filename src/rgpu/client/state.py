"""A session's state, as its worker describes it, and the commands that make it again on another worker.

What describes and what makes again goes past the queue: whoever holds the stream's lock sees one point of the
stream, and commands that are queued meanwhile come after it. Never looks into the content of an array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from rgpu.client.queue import next_handle
from rgpu.wire import codec, ops, values
from rgpu.wire.functions import BY_NAME

HIDDEN = 7 << 61  # handles from here on are of what objects consist of, while a session is copied
AT_ONCE = 1000  # commands of one message
_U8 = "|u1"
_NESTED = (values.LIST, values.TUPLE, values.DICT, values.SLICE)
_decode = values.Decoder(lambda handle: None)
Rename = Callable[[int], int]


def same(handle: int) -> int:
    """Under the handles that things have."""
    return handle


def encoded(*args: Any) -> list:
    return [values.encode(x, lambda _: None) for x in args]


class Line:
    """A way to a stream's worker that passes the queue; for the holder of the stream's lock."""

    def __init__(self, stream: Any, new_handle: Callable[[], int] = next_handle) -> None:
        self._stream, self._new_handle = stream, new_handle

    def ask(self, name: str, *args: Any) -> Any:
        """The answer of a declared function."""
        return _decode(self._stream.inquire(BY_NAME[name].id, encoded(*args)))

    def post(self, commands: Iterable[tuple]) -> None:
        for message in _messages(commands):
            self._stream.post_past(message)

    def fetch(self, handle: int, nbytes: int) -> np.ndarray:
        """The bytes of an array that owns its memory, in memory order."""
        out, raw = np.empty(nbytes, np.uint8), self._new_handle()
        self.post([whole(raw, handle, nbytes)])
        self._stream.fetch(raw, out)
        self.post([ops.Free.encode([raw])])
        return out

    def store(self, handle: int, data: np.ndarray) -> None:
        """The other way round."""
        raw = next_handle()
        self.post([whole(raw, handle, data.nbytes)])
        self._stream.write_past(raw, memoryview(data))
        self.post([ops.Free.encode([raw])])


def _messages(commands: Iterable[tuple]) -> Iterator[list]:
    taken: list = []
    for command in commands:
        taken.append(command)
        if len(taken) == AT_ONCE or command[0] == ops.Template.tag:  # which may be large
            yield taken
            taken = []
    if taken:
        yield taken


def describe(line: Any, objects: bool = False) -> list[tuple]:
    """The entries of a session (``server.state.entries``), what others are made of first. With ``objects`` the line's
    worker keeps hidden handles until they are freed (``hidden``)."""
    found: list[tuple] = []
    after = 0
    while page := line.ask("session.entries", after, objects):
        found += page
        after = page[-1][1]
    order = ("array", "made", "poison", "left", "view", "object", "graph")
    return sorted(found, key=lambda entry: order.index(entry[0]))  # within a kind they stay in order of handles


def hidden(entries: list[tuple]) -> list[tuple]:
    """Commands that free the handles of what has none, when the objects that consist of it have been made."""
    handles = [entry[1] for entry in entries if entry[1] >= HIDDEN]
    return [ops.Free.encode(handles[start : start + 1000]) for start in range(0, len(handles), 1000)]


def left(entries: list[tuple]) -> str:
    """What cannot be made again, as far as there is something. Not described ``objects`` are among it."""
    kinds = sorted({entry[2] for entry in entries if entry[0] == "left"})
    return ", ".join(kinds)


def contents(entries: list[tuple]) -> list[tuple[int, int]]:
    """Handle and bytes of every array that owns memory."""
    return [(entry[1], entry[-1]) for entry in entries if entry[0] in ("array", "made") and entry[-1]]


def whole(out: int, handle: int, nbytes: int) -> tuple:
    """An array of the bytes of another that owns its memory."""
    return ops.View.encode(out, handle, _U8, [nbytes], [1], 0)


def building(entries: list[tuple], rename: Rename = same) -> Iterator[tuple]:
    """Commands that make everything but the contents, and what needs them. ProtocolError for an entry that says
    nothing sensible."""
    yield from _checked(_BUILD[entry[0]](rename, *entry[1:]) for entry in entries)


def finishing(entries: list[tuple]) -> Iterator[tuple]:
    """Commands for when the contents are there: objects that are made of arrays."""
    yield from _checked(_object(*entry[1:]) for entry in entries if entry[0] in ("object", "graph"))


def _checked(made: Iterable[list]) -> Iterator[tuple]:
    for commands in made:
        for command in commands:
            ops.Command.registry[command[0]].check_fields(list(command[1:]))
            yield command


def _array(rename: Rename, handle: int, dtype: Any, shape: tuple, strides: tuple | None, _nbytes: int) -> list:
    return [ops.Empty.encode(rename(handle), values.encode_dtype(dtype), list(shape), strides and list(strides))]


def _view(rename: Rename, handle: int, root: int, dtype: Any, shape: tuple, strides: tuple, offset: int) -> list:
    layout = values.encode_dtype(dtype), list(shape), list(strides), offset
    return [ops.View.encode(rename(handle), rename(root), *layout)]


def _made(rename: Rename, handle: int, name: str, args: bytes, kwargs: bytes, state: Any, _nbytes: int) -> list:
    given = [_renamed(x, rename) for x in codec.unpack(args)]
    named = {key: _renamed(x, rename) for key, x in codec.unpack(kwargs).items()}
    commands = [ops.Call.encode(BY_NAME[name].id, [rename(handle)], given, named)]
    if state is not None:
        restored = [[values.HANDLE, rename(handle)], *encoded(state)]
        commands.append(ops.Call.encode(BY_NAME["random.restore"].id, [], restored, {}))
    return commands


def _object(handle: int, name: str, args: bytes, kwargs: bytes) -> list:
    return _made(same, handle, name, args, kwargs, None, 0)


def _poison(rename: Rename, handle: int, *error: Any) -> list:
    return [ops.Call.encode(BY_NAME["session.poison"].id, [rename(handle)], encoded(*error), {})]


def _left(_rename: Rename, *_: Any) -> list:
    return []


_BUILD: dict[str, Callable[..., list]] = {
    "array": _array,
    "view": _view,
    "made": _made,
    "poison": _poison,
    "left": _left,
    "object": _left,
    "graph": _left,
}


def _renamed(x: Any, rename: Rename) -> Any:
    """A value in wire form, its handles renamed."""
    if type(x) is not list or not x:
        return x
    if x[0] == values.HANDLE:
        return [values.HANDLE, rename(x[1])]
    return [x[0], *[_renamed(item, rename) for item in x[1:]]] if x[0] in _NESTED else x
