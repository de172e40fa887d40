"""From rgpu.cuda to the worker: commands of the table's internal functions, and the objects they make.

``submit`` never waits, ``ask`` does. A ``Held`` object is a worker's stream, event or pool; dropping it
frees it there. Knows nothing of what the functions mean.
"""

from __future__ import annotations

from typing import Any

from rgpu.client import pool
from rgpu.client.remote import Remote
from rgpu.client.stream import CommandStream, next_handle
from rgpu.wire import ops, values
from rgpu.wire.functions import BY_NAME

POINTERS = 1 << 44  # a handle as the integer that programs take for a cudaStream_t or cudaEvent_t


class Held:
    """An object in a worker's table."""

    def __init__(self, stream: CommandStream, function: str, *args: Any) -> None:
        self.stream, self.handle = stream, next_handle()
        submit(stream, function, *args, outs=(self.handle,))

    @property
    def pointer(self) -> int:
        return POINTERS + self.handle

    def __del__(self) -> None:
        try:
            self.stream.free(self.handle)
        except AttributeError:
            pass  # construction failed before there was a handle


def here() -> CommandStream:
    """The command stream of the current device."""
    return pool.current_stream()


def ordinal(stream: CommandStream) -> int:
    return stream.device.ordinal  # type: ignore[attr-defined]


def _special(x: Any) -> Any:
    if isinstance(x, Held):
        return [values.HANDLE, x.handle]
    return [values.HANDLE, x._handle] if isinstance(x, Remote) else None


def submit(stream: CommandStream, function: str, *args: Any, outs: tuple = ()) -> None:
    """Queue a call of an internal function."""
    wire = [values.encode(x, _special) for x in args]
    stream.submit(ops.Call.encode(BY_NAME[function].id, list(outs), wire, {}))


_decode = values.Decoder(lambda handle: None)


def ask(stream: CommandStream, function: str, *args: Any) -> Any:
    """Call an internal function and wait for its answer."""
    wire = [values.encode(x, _special) for x in args]
    return _decode(stream.ask(BY_NAME[function].id, wire, {}))
