"""Runs a session's commands, in order, on one backend.

One door: a batch is decoded, every command passes its declaration's gate, handles are looked up
in the table, the backend works. An error of a command poisons its results and is told to the
client; a malformed message ends the session. This room knows no sockets and no CUDA.
"""

from __future__ import annotations

import contextlib
import math
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rgpu.errors import PredictionError, ProtocolError
from rgpu.server import cautions, collective, spill, state
from rgpu.server.backend import Backend
from rgpu.server.loop import NoLoop as NoLoop
from rgpu.server.loop import loop_of
from rgpu.server.peers import Peers
from rgpu.server.recording import Recorder
from rgpu.server.replay import Templates
from rgpu.server.table import OutOfMemoryError, Poison, charged, encodable, plain_error
from rgpu.server.twin import TwinMixin
from rgpu.server.uploads import UploadsMixin
from rgpu.wire import codec, limits, ops, values
from rgpu.wire.declare import U64
from rgpu.wire.functions import TABLE

COPIED = 96 << 10  # bytes of an array below which a copy is sent: nobody has to wait for its arrival
_T_DATA = ops.Data.tag
#: kinds of functions whose arrays may be in Fortran's order
_KEEPING = frozenset(("scipy", "scipy_wait", "scipy_warns", "object"))


class Goodbye(Exception):
    """The client ended the session."""


class _Functions(dict):
    """The backend's callables by number."""

    def __init__(self, backend: Backend) -> None:
        for number, function in enumerate(TABLE):
            found = backend.resolve(function.name) or self._absent(function.name, backend.kind)
            if function.kind == "scipy_warns":
                found = cautions.told(found)
            self[number] = state.remembered(backend, function, found)

    @staticmethod
    def _absent(name: str, kind: str) -> Callable[..., Any]:
        def refuse(*_: Any, **__: Any) -> Any:
            raise NotImplementedError(f"cupy.{name} is not available on the {kind} backend")

        return refuse

    def __missing__(self, fn: int) -> Any:
        raise ProtocolError(f"unknown function {fn}")


