"""Streams and events by the integers that programs pass around for them.

``Stream.ptr`` and ``Event.ptr`` are integers a program may hand to the runtime functions, to another
library and back. Here they lead to the object in the worker's table; one that leads nowhere is CUDA's
error, and never reaches the worker. Work on a stream and host functions waiting for it live here too.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from rgpu.client import follow
from rgpu.client.follow import DEFAULT
from rgpu.client.stream import CommandStream
from rgpu.cuda import issue
from rgpu.cuda.errors import INVALID_RESOURCE_HANDLE, CUDARuntimeError, invalid
from rgpu.cuda.issue import Held

LEGACY, PER_THREAD = 1, 2
DEFAULT_STREAMS = (0, LEGACY, PER_THREAD)

_live: weakref.WeakValueDictionary[int, Held] = weakref.WeakValueDictionary()
_owned: dict[int, Held] = {}  # made by a runtime function, until a runtime function destroys them


def create(function: str, *args: Any, owned: bool = False) -> Held:
    """A new stream or event on the current device."""
    made = Held(issue.here(), function, *args)
    _live[made.pointer] = made
    if owned:
        _owned[made.pointer] = made
    return made


def destroy(pointer: int) -> None:
    """Drop what a runtime function made; who still uses it keeps it alive."""
    if _owned.pop(pointer, None) is None:
        find(pointer)


def find(pointer: int) -> Held:
    """The object behind an integer, or CUDA's error."""
    found = _live.get(pointer)
    if found is None:
        raise invalid(
            INVALID_RESOURCE_HANDLE,
            f"{pointer:#x} is no stream or event of this process, or it was destroyed",
        )
    return found


def lives(pointer: int) -> bool:
    """Whether a stream or event has not been dropped."""
    return pointer in _live


def stream(pointer: int) -> tuple[CommandStream, Held | None]:
    """The command stream to the device of a CUDA stream, and the stream (None: the default one)."""
    if pointer in DEFAULT_STREAMS:
        return issue.here(), None
    found = find(pointer)
    return found.stream, found


def handle_of(held: Held | None) -> int:
    """As ``follow`` wants it."""
    return DEFAULT if held is None else held.handle


def synchronize(pointer: int) -> None:
    """Wait for a stream, and for the host functions that wait for it; raises what failed."""
    commands, held = stream(pointer)
    issue.ask(commands, "stream.synchronize", held)
    finish_host_functions(commands)
    commands.raise_failed()


def query(pointer: int) -> bool:
    """Whether a stream has nothing left to do."""
    commands, held = stream(pointer)
    return host_functions(commands).idle and bool(issue.ask(commands, "stream.query", held))


def wait_event(pointer: int, event_pointer: int) -> None:
    """Later work of the stream waits for the event; for another device's, the client waits here."""
    event = find(event_pointer)
    commands, held = stream(pointer)
    if event.stream is commands:
        issue.submit(commands, "stream.wait_event", held, event)
        follow.wait_ahead(commands, handle_of(held))
    else:
        issue.ask(event.stream, "event.synchronize", event)


def record(event_pointer: int, pointer: int) -> None:
    """Record an event on a stream of the same device."""
    event = find(event_pointer)
    commands, held = stream(pointer)
    if event.stream is not commands:
        raise CUDARuntimeError(INVALID_RESOURCE_HANDLE)
    issue.submit(commands, "event.record", event, held)


# ---- functions of the host that wait for the device ------------------------------------------------


class HostFunctions:
    """Those of one device, run in order by a thread that lives while there are any."""

    def __init__(self, commands: CommandStream) -> None:
        self._commands = commands
        self._waiting: deque[tuple[Held | None, Callable[[], None]]] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    @property
    def idle(self) -> bool:
        return self._thread is None

    def add(self, held: Held | None, function: Callable[[], None]) -> None:
        """Run it when everything issued so far is done."""
        with self._changed:
            self._waiting.append((held, function))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="rgpu-host-functions", daemon=True)
                self._thread.start()

    def finish(self) -> None:
        """Wait until none is left. Called by a host function itself, it would wait for itself."""
        with self._changed:
            if threading.current_thread() is not self._thread:
                self._changed.wait_for(lambda: self._thread is None)

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._waiting:
                    self._thread = None
                    self._changed.notify_all()
                    return
                held, function = self._waiting.popleft()
            try:
                issue.ask(self._commands, "stream.synchronize", held)
                function()
            except BaseException:  # the thread must go on: others wait for it
                threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))


_host_functions: weakref.WeakKeyDictionary[CommandStream, HostFunctions] = weakref.WeakKeyDictionary()


def host_functions(commands: CommandStream) -> HostFunctions:
    """The host functions that wait for this device."""
    found = _host_functions.get(commands)
    return found or _host_functions.setdefault(commands, HostFunctions(commands))


def finish_host_functions(commands: CommandStream) -> None:
    """Before host memory is read for the device: functions that come first may still write it."""
    found = _host_functions.get(commands)
    if found is not None:
        found.finish()
