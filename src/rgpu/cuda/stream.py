"""CuPy's ``Stream`` and ``Event``: which stream is current, per thread and device.

The objects and their order live on the worker (``rgpu.cuda.handles``). On a cpu device streams exist and
run in the order of issue. Callbacks run in a thread of the client.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any

from rgpu import surface
from rgpu.client import follow
from rgpu.client import pool as devices
from rgpu.cuda import graph, handles, runtime

_RELAXED = 2  # cudaStreamCaptureModeRelaxed, CuPy's default
_PRIORITIES = (-5, 0)  # greatest and least, as CUDA has them; others are clamped


class _Thread(threading.local):
    def __init__(self) -> None:
        self.current: dict[int, _BaseStream] = {}
        self.entered: dict[int, list[_BaseStream]] = {}
        self.devices: list[int] = []


_thread = _Thread()


def get_current_stream(device_id: int = -1) -> Any:
    """The current stream of this thread on a device (default: the current device)."""
    found = _thread.current.get(runtime.getDevice() if device_id == -1 else device_id)
    if found is None or (found._held is not None and found._held.stream.closed):  # or of an earlier session
        return Stream.null
    return found


def _make_current(stream: _BaseStream, device_id: int) -> None:
    _thread.current[device_id] = stream
    commands = devices.get().device(device_id).stream
    follow.use(commands, handles.handle_of(stream._held))


class _BaseStream:
    """A stream by its integer ``ptr``; ``device_id`` -1: of whichever device is current."""

    __module__ = "cupy.cuda.stream"
    _held: Any = None

    def __init__(self, ptr: int, device_id: int) -> None:
        self.ptr, self.device_id = ptr, device_id
        if ptr not in handles.DEFAULT_STREAMS:
            self._held = handles.find(ptr)  # keeps it alive

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BaseStream) and self.ptr == other.ptr

    def __hash__(self) -> int:
        return self.ptr

    def __reduce__(self) -> Any:
        raise TypeError(
            f"a {type(self).__name__} is a thing of this process and its device: it cannot be pickled or copied; "
            "make one where it is needed"
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.ptr} (device {self.device_id})>"

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.ptr

    def _on_device(self) -> int:
        current = runtime.getDevice()
        if self.device_id not in (-1, current):
            raise RuntimeError(
                f"The device that the stream is created on ({self.device_id}) "
                f"does not match with the current device ({current})"
            )
        return current

    def use(self) -> Any:
        """Make it current for this thread and the current device."""
        _make_current(self, self._on_device())
        return self

    def __enter__(self) -> Any:
        device_id = self._on_device()
        _thread.entered.setdefault(device_id, []).append(self)
        _thread.devices.append(device_id)
        _make_current(self, device_id)
        return self

    def __exit__(self, *_: Any) -> None:
        device_id = _thread.devices.pop()
        entered = _thread.entered[device_id]
        entered.pop()
        _make_current(entered[-1] if entered else Stream.null, device_id)

    @property
    def done(self) -> bool:
        return runtime.streamQuery(self.ptr) == 0

    @property
    def is_non_blocking(self) -> bool:
        return False

    @property
    def priority(self) -> int:
        return 0

    def synchronize(self) -> None:
        """Wait until everything issued on it has run; raises what failed."""
        runtime.streamSynchronize(self.ptr)

    def add_callback(self, callback: Callable[[Any, int, Any], None], arg: Any) -> None:
        """Run ``callback(stream, status, arg)`` on the client when the work issued so far is done."""
        runtime.streamAddCallback(self.ptr, lambda _, status, data: callback(self, status, data), arg)

    def launch_host_func(self, callback: Callable[[Any], None], arg: Any) -> None:
        """Run ``callback(arg)`` on the client when the work issued so far is done."""
        runtime.launchHostFunc(self.ptr, callback, arg)

    def record(self, event: Any = None) -> Any:
        """Record an event (default: a new one) and return it."""
        if event is None:
            event = Event()
        runtime.eventRecord(event.ptr, self.ptr)
        return event

    def wait_event(self, event: Any) -> None:
        """Later work on this stream waits for the event."""
        runtime.streamWaitEvent(self.ptr, event.ptr)

    def is_capturing(self) -> bool:
        return runtime.streamIsCapturing(self.ptr)

    def begin_capture(self, mode: int | None = None) -> None:
        """Keep what this stream is given instead of doing it, until ``end_capture``."""
        if self.ptr in handles.DEFAULT_STREAMS[:2]:
            raise RuntimeError("cannot capture on the default (legacy) stream")
        graph.begin(self.ptr, self.is_non_blocking, _RELAXED if mode is None else mode)

    def end_capture(self) -> graph.Graph:
        """The ``Graph`` of what the stream was given since ``begin_capture``."""
        if self.ptr in handles.DEFAULT_STREAMS[:2]:
            raise RuntimeError("cannot capture on the default (legacy) stream")
        return graph.end(self.ptr)


class Stream(_BaseStream):
    """A stream of the current device; ``Stream.null`` is the default one."""

    null: Stream
    ptds: Stream
    _foreign_stream_ref: Any = None
    _non_blocking, _priority = False, 0

    def __init__(
        self, null: bool = False, non_blocking: bool = False, ptds: bool = False, priority: int | None = None
    ) -> None:
        if null or ptds:
            super().__init__(0 if null else handles.PER_THREAD, -1)
            return
        self._non_blocking = bool(non_blocking)
        self._priority = min(max(priority or 0, _PRIORITIES[0]), _PRIORITIES[1])
        made = handles.create("stream.create", self._non_blocking, self._priority)
        super().__init__(made.pointer, runtime.getDevice())

    @classmethod
    def from_external(cls, obj: Any) -> Stream:
        """The stream of an object with ``__cuda_stream__``."""
        try:
            answer = obj.__cuda_stream__()
        except AttributeError:
            raise TypeError(
                f"{type(obj).__name__} does not implement the CUDA stream protocol (__cuda_stream__)"
            ) from None
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise TypeError("__cuda_stream__() must return a 2-tuple: (version, stream pointer)")
        version, pointer = answer
        if not isinstance(version, int) or not isinstance(pointer, int):
            raise TypeError(f"__cuda_stream__() must return (int, int), not {answer!r}")
        if version != 0:
            raise TypeError(f"__cuda_stream__() returned unsupported version {version}; 0 is known")
        stream = cls.__new__(cls)
        _BaseStream.__init__(stream, pointer, -1)
        stream._foreign_stream_ref = obj
        return stream

    @property
    def is_non_blocking(self) -> bool:
        return self._non_blocking

    @property
    def priority(self) -> int:
        return self._priority


class ExternalStream(_BaseStream):
    """A stream that somebody else made, by its integer."""

    def __init__(self, ptr: int, device_id: int = -1) -> None:
        warnings.warn(
            "ExternalStream is deprecated. Use Stream.from_external() instead.",
            DeprecationWarning,
            stacklevel=2,
        )
        super().__init__(ptr, device_id)


Stream.null = Stream(null=True)
Stream.ptds = Stream(ptds=True)


class Event:
    """A point in the work of a stream of the current device."""

    __module__ = "cupy.cuda.stream"

    def __init__(self, block: bool = False, disable_timing: bool = False, interprocess: bool = False) -> None:
        if interprocess and not disable_timing:
            raise ValueError("Timing must be disabled for interprocess events")
        flags = (
            (runtime.eventBlockingSync if block else 0)
            | (runtime.eventDisableTiming if disable_timing else 0)
            | (runtime.eventInterprocess if interprocess else 0)
        )
        self._held = handles.create("event.create", flags)
        self.ptr = self._held.pointer

    @property
    def done(self) -> bool:
        """Whether the work before it has run (or it was never recorded)."""
        return runtime.eventQuery(self.ptr) == 0

    def record(self, stream: Any = None) -> None:
        """Record it on a stream (default: the current one)."""
        runtime.eventRecord(self.ptr, (get_current_stream() if stream is None else stream).ptr)

    def synchronize(self) -> None:
        """Wait for the work before it."""
        runtime.eventSynchronize(self.ptr)


def get_elapsed_time(start_event: Event, end_event: Event) -> float:
    """Milliseconds between two recorded events (waits for both)."""
    return runtime.eventElapsedTime(start_event.ptr, end_event.ptr)


__getattr__, __dir__ = surface.face(__name__)
