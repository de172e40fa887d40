"""Objects that live on a worker: a handle of a declared class, and calls of its declared methods.

The base of random states, generators and the like. An object belongs to the stream that made it;
its methods run there, whichever device is current. Nothing here waits.
"""

from __future__ import annotations

from typing import Any

from rgpu.client import pool
from rgpu.client.stream import next_handle
from rgpu.functions import dispatch
from rgpu.wire import ops
from rgpu.wire.functions import BY_NAME


class RemoteObject:
    """A name for an object on the current device's worker; dropping it frees the object."""

    _remote_handle: int
    _stream: Any

    def _create(self, name: str, *args: Any, **kwargs: Any) -> None:
        """Make the worker's object with the declared constructor ``name``."""
        stream = pool.current_stream()
        encoded = dispatch._Arguments(stream, args, kwargs, True)
        handle = next_handle()
        stream.submit(ops.Call.encode(BY_NAME[name].id, (handle,), encoded.wire, encoded.wire_kw))
        self._stream, self._remote_handle = stream, handle

    def _call(self, name: str, tree: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a declared method; ``tree`` is its result's layout (None: it makes no array)."""
        stream = self._stream
        encoded = dispatch._Arguments(stream, (self, *args), kwargs, True)
        function = BY_NAME[name]
        return dispatch.run(function, encoded) if tree is None else dispatch.submit(function, encoded, tree)

    def __del__(self) -> None:
        try:
            self._stream.free(self._remote_handle)
        except AttributeError:
            pass  # the constructor failed before there was a handle
