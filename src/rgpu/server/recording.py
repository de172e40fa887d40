"""CUDA graphs on a cpu device: commands of a capturing stream are kept, and run again at each launch.

What makes new arrays runs once while it is recorded, so that they exist, with content that means nothing yet, as
under CUDA; what changes an array does not run before the launch. A launch writes into the very arrays of the
recording. Must never read from a client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from rgpu.errors import ProtocolError
from rgpu.server.table import Table
from rgpu.wire import codec, ops
from rgpu.wire.functions import TABLE

_CALLS = (ops.Unary, ops.Binary, ops.Call, ops.Put)  # what makes arrays, of content that a launch makes anew
_CHANGES = (ops.Inplace, ops.Write, ops.Recall)
_COPIED = (*_CALLS, ops.Inplace, ops.Write)  # a Recall is of what this worker alone was sent
_TOLD = 1 << 20  # bytes of a graph's commands, and data among them, that are told to another worker
_ABOUT_STREAMS = ("stream.", "event.", "graph.", "memory.", "device.")


class Step(NamedTuple):
    """One recorded command: its tag, its handler, its fields and payload, and the arrays it made."""

    tag: int
    method: Callable[..., None]
    fields: tuple
    payload: list
    made: dict[int, Any]


class CpuGraph:
    """What was captured. ``kept`` holds every object that a command names, whoever frees it meanwhile."""

    def __init__(self, stream: Any) -> None:
        self.streams = [stream]
        self.steps: list[Step] = []
        self.kept: dict[int, Any] = {}
        self.names: list[str] = []

    def told(self) -> tuple[bytes, tuple, list]:
        """What ``Recorder.make`` makes it again of. TypeError if that is not all there is."""
        steps, size = [], 0
        for tag, _, fields, payload, made in self.steps:
            if not issubclass(command := ops.Command.registry[tag], _COPIED):
                raise TypeError(f"a graph with a {command.__name__}")
            frames = [bytes(frame) for frame in payload] if command is ops.Write else []
            size += sum(map(len, frames))
            if size > _TOLD:
                raise TypeError("a graph with much data")
            steps.append([tag, list(fields), frames, list(made)])
        data = codec.pack([self.names, steps])
        if len(data) > _TOLD:
            raise TypeError("a long graph")
        return data, tuple(self.kept), list(self.kept.values())

    def dot(self, flags: int) -> str:
        """The graph in Graphviz' language, a chain of its commands; with any flag also what they made."""
        lines = []
        for k, (name, step) in enumerate(zip(self.names, self.steps)):
            shown = "".join(f"\\n{x.dtype} {x.shape}" for x in step.made.values()) if flags else ""
            lines.append(f'  n{k} [label="cupy_{name}{shown}"];')
            lines += [f"  n{k - 1} -> n{k};"] if k else []
        return "\n".join(["digraph rgpu {", *lines, "}"])


