"""Server-side exceptions made local again: the class CuPy raises, with where it came from.

A failure carries the server's traceback and the client's line that issued the command, as notes.
Only classes in ``KINDS`` are rebuilt; anything else is a RemoteError. Nothing is unpickled.
"""

from __future__ import annotations

import builtins
import linecache
import os
import sys
from collections import Counter
from typing import Any

import numpy as np

from rgpu import errors
from rgpu.wire.values import Decoder

LINES_SHOWN = 20  # of the commands whose outcome is unknown
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
#: file name -> whether it is the user's; whoever issues commands fast asks this before ``place_of``
outside: dict[str, bool] = {}

#: class name on the wire -> class; ``rgpu.cuda`` adds CuPy's own
KINDS: dict[str, type[BaseException]] = {
    name: getattr(builtins, name)
    for name in (
        "ArithmeticError AttributeError BufferError FloatingPointError IndexError KeyError MemoryError "
        "NotImplementedError OverflowError RecursionError RuntimeError TypeError ValueError ZeroDivisionError"
    ).split()
}
KINDS["LinAlgError"] = np.linalg.LinAlgError
KINDS["AxisError"] = np.exceptions.AxisError
KINDS["PredictionError"] = errors.PredictionError
KINDS["ProtocolError"] = errors.ProtocolError
KINDS["PeerLost"] = errors.PeerLost


def is_outside(name: str) -> bool:
    """Whether a file is the user's."""
    return not name.startswith(_PACKAGE)


def place_of(frame: Any) -> tuple | None:
    """(code, instruction) of the innermost frame from here on that is outside this package: the user's line."""
    while frame is not None:
        code = frame.f_code
        users = outside.get(code.co_filename)  # by name: the hash of a code object is slow
        if users is None:
            users = is_users(code)
        if users:
            return code, frame.f_lasti
        frame = frame.f_back
    return None


def is_users(code: Any) -> bool:
    """Whether a code object is the user's."""
    name = code.co_filename
    users = outside.get(name)
    if users is None:
        users = outside[name] = is_outside(name)
    return users


def users_level() -> int:
    """The ``stacklevel`` with which a warning that the caller gives names the user's line."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and not is_users(frame.f_code):
        frame, level = frame.f_back, level + 1
    return level


def line_of(place: tuple) -> int:
    """The line number of a place_of()."""
    code, instruction = place
    for start, end, number in code.co_lines():
        if start <= instruction < end and number is not None:
            return number
    return code.co_firstlineno


def describe_place(place: tuple | None) -> str:
    """``file:line: source`` of a place_of()."""
    if place is None:
        return ""
    code, line = place[0], line_of(place)
    source = linecache.getline(code.co_filename, line).strip()
    return f"issued by {code.co_filename}:{line}: {source}"


class Failure:
    """One failed command as the worker told it."""

    def __init__(self, reply: Any, place: tuple | None, device: str) -> None:
        self.reply, self.place, self.device = reply, place, device

    @property
    def kind(self) -> str:
        return self.reply.kind

    @property
    def where(self) -> tuple[int, int]:
        return self.reply.batch, self.reply.index

    def told_by(self, seen: Failure) -> bool:
        """Whether who has seen the other error knows of this one: that of the same command; and of all that was
        issued on a communicator that had ended, one error says so."""
        return self is seen or self.where == seen.where or self.kind == seen.kind == "NcclError"

    def line(self) -> str:
        """All of it in one line, for a program that is ending."""
        error, place = self.exception(), describe_place(self.place)
        text = " ".join(f"{self.reply.kind}: {error}".split())
        return f"{text} ({place + ', ' if place else ''}on {self.device})"

    def exception(self) -> BaseException:
        """The exception to raise, with notes."""
        reply = self.reply
        decode = Decoder(lambda _: None)
        args = [decode(x) for x in reply.args]
        kind = KINDS.get(reply.kind)
        if kind is None and reply.kind.endswith("MemoryError"):
            kind = KINDS.get("OutOfMemoryError", MemoryError)
        if kind is None:
            error: BaseException = errors.RemoteError(f"{reply.kind}: {' '.join(map(str, args))}")
        else:
            try:
                error = kind(*args)
            except TypeError:
                error = errors.RemoteError(f"{reply.kind}: {' '.join(map(str, args))}")
        place = describe_place(self.place)
        if place:
            error.add_note(place)
        if reply.traceback:
            error.add_note(f"on {self.device}:\n{reply.traceback.rstrip()}")
        return error


class Diverged(Failure):
    """Two workers gave different answers."""

    kind = "Divergence"
    where = (-1, -1)  # of no command that anybody else was told of

    def __init__(self, text: str, device: str) -> None:
        self.text, self.device = text, device

    def exception(self) -> BaseException:
        return errors.Divergence(f"the two workers of {self.device} do not agree: {self.text}")


def fresh(error: BaseException) -> BaseException:
    """A new exception equal to one that is kept, so that tracebacks do not pile up on it."""
    made = type(error)(*error.args)
    made.__cause__ = error.__cause__
    return made


def unconfirmed(places: list, others: int, waiting: int) -> errors.OutcomeUnknown | None:
    """What became unknown with a session: commands sent and not confirmed, by their ``places`` as far as they are
    still known (``others`` are not). ``waiting`` had not left: they did not run."""
    if not places and not others:
        return None
    lines = tuple(describe_place(place).removeprefix("issued by ") or "?" for place in places)
    counted = [f"  {count} x {line}" for line, count in Counter(lines).most_common(LINES_SHOWN)]
    more = f"; {waiting} more had not been sent and did not run" if waiting else ""
    text = f"{len(lines) + others} commands were sent and are not confirmed. They may have run or not{more}:"
    unknown = errors.OutcomeUnknown("\n".join([text, *counted]))
    unknown.commands = lines
    return unknown
