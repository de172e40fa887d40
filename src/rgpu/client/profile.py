"""RGPU_PROFILE: what each line of the user's program cost: its commands, its data, and when it waited and for what.

Filled by ``client.stream`` where batches leave and where answers are waited for, so issuing an operation costs nothing
more. Knows nothing of how it is shown (``client.report``), and never keeps an array alive.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rgpu.client import failures
from rgpu.wire import codec, ops
from rgpu.wire.functions import TABLE

_BOOKKEEPING = {ops.Free.tag, ops.Expect.tag, ops.Bye.tag, ops.UseStream.tag}
_WAITING = {ops.Ask.tag, ops.Read.tag, ops.Sync.tag}  # counted where they wait
_FUNCTION = {
    tag: [name for name, _ in record.fields].index("fn") + 1
    for tag, record in ops.Command.registry.items()
    if any(name == "fn" for name, _ in record.fields)
}
_OUTSIDE = ("<unknown>", 0)  # commands that no line of the program has issued


class Line:
    """One line of the program. Times in seconds, sizes in bytes."""

    def __init__(self) -> None:
        self.operations: Counter[str] = Counter()
        self.sent = self.received = 0
        self.waits: Counter[tuple[str, str]] = Counter()  # (what was called, what it waited for)
        self.waited: defaultdict[tuple[str, str], float] = defaultdict(float)

    def described(self) -> dict[str, Any]:
        waits = [
            {"call": call, "for": what, "count": count, "seconds": round(self.waited[call, what], 6)}
            for (call, what), count in self.waits.most_common()
        ]
        return {
            "operations": dict(self.operations.most_common()),
            "sent": self.sent,
            "received": self.received,
            "waits": waits,
        }


class Profile:
    """Of this process. ``target``: the file that gets it as JSON at the end; None: a report on stderr."""

    def __init__(self, target: str | None) -> None:
        self.target, self.pid = target, os.getpid()
        self.began = time.monotonic()
        self._lines: dict[tuple[str, int], Line] = {}
        self._places: dict[tuple[int, int], tuple[Any, Line]] = {}  # the code object is kept: its id is the key
        self._lock = threading.RLock()
        atexit.register(self.write)

    def _line(self, place: tuple | None) -> Line:
        if place is None:
            return self._lines.setdefault(_OUTSIDE, Line())
        code, instruction = place
        found = self._places.get((id(code), instruction))
        if found is None:
            line = self._lines.setdefault((code.co_filename, failures.line_of(place)), Line())
            found = self._places[id(code), instruction] = (code, line)
        return found[1]

    def batch(self, frames: list, places: list) -> None:
        """The commands of a message that leaves, and where they were issued."""
        _, commands = codec.unpack(frames[0])
        with self._lock:
            for command, place in zip(commands, places):
                tag = command[0]
                if tag in _BOOKKEEPING or tag in _WAITING:
                    continue
                line = self._line(place)
                if tag == ops.Put.tag:
                    line.sent += len(command[-1])
                elif tag == ops.Write.tag:
                    line.sent += sum(len(frame) for frame in frames[1:])
                line.operations[_name(command)] += 1

    @contextmanager
    def waiting(self, frame: Any, what: str, nbytes: int = 0) -> Iterator[None]:
        """Around a wait for ``what`` (values, completion, room or a function's name), called in ``frame``."""
        began = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - began
            called = _called(frame)
            with self._lock:
                line = self._line(failures.place_of(frame))
                line.waits[called, what] += 1
                line.waited[called, what] += seconds
                line.received += nbytes

    def described(self) -> dict[str, Any]:
        with self._lock:
            lines = [{"file": file, "line": line, **cost.described()} for (file, line), cost in self._lines.items()]
        return {
            "program": sys.argv,
            "pid": self.pid,
            "seconds": round(time.monotonic() - self.began, 6),
            "lines": lines,
        }

    def write(self) -> None:
        """The report, at the end of the process; once."""
        atexit.unregister(self.write)
        if os.getpid() != self.pid or not self._lines:
            return
        if self.target is None:
            from rgpu.client import report

            if sys.stderr is not None:
                print(report.text(self.described()), file=sys.stderr)
            return
        path = os.path.join(self.target, f"{os.getpid()}.json") if os.path.isdir(self.target) else self.target
        try:
            with open(path, "w") as file:
                json.dump(self.described(), file)
        except OSError as error:
            print(f"rgpu: RGPU_PROFILE: {path} cannot be written: {error.strerror}", file=sys.stderr)


def _name(command: list) -> str:
    """What a command does, in CuPy's words."""
    at = _FUNCTION.get(command[0])
    if at is not None:
        return TABLE[command[at]].name
    return {"put": "upload", "write": "upload"}.get(kind := ops.Command.registry[command[0]].__name__.lower(), kind)


def _called(frame: Any) -> str:
    """The function that the user's line called: the outermost one of this package, seen from ``frame``."""
    name = ""
    while frame is not None and not failures.is_users(frame.f_code):
        name = frame.f_code.co_name
        frame = frame.f_back
    return name


_profile: Profile | None = None


def started(setting: str) -> Profile | None:
    """The profile of this process, as RGPU_PROFILE asks for it; None when it does not."""
    global _profile
    if _profile is None and setting:
        _profile = Profile(None if setting == "1" else setting)
    return _profile
