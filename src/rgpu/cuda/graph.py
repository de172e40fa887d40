"""``cupy.cuda.graph``: capturing what streams do, and launching it again and again.

Which streams take part in a capture, and CUDA's errors about it, are known here; the commands themselves are kept
by the worker (CuPy's own graph on a GPU). Nothing here waits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rgpu import surface
from rgpu.client import follow
from rgpu.client.stream import CommandStream
from rgpu.cuda import handles, issue
from rgpu.cuda.errors import CUDARuntimeError

ILLEGAL_STATE = 401
UNSUPPORTED, INVALIDATED, UNMATCHED, UNJOINED, IMPLICIT = 900, 901, 903, 904, 906


class Graph:
    """What a stream captured. Made by ``Stream.end_capture``."""

    __module__ = "cupy.cuda.graph"

    def __init__(self) -> None:
        raise RuntimeError("currently this class cannot be instantiated manually: it is made by Stream.end_capture")

    @classmethod
    def _of(cls, capture: Capture, held: issue.Held) -> Graph:
        graph = object.__new__(cls)
        graph._held, graph._host_functions = held, capture.host_functions
        return graph

    def launch(self, stream: Any = None) -> None:
        """Run it on a stream (default: the current one)."""
        self._submit("graph.launch", stream)
        for function in self._host_functions:
            handles.host_functions(self._held.stream).add(None, function)

    def upload(self, stream: Any = None) -> None:
        """Let the device prepare for launching it."""
        self._submit("graph.upload", stream)

    def _submit(self, function: str, stream: Any) -> None:
        from rgpu.cuda.stream import get_current_stream

        pointer = (get_current_stream() if stream is None else stream).ptr
        _, on = handles.stream(pointer)
        issue.submit(self._held.stream, function, self._held, on)

    def debug_dot_str(self, flags: int = 0) -> str:
        """It in Graphviz' language. Waits."""
        return issue.ask(self._held.stream, "graph.dot", self._held, int(flags))


class Capture:
    """A capture in the making. Streams by their integers."""

    def __init__(self, commands: CommandStream, origin: int, non_blocking: bool) -> None:
        self.commands, self.origin, self.non_blocking = commands, origin, non_blocking
        self.valid = True
        self.forked: dict[int, bool] = {}  # other streams that take part -> whether the origin waits for them
        self.events: dict[int, int] = {}  # event -> the stream it was recorded on
        self.host_functions: list[Callable[[], None]] = []


_captures: list[Capture] = []


def of(pointer: int) -> Capture | None:
    """The capture that a stream takes part in."""
    return next((c for c in _captures if pointer == c.origin or pointer in c.forked), None)


def is_capturing(pointer: int) -> bool:
    if pointer in handles.DEFAULT_STREAMS[:2] and any(not c.non_blocking for c in _captures):
        raise CUDARuntimeError(IMPLICIT)
    return of(pointer) is not None


def begin(pointer: int, non_blocking: bool, mode: int) -> None:
    """Keep what this stream does from now on."""
    if of(pointer) is not None:
        raise CUDARuntimeError(ILLEGAL_STATE)
    commands, held = handles.stream(pointer)
    _tell(commands)
    issue.submit(commands, "graph.begin", held, mode)
    _captures.append(Capture(commands, pointer, non_blocking))
    _tell(commands)


def end(pointer: int) -> Graph:
    """The graph. Raises CUDA's errors about a capture that cannot become one."""
    capture = of(pointer)
    if capture is None:
        raise CUDARuntimeError(ILLEGAL_STATE)
    if pointer != capture.origin:
        capture.valid = False
        raise CUDARuntimeError(UNMATCHED)
    _captures.remove(capture)
    commands, held = handles.stream(pointer)
    _tell(commands)
    if capture.valid and all(capture.forked.values()):
        return Graph._of(capture, issue.Held(commands, "graph.end", held))
    issue.submit(commands, "graph.cancel", held)
    raise CUDARuntimeError(UNJOINED if capture.valid else INVALIDATED)


def _tell(commands: CommandStream) -> None:
    """Which CUDA streams must not be waited for now: their work has not begun."""
    for capture in [c for c in _captures if not handles.lives(c.origin)]:  # a stream may end while it captures
        _captures.remove(capture)
        issue.submit(capture.commands, "graph.cancel", None)
    streams = [pointer for c in _captures if c.commands is commands for pointer in (c.origin, *c.forked)]
    follow.follow(commands).capturing = {handles.find(pointer).handle for pointer in streams if handles.lives(pointer)}


# ---- what the streams' and events' functions ask --------------------------------------------------


def refuse(pointer: int) -> None:
    """Nobody may wait for a stream that captures: this ends the capture."""
    capture = of(pointer)
    if capture is not None:
        capture.valid = False
        raise CUDARuntimeError(UNSUPPORTED)


def recorded(event: int, pointer: int) -> None:
    """An event is recorded on a stream."""
    for capture in _captures:
        capture.events.pop(event, None)
    capture = of(pointer)
    if capture is not None:
        capture.events[event] = pointer


def waits(pointer: int, event: int) -> None:
    """A stream waits for an event: of a stream that captures, and it takes part; a fork is joined by its origin."""
    capture = next((c for c in _captures if event in c.events), None)
    if capture is None:
        return
    source = capture.events[event]
    if source in capture.forked:
        capture.forked[source] = True
    if of(pointer) is None:
        capture.forked[pointer] = False
        commands, held = handles.stream(pointer)
        issue.submit(commands, "graph.join", handles.find(capture.origin), held)
        _tell(commands)


def host_function(pointer: int, function: Callable[[], None]) -> bool:
    """Whether a function of the host belongs to a capture, and runs at its launches."""
    capture = of(pointer)
    if capture is not None:
        capture.host_functions.append(function)
    return capture is not None


__getattr__, __dir__ = surface.face(__name__)