class Executor(UploadsMixin, TwinMixin):
    """Handlers by command; ``post(frames)`` sends a reply message to the client. ``settle`` returns
    when the client has what was posted: until then replies may share memory with arrays; ``settled`` says
    whether that is so already."""

    def __init__(
        self,
        backend: Backend,
        post: Callable[[list], None],
        settle: Callable[[], Any] = lambda: None,
        peers: Peers | None = None,
        settled: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__()
        self.backend, self.post, self._settle, self._settled = backend, post, settle, settled
        self.peers = backend.peers = peers or Peers(backend)
        self.table = backend.table = spill.table_of(backend)
        self._get, self._array = self.table.peek, backend.array
        self._commands = 0
        self.failures = 0  # commands that raised
        self._answered = 0  # arrays bound for the answer in the making
        self.templates = backend.templates = Templates()
        self.functions = _Functions(backend)
        self._loop: Any = loop_of(self.table, backend, list(self.functions.values()))
        self.decode = values.Decoder(self.argument)
        self.chunk = limits.CHUNK_BYTES
        self.arguments: list = []  # what the call that runs was given, and what it has made
        self._payload: list = []
        handlers: list = [None] * (max(ops.Command.registry) + 1)
        for tag, command in ops.Command.registry.items():
            method = getattr(self, f"do_{command.__name__.lower()}")
            handlers[tag] = (command.gate, method)
        self.handlers = handlers
        if backend.kind == "cpu":
            backend.recorder = Recorder(self)

    def functions_changed(self) -> None:
        """The loop has functions of its own to call."""
        before = self._loop
        self._loop = loop = loop_of(self.table, self.backend, list(self.functions.values()), self._unwatched)
        loop.lent, loop.watched, loop.twin = before.lent, before.watched, self.standing[1] > 1
        loop.answered, loop.chunk = before.answered, before.chunk
        for number, template in self.templates.items():
            loop.define(number, *template.told())

    @property
    def chunk(self) -> int:
        """Bytes of the pieces in which large data leave."""
        return self._loop.chunk

    @chunk.setter
    def chunk(self, nbytes: int) -> None:
        self._loop.chunk = nbytes

    @property
    def commands(self) -> int:
        """How many have run."""
        return self._commands + self._loop.answered

    def answer(self, frames: list) -> list | None:
        """The answer to a message that asks for something small and waits for nothing; without frames: it brought
        something, which is where it belongs. None: ``run`` it."""
        return self._loop.answer(frames)

    def watch(self, on: bool) -> None:
        """Whether every command goes through ``handlers``, those of the C core's loop as well."""
        self._loop.watched = on

    def run(self, frames: list) -> None:
        """Execute one message. Raises ProtocolError (end the session) or Goodbye."""
        if (answer := self.execute(frames)) is not None:
            self.post(answer)

    def execute(self, frames: list) -> list | None:
        """The same, but for the answer to the last command, which is returned where nothing else is told after it."""
        self._payload = payload = frames[1:]
        ran = self._loop.run(self, frames[0], payload) if frames and len(frames[0]) <= limits.FRAME_BYTES else None
        answer = None
        if ran is not None:
            count, answer = ran
        else:  # the long way, which also says what is wrong
            batch, commands = _opened(frames)
            count = 0
            for command in commands:
                count += self._run(batch, count, command)
        self._commands += count
        self._payload = []
        return answer

    def visited(self, index: int, command: list) -> None:
        """One command of a visitor, who may only look (``server.visit``)."""
        self._run(0, index, command)

    def _run(self, batch: int, index: int, command: Any) -> int:
        """Check and execute one command; the number of commands that it stands for."""
        handlers = self.handlers
        if type(command) is not list or not command or type(tag := command[0]) is not int:
            raise ProtocolError(f"a command is an array that begins with its tag, not {str(command)[:40]}")
        if not 0 < tag < len(handlers) or (handler := handlers[tag]) is None:
            raise ProtocolError(f"unknown command {str(command)[:40]}")
        gate, method = handler
        fields = command[1:]
        gate(fields)
        if tag == ops.Replay.tag:
            return self._repeat(batch, index, *fields)
        try:
            method(*fields)
        except (ProtocolError, Goodbye):
            raise
        except Exception as error:  # whatever a function raises belongs to the client
            self.fail(error, batch, index, command)
        return 0 if tag == ops.Template.tag else 1

    def _repeat(self, batch: int, index: int, template: int, base: int, given: list) -> int:
        commands = self.templates.expand(template, base, given)
        if index + len(commands) > limits.REPLAYED:
            raise ProtocolError(f"a message of more than {limits.REPLAYED} commands")
        if self.backend.graphs is not None:
            self.backend.graphs.run(self, (batch, index), template, base, given, commands)
            return len(commands)
        for n, repeated in enumerate(commands):
            self._run(batch, index + n, repeated)
        return len(commands)

    @contextlib.contextmanager
    def apart(self, table: Any) -> Iterator[None]:
        """Handlers called meanwhile work on this table."""
        before, self.table, self._get = self.table, table, table.peek
        try:
            yield
        finally:
            self.table, self._get = before, before.peek

    # What the C core's loop asks for.

    def run_one(self, batch: int, index: int, data: bytes) -> int:
        """A command that is unusual in some way; nothing of it has happened. As ``_run``."""
        return self._run(batch, index, codec.unpack(data))

    def failed(self, error: BaseException, batch: int, index: int, data: bytes) -> None:
        """A command's function has raised."""
        try:
            raise error  # with a traceback, which a C function does not give it
        except (ProtocolError, Goodbye):
            raise
        except Exception:
            self.fail(error, batch, index, codec.unpack(data))

    def bind_result(self, handle: int, result: Any, arrays: list) -> None:
        """A result that may be one of its call's arguments, share their memory, or be several."""
        self.arguments[:] = arrays
        self.bind_results([handle], result)
        self.arguments.clear()

    def settle(self) -> None:
        """Before an array changes in place: what was read of it has arrived."""
        if self._loop.lent:
            self._settle()
            self.peers.settle()
            self.freeze()
            self._loop.lent = False

    # ---- errors -------------------------------------------------------------------------------

    def fail(self, error: BaseException, batch: int, index: int, command: list) -> None:
        """Poison what the command would have made or changed, and tell the client once."""
        self.failures += 1
        fields = ops.Command.registry[command[0]].Record(*command[1:])
        reply_to = getattr(fields, "reply_to", 0)
        news = not isinstance(error, Poison)
        poison = self.describe_error(error, (batch, index)) if news else error.with_traceback(None)
        handles = list(fields.outs) if isinstance(fields, ops.Call.Record) else []
        if isinstance(fields, ops.Ask.Record):
            for handle in range(fields.base, fields.base + self._answered):
                self.table.free(handle)  # the answer that would have named them is not sent
        elif hasattr(fields, "out"):
            handles = [fields.out]
        elif isinstance(fields, ops.Expect.Record):
            handles = [fields.handle]  # reading it would not fit what the client prepared
        for handle in handles:
            self.table.poison(handle, poison)
        if not news or isinstance(fields, ops.Receive.Record | ops.Collective.Record):
            # What should have been changed by a lost value is lost with it; it says so when it is used.
            for handle in self.targets(fields):
                self.table.poison_memory(handle, poison)
            if not news and not reply_to:
                return
        message = ops.Failed.encode(
            reply_to, *poison.where, handles[: limits.HANDLES], poison.kind, poison.arguments, poison.text
        )
        self.post([codec.pack(message)])

    def describe_error(self, error: BaseException, where: tuple[int, int]) -> Poison:
        """An exception in plain values, for the client to rebuild it."""
        known = self.backend.explain(error)
        if isinstance(known, MemoryError) and not isinstance(known, OutOfMemoryError):
            size = getattr(error, "_total_size", 0)  # NumPy knows what it asked for
            known = OutOfMemoryError(int(size), self.table.used, self.table.limit)
            error = known.with_traceback(error.__traceback__)
        text = "".join(traceback.format_exception(error))[-limits.LONG_TEXT // 4 :]
        return Poison(where, *plain_error(known), encodable(text))

    def targets(self, fields: Any) -> list[int]:
        """Handles of the arrays that a command changes in place."""
        if isinstance(fields, ops.Inplace.Record):
            return [fields.a]
        if isinstance(fields, ops.Receive.Record):
            return [fields.handle]
        if isinstance(fields, ops.Collective.Record):
            return [] if fields.target is None else [fields.target]
        if not isinstance(fields, ops.Call.Record) or fields.outs:
            return []
        named = [fields.kwargs.get("out")] if "out" in fields.kwargs else fields.args[:1]
        found = [x[1] for x in named if type(x) is list and len(x) == 2 and x[0] == values.HANDLE]
        return [handle for handle in found if isinstance(self.table.peek(handle), self.backend.array)]

    # ---- results ------------------------------------------------------------------------------

    def bind(self, handle: int, result: Any, order: str = "C") -> Any:
        """Enter a fresh result under its handle. Arrays are in this order afterwards and share their
        memory with no argument and no other result."""
        backend = self.backend
        if isinstance(result, backend.array):
            flags = result.flags
            if not isinstance(result, backend.borrowed) and not (
                (flags.f_contiguous if order == "F" else flags.c_contiguous)
                and backend.separate(result, self.arguments)
            ):
                result = backend.own(result, order)
            self.arguments.append(result)
            self.table.put(handle, result, result.nbytes)
        elif isinstance(result, backend.scalar):
            result = backend.own(result)
            self.table.put(handle, result, result.nbytes)
        else:
            self.table.put(handle, result)
        return result

    def bind_fresh(self, handle: int, result: Any) -> None:
        """The same for an element-wise function, which makes one result and returns none of its arguments."""
        if type(result) is self._array and (flags := result.flags).owndata and flags.c_contiguous:
            self.table.put(handle, result, result.nbytes)
        else:
            self.arguments.clear()
            self.bind(handle, result)

    def describe(self, result: Any, base: int, keep: bool = False) -> Any:
        """Wire form of an answer; arrays in it are bound to base, base + 1, ... ``keep``: those in Fortran's order
        stay so, which the answer says."""
        self._answered = 0

        def special(x: Any) -> Any:
            if isinstance(x, self.backend.array) or (
                self.backend.kind == "cpu" and isinstance(x, np.generic)
            ):
                if self._answered >= limits.RESERVED:
                    raise ValueError(f"the answer has more than {limits.RESERVED} arrays")
                handle = base + self._answered
                fortran = keep and x.flags.f_contiguous and not x.flags.c_contiguous
                bound = self.bind(handle, x, "F" if fortran else "C")
                self._answered += 1
                said = [values.RESULT, handle, values.encode_dtype(bound.dtype), list(bound.shape)]
                return [*said, "F"] if fortran else said
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
        dtype = values.decode_dtype(dtype)
        nbytes = math.prod(shape) * dtype.itemsize
        if strides is not None:
            _check_bounds(shape, strides, 0, dtype.itemsize, nbytes)
        self.table.admit(charged(nbytes))
        array = self.backend.empty(tuple(shape), dtype, strides and tuple(strides))
        self.blank(array)
        self.table.put(out, array, array.nbytes)

    def do_view(self, out: int, root: int, dtype: Any, shape: list, strides: list, offset: int) -> None:
        base, dtype = self.array(self.table.owner(root)), values.decode_dtype(dtype)
        _check_bounds(shape, strides, offset, dtype.itemsize, base.nbytes)
        view = self.backend.view(base, tuple(shape), dtype, tuple(strides), offset)
        self.table.put_view(out, view, root)

    def do_unary(self, fn: int, out: int, a: int) -> None:
        self.bind_fresh(out, self.functions[fn](self.table.get(a)))

    def do_binary(self, fn: int, out: int, a: Any, b: Any) -> None:
        # The frequent case in place: a look-up costs less than a call.
        get, array = self._get, self._array
        x = get(a) if type(a) is int else a
        y = get(b) if type(b) is int else b
        if type(x) is not array:
            x = self.operand(a)
        if type(y) is not array:
            y = self.operand(b)
        self.bind_fresh(out, self.functions[fn](x, y))

    def do_inplace(self, fn: int, a: int, b: Any) -> None:
        target, operand = self.table.get(a), self.operand(b)
        self.settle()
        self.functions[fn](target, operand, out=target, casting="same_kind")

    def do_call(self, fn: int, outs: list, args: list, kwargs: dict) -> None:
        result = self.invoke(fn, args, kwargs)
        if outs:
            self.bind_results(outs, result, fn)
            self.arguments.clear()

    def bind_results(self, outs: list, result: Any, fn: int | None = None) -> None:
        """Enter what a call returned under as many handles as the client predicted."""
        results = [result] if len(outs) == 1 else list(flatten(result, self.backend))
        if len(results) == 1 and isinstance(results[0], tuple | list):
            results = list(flatten(results[0], self.backend))
        if len(results) != len(outs):
            name = "the function" if fn is None else TABLE[fn].name
            raise PredictionError(f"{name} returned {len(results)} arrays, not {len(outs)}")
        for handle, item in zip(outs, results):
            self.bind(handle, item)

    def do_ask(self, reply_to: int, fn: int, base: int, args: list, kwargs: dict) -> None:
        value = self.describe(self.invoke(fn, args, kwargs), base, TABLE[fn].kind in _KEEPING)
        self.arguments.clear()
        self.post([codec.pack(ops.Done.encode(reply_to, value))])

    def do_put(self, out: int, dtype: Any, shape: list, data: bytes) -> None:
        dtype = values.decode_dtype(dtype)
        host = np.frombuffer(data, dtype) if dtype.itemsize else np.empty(0, dtype)
        array = self.backend.from_host(host.reshape(shape))
        self.table.put(out, array, array.nbytes)

    def do_write(self, handle: int, offset: int, frame: int) -> None:
        if frame >= len(self._payload):
            raise ProtocolError(f"payload frame {frame} is missing")
        target = self.array(self.table.get(handle))
        self.settle()
        data = self._payload[frame]
        place = self.backend.memory(target, offset, 1)
        if not place or _address(data) != _address(place):  # else it was received there
            self.backend.write(target, offset, data)

    def place(self, frames: list) -> memoryview | None:
        """Where the payload of a message that consists of one Write belongs, so that it is received in place:
        asked only while nothing runs and nothing waits to be run. None: anywhere."""
        place = self._loop.place(frames)
        if place is not NotImplemented:
            return place
        if len(frames) != 1 or self.keeps or (self._loop.lent and not self._settled()):
            return None
        try:
            _, commands = _opened(frames)
            (command,) = commands
            if command[0] != ops.Write.tag:
                return None
            ops.Write.check_fields(command[1:])
            _, handle, offset, _ = command
            return self.backend.memory(self.table.get(handle), offset, limits.FRAME_BYTES)
        except Exception:  # executing the message says what is wrong
            return None

    def do_read(self, reply_to: int, handle: int, order: int, dtype: Any, shape: list) -> None:
        array = self.array(self.table.get(handle))
        truth, expected = (array.dtype, array.shape), (values.decode_dtype(dtype), tuple(shape))
        if truth != expected:  # the client would wait for bytes that do not come, or misread them
            raise PredictionError(f"the client expected {expected}, the result is {truth}")
        host = self.backend.to_host(array, "F" if order else "C")
        if host.nbytes < COPIED:
            self.post([codec.pack((_T_DATA, reply_to, 0)), host.tobytes("A")])
            return
        self._loop.lent = True
        data = memoryview(host.reshape(-1, order="A").view(np.uint8)) if host.size else memoryview(b"")
        self.answer_read(reply_to, data, array.dtype)

    def send_data(self, reply_to: int, data: memoryview) -> None:
        for start in range(0, max(len(data), 1), self.chunk):
            head = codec.pack(ops.Data.encode(reply_to, start))
            self.post([head, data[start : start + self.chunk]])

    def do_sync(self, reply_to: int) -> None:
        self.backend.synchronize()
        self.post([codec.pack(ops.Done.encode(reply_to, None))])

    def do_send(self, pair: int, token: int, handle: int) -> None:
        self._loop.lent = True
        self.peers.send(pair, token, lambda: self.array(self.table.get(handle)))

    def do_receive(self, pair: int, token: int, handle: int) -> None:
        self.settle()
        self.peers.receive(pair, token, lambda: self.array(self.table.get(handle)))

    def do_collective(
        self, comm: int, operation: int, source: int | None, target: int | None, dtype: int, reduction: int, root: int
    ) -> None:
        self.settle()
        places = source, target
        collective.run(self, comm, operation, places, dtype, reduction, root)

    def do_usestream(self, stream: int) -> None:
        self.backend.use_stream(self.table.get(stream) if stream else None)

    def do_template(self, template: int, count: int, data: bytes, pieces: list, holes: list) -> None:
        self.templates.define(template, count, data, pieces, holes)
        self._loop.define(template, count, data, pieces, holes)

    def do_replay(self, template: int, base: int, values: list) -> None:
        raise AssertionError("it is written out before")

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

    def array(self, x: Any) -> Any:
        if not isinstance(x, self.backend.array):
            raise ProtocolError(f"a {type(x).__name__} stands where an array must")
        return x

    def argument(self, handle: int) -> Any:
        entry = self.table.get(handle)
        if isinstance(entry, self.backend.array):
            self.arguments.append(entry)
        return entry

    def operand(self, x: Any) -> Any:
        kind = type(x)
        if kind is int:
            return self.table.get(x)
        return x if kind is float else self.decode(x)

    def invoke(self, fn: int, args: list, kwargs: dict) -> Any:
        decode = self.decode
        call = self.functions[fn]
        self.arguments.clear()
        self.settle()
        return call(*[decode(x) for x in args], **{name: decode(x) for name, x in kwargs.items()})


def _address(data: Any) -> int:
    return np.frombuffer(data, np.uint8).__array_interface__["data"][0]


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


def _opened(frames: list) -> tuple[int, list]:
    """Batch number and commands of a message."""
    body = codec.unpack(frames[0]) if frames else None
    if type(body) is not list or len(body) != 2 or type(body[1]) is not list or len(body[1]) > limits.BATCH:
        raise ProtocolError("a message is [batch, [command, ...]]")
    return U64.check(body[0]), body[1]


def _check_bounds(shape: list, strides: list, offset: int, itemsize: int, nbytes: int) -> None:
    """Refuse a layout that leaves its memory; in Python's integers, because NumPy's may overflow."""
    if len(shape) != len(strides):
        raise ProtocolError(f"{len(shape)} extents and {len(strides)} strides")
    if 0 in shape:
        return
    low, high = offset, offset + itemsize
    for extent, stride in zip(shape, strides):
        if stride < 0:
            low += (extent - 1) * stride
        else:
            high += (extent - 1) * stride
    if low < 0 or high > nbytes:
        raise ProtocolError(f"a view of bytes {low} to {high} of an array of {nbytes} bytes")
