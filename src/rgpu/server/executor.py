"""Runs a session's commands, in order, on one backend.

One door: a batch is decoded, every command passes its declaration's gate, handles are looked up
in the table, the backend works. An error of a command poisons its results and is told to the
client; a malformed message ends the session. This room knows no sockets and no CUDA.
"""

from __future__ import annotations

import logging
import math
import time
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

from rgpu.errors import PredictionError, ProtocolError
from rgpu.server.backend import Backend
from rgpu.server.table import Table, charged
from rgpu.wire import codec, limits, ops, values
from rgpu.wire.functions import TABLE

log = logging.getLogger("rgpu.worker")


class Goodbye(Exception):
    """The client ended the session."""


class Executor:
    """Handlers by command; ``post(frames)`` sends a reply message to the client."""

    def __init__(self, backend: Backend, post: Callable[[list], None]) -> None:
        self.backend, self.post = backend, post
        self.table = backend.table = Table(backend.limit)
        self.commands = 0
        self.functions = [backend.resolve(function.name) for function in TABLE]
        self.decode = values.Decoder(self.table.get)
        self._payload: list = []
        handlers = {}
        for tag, command in ops.Command.registry.items():
            method = getattr(self, f"do_{command.__name__.lower()}")
            handlers[tag] = (command.check_fields, method)
        self.handlers = handlers

    def run(self, frames: list) -> None:
        """Execute one message. Raises ProtocolError (end the session) or Goodbye."""
        body = codec.unpack(frames[0])
        if type(body) is not list or len(body) != 2 or type(body[1]) is not list or len(body[1]) > limits.BATCH:
            raise ProtocolError("a message is [batch, [command, ...]]")
        batch, commands = body
        self._payload = frames[1:]
        handlers = self.handlers
        for index, command in enumerate(commands):
            try:
                check, method = handlers[command[0]]
            except (KeyError, TypeError, IndexError):
                raise ProtocolError(f"unknown command {str(command)[:40]}") from None
            fields = command[1:]
            check(fields)
            try:
                method(*fields)
            except (ProtocolError, Goodbye):
                raise
            except Exception as error:  # whatever a function raises belongs to the client
                self.fail(error, batch, index, command)
        self.commands += len(commands)
        self._payload = []

    # ---- errors -------------------------------------------------------------------------------

    def fail(self, error: BaseException, batch: int, index: int, command: list) -> None:
        """Poison what the command would have made or changed, and tell the client once."""
        declared = ops.Command.registry[command[0]]
        fields = declared.Record(*command[1:])
        reply_to = getattr(fields, "reply_to", 0)
        handles = []
        if isinstance(fields, ops.Call.Record):
            handles = list(fields.outs)
        elif hasattr(fields, "out"):
            handles = [fields.out]
        for handle in handles:
            self.table.poison(handle, error)
        first = not getattr(error, "_rgpu_reported", False)
        if not first and not reply_to:
            return  # a consequence of a poisoned operand, not news
        error._rgpu_reported = True  # type: ignore[attr-defined]
        text = "".join(traceback.format_exception(error))[-limits.LONG_TEXT :]
        kind, args = describe_error(self.backend.explain(error))
        where = getattr(error, "_rgpu_where", None)
        if where is None:
            where = error._rgpu_where = (batch, index)  # type: ignore[attr-defined]
        message = ops.Failed.encode(reply_to, *where, handles, kind, args, text)
        self.post([codec.pack(message)])

    # ---- results ------------------------------------------------------------------------------

    def bind(self, handle: int, result: Any) -> Any:
        """Enter a fresh result under its handle; arrays own their memory in C order afterwards."""
        backend = self.backend
        if isinstance(result, backend.array):
            if not isinstance(result, backend.borrowed) and not (result.flags.c_contiguous and result.flags.owndata):
                result = backend.own(result)
            self.table.put(handle, result, result.nbytes)
        elif isinstance(result, backend.scalar):
            result = backend.own(result)
            self.table.put(handle, result, result.nbytes)
        else:
            self.table.put(handle, result)
        return result

    def describe(self, result: Any, base: int) -> Any:
        """Wire form of an answer; arrays in it are bound to base, base + 1, ..."""
        counter = iter(range(base, base + limits.RESERVED))

        def special(x: Any) -> Any:
            if isinstance(x, self.backend.array) or (
                self.backend.kind == "cpu" and isinstance(x, np.generic)
            ):
                handle = next(counter)
                bound = self.bind(handle, x)
                return [values.RESULT, handle, values.encode_dtype(bound.dtype), list(bound.shape)]
            return None

        return values.encode(plain(result), special)

    # ---- handlers, one a command --------------------------------------------------------------

    def do_bye(self) -> None:
        raise Goodbye

    def do_free(self, handles: list) -> None:
        free = self.table.free
        for handle in handles:
            free(handle)

    def do_empty(self, out: int, dtype: Any, shape: list, strides: list | None) -> None:
        self.table.admit(charged(math.prod(shape) * values.decode_dtype(dtype).itemsize))
        array = self.backend.empty(tuple(shape), values.decode_dtype(dtype), strides and tuple(strides))
        self.table.put(out, array, array.nbytes)

    def do_view(self, out: int, root: int, dtype: Any, shape: list, strides: list, offset: int) -> None:
        base = self.table.get(root)
        if not isinstance(base, self.backend.array):
            raise ProtocolError(f"handle {root} is not an array")
        view = self.backend.view(base, tuple(shape), values.decode_dtype(dtype), tuple(strides), offset)
        self.table.put(out, view)

    def do_unary(self, fn: int, out: int, a: int) -> None:
        self.bind(out, self.function(fn)(self.table.get(a)))

    def do_binary(self, fn: int, out: int, a: Any, b: Any) -> None:
        self.bind(out, self.function(fn)(self.operand(a), self.operand(b)))

    def do_inplace(self, fn: int, a: int, b: Any) -> None:
        target = self.table.get(a)
        self.function(fn)(target, self.operand(b), out=target, casting="same_kind")

    def do_call(self, fn: int, outs: list, args: list, kwargs: dict) -> None:
        result = self.invoke(fn, args, kwargs)
        if not outs:
            return
        results = [result] if len(outs) == 1 else list(flatten(result, self.backend))
        if len(results) == 1 and isinstance(results[0], tuple | list):
            results = list(flatten(results[0], self.backend))
        if len(results) != len(outs):
            raise PredictionError(f"{TABLE[fn].name} returned {len(results)} arrays, not {len(outs)}")
        for handle, item in zip(outs, results):
            self.bind(handle, item)

    def do_ask(self, reply_to: int, fn: int, base: int, args: list, kwargs: dict) -> None:
        value = self.describe(self.invoke(fn, args, kwargs), base)
        self.post([codec.pack(ops.Done.encode(reply_to, value))])

    def do_put(self, out: int, dtype: Any, shape: list, data: bytes) -> None:
        dtype = values.decode_dtype(dtype)
        host = np.frombuffer(data, dtype) if dtype.itemsize else np.empty(0, dtype)
        array = self.backend.from_host(host.reshape(shape))
        self.table.put(out, array, array.nbytes)

    def do_write(self, handle: int, offset: int, frame: int) -> None:
        if frame >= len(self._payload):
            raise ProtocolError(f"payload frame {frame} is missing")
        self.backend.write(self.table.get(handle), offset, self._payload[frame])

    def do_read(self, reply_to: int, handle: int, order: int) -> None:
        host = self.backend.to_host(self.table.get(handle), "F" if order else "C")
        data = memoryview(host.reshape(-1, order="A").view(np.uint8)) if host.size else memoryview(b"")
        for start in range(0, max(len(data), 1), limits.CHUNK_BYTES):
            head = codec.pack(ops.Data.encode(reply_to, start))
            self.post([head, data[start : start + limits.CHUNK_BYTES]])

    def do_sync(self, reply_to: int) -> None:
        self.backend.synchronize()
        self.post([codec.pack(ops.Done.encode(reply_to, None))])

    def do_usestream(self, stream: int) -> None:
        self.backend.use_stream(self.table.get(stream) if stream else None)

    def do_expect(self, handle: int, dtype: Any, shape: list, strides: list) -> None:
        try:
            array = self.table.get(handle)
        except ProtocolError:
            raise
        except Exception:
            return  # poisoned: the real error is already on its way
        truth = (array.dtype, array.shape)
        expected = (values.decode_dtype(dtype), tuple(shape))
        if array.size:
            truth, expected = (*truth, _strides(array)), (*expected, _strides_of(shape, strides))
        if truth != expected:
            raise PredictionError(f"the client expected {expected}, the result is {truth}")

    # ---- calls --------------------------------------------------------------------------------

    def function(self, fn: int) -> Callable[..., Any]:
        if fn >= len(self.functions):
            raise ProtocolError(f"unknown function {fn}")
        found = self.functions[fn]
        if found is None:
            raise NotImplementedError(f"cupy.{TABLE[fn].name} is not available on the {self.backend.kind} backend")
        return found

    def operand(self, x: Any) -> Any:
        return self.table.get(x) if type(x) is int else self.decode(x)

    def invoke(self, fn: int, args: list, kwargs: dict) -> Any:
        decode = self.decode
        call = self.function(fn)
        return call(*[decode(x) for x in args], **{name: decode(x) for name, x in kwargs.items()})