class Recorder:
    """The recording of one worker: stands between its executor and the handlers while a stream captures."""

    def __init__(self, executor: Any) -> None:
        self._executor = executor
        self._plain: list = []
        self._graphs: list[CpuGraph] = []  # in the making

    def begin(self, stream: Any) -> None:
        """Record what runs on this stream from now on."""
        self._graphs.append(CpuGraph(stream))
        if len(self._graphs) > 1:
            return
        handlers = self._executor.handlers
        self._executor.watch(True)
        self._plain = list(handlers)
        for tag, command in ops.Command.registry.items():
            if issubclass(command, (*_CALLS, *_CHANGES)):
                gate, method = handlers[tag]
                handlers[tag] = gate, self._watched(command, method)

    def join(self, origin: Any, stream: Any) -> None:
        """Another stream takes part: it waits for an event of one that is recorded."""
        graph = self._of(origin)
        if graph is not None:
            graph.streams.append(stream)

    def end(self, stream: Any) -> CpuGraph | None:
        """What the stream recorded. None: those that were dropped meanwhile end, and record nothing."""
        graph = self._of(stream)
        gone = [graph]
        if stream is None:
            alive = {id(x) for x in self._executor.table.entries.values()}
            gone = [x for x in self._graphs if id(x.streams[0]) not in alive]
        self._graphs = [x for x in self._graphs if all(x is not y for y in gone)]
        if not self._graphs and self._plain:
            self._executor.handlers[:], self._plain = self._plain, []
            self._executor.watch(False)
        return graph

    def _of(self, stream: Any) -> CpuGraph | None:
        """The recording that a stream takes part in."""
        return next((graph for graph in self._graphs if any(x is stream for x in graph.streams)), None)

    def _watched(self, command: type, method: Callable[..., None]) -> Callable[..., None]:
        def record(*fields: Any) -> None:
            table = self._executor.table
            function = (
                TABLE[fields[0]].name if issubclass(command, ops.Call | ops.Unary | ops.Binary | ops.Inplace) else ""
            )
            graph = self._of(self._executor.backend.stream)
            if graph is None or function.startswith(_ABOUT_STREAMS):
                method(*fields)
                return
            named = _named(table, fields)
            changes = issubclass(command, _CHANGES) or (issubclass(command, ops.Call) and not fields[1])
            if not changes:
                method(*fields)
            made = {handle: x for handle, x in _named(table, fields).items() if handle not in named}
            if not all(isinstance(x, self._executor.backend.array) for x in made.values()):
                return  # a kernel or another object, made once
            graph.kept.update(named | made)
            graph.steps.append(Step(command.tag, method, fields, self._executor._payload, made))
            graph.names.append(function or command.__name__.lower())

        return record

    @property
    def busy(self) -> bool:
        """Whether a stream captures."""
        return bool(self._graphs)

    def make(self, data: bytes, numbers: tuple, *things: Any) -> CpuGraph:
        """A graph that was captured elsewhere (``CpuGraph.told``). ProtocolError for what no capture gives."""
        graph = CpuGraph(None)
        graph.kept = dict(zip(numbers, things, strict=True))
        names, steps = codec.unpack(data, _TOLD)
        for tag, fields, frames, made in steps:
            command = ops.Command.registry.get(tag)
            if command is None or not issubclass(command, _COPIED):
                raise ProtocolError(f"command {str(tag)[:20]} in a graph")
            gate, method = (self._plain or self._executor.handlers)[tag]
            gate(fields)
            arrays = {number: graph.kept[number] for number in made}
            if not all(isinstance(x, self._executor.backend.array) for x in arrays.values()):
                raise ProtocolError("a graph makes arrays")
            graph.steps.append(Step(tag, method, tuple(fields), frames, arrays))
        graph.names = [str(name)[:256] for name in names]
        return graph

    def launch(self, graph: CpuGraph) -> None:
        """Run it once more; what it made receives the new content."""
        executor = self._executor
        before, table = executor.table, Table()
        for handle, entry in graph.kept.items():
            table.put(handle, entry)
        executor.table, executor._get = table, table.peek
        payload = executor._payload
        try:
            for step in graph.steps:
                executor._payload = step.payload
                for handle in step.made:
                    table.free(handle)
                step.method(*step.fields)
                for handle, array in step.made.items():
                    np.copyto(array, table.get(handle))
                    table.free(handle)
                    table.put(handle, array)
        finally:
            executor.table, executor._get, executor._payload = before, before.peek, payload


def _named(table: Table, fields: tuple) -> dict[int, Any]:
    """What the integers in a command's fields stand for in the table: its handles."""
    return {handle: x for handle in _numbers(fields) if (x := table.peek(handle)) is not None}


def _numbers(x: Any) -> Iterator[int]:
    """Every integer in the fields of a command: the handles among them, and numbers that name nothing."""
    if type(x) is int:
        yield x
    elif isinstance(x, list | tuple):
        for item in x:
            yield from _numbers(item)
    elif isinstance(x, dict):
        for item in x.values():
            yield from _numbers(item)