def plain(result: Any) -> Any:
    """Named tuples and the like as plain tuples."""
    if isinstance(result, tuple):
        return tuple(plain(item) for item in result)
    if isinstance(result, list):
        return [plain(item) for item in result]
    return result


def flatten(result: Any, backend: Backend) -> Any:
    """The arrays of a result, in order."""
    if isinstance(result, tuple | list):
        for item in result:
            yield from flatten(item, backend)
    else:
        yield result


def _strides(array: Any) -> tuple:
    return _strides_of(array.shape, array.strides)


def _strides_of(shape: Any, strides: Any) -> tuple:
    """Strides where they mean something: extents of 1 may have any."""
    return tuple(stride if extent > 1 else 0 for extent, stride in zip(shape, strides))


def describe_error(error: BaseException) -> tuple[str, list]:
    """Class name and plain arguments of an exception, for the client to rebuild it."""
    kind = type(error)
    args = [x if isinstance(x, bool | int | float | str) else str(x) for x in error.args]
    if kind.__module__.endswith("._exceptions"):  # NumPy's private ones, whose arguments are not their message
        kind, args = next(c for c in kind.__mro__ if c.__module__ == "builtins"), [str(error)]
    args = [x if not isinstance(x, int) or abs(x) < 2**63 else str(x) for x in args]
    status = getattr(error, "status", None)
    if isinstance(status, int) and type(error).__name__.endswith("Error"):
        args = [status]
    return kind.__name__[: limits.TEXT], [values.encode(x, lambda _: None) for x in args]


def serve(connection: Any, backend: Backend, report: Callable[[dict], None]) -> str:
    """Run the session to its end and return the reason: 'bye', 'expired' or an error text.

    ``report`` gets {'memory_used', 'commands', 'busy'} about once a second.
    """
    executor = Executor(backend, connection.post)
    busy, last = 0.0, time.monotonic()
    while True:
        frames = connection.take()
        now = time.monotonic()
        if now - last >= 1.0:
            report(
                {
                    "memory_used": executor.table.used,
                    "commands": executor.commands,
                    "busy": min(1.0, busy / (now - last)),
                }
            )
            busy, last = 0.0, now
        if frames is None:
            if connection.failure is not None:
                return str(connection.failure)
            if not connection.pump():
                connection.wait(0.25)
            continue
        try:
            executor.run(frames)
        except Goodbye:
            connection.mark_done(1)  # the client waits for this before it lets go
            return "bye"
        except ProtocolError as error:
            log.warning("session ended: %s", error)
            connection.post([codec.pack(ops.Failed.encode(0, 0, 0, [], "ProtocolError", [str(error)], ""))])
            return f"protocol error: {error}"
        connection.mark_done(1)
        busy += time.monotonic() - now
