"""Looking into a session of another program: a line to its worker that reads and changes nothing."""

from __future__ import annotations

import itertools
from typing import Any

from rgpu import link
from rgpu.client import checkpoint, state
from rgpu.client.seat import reachable
from rgpu.client.stream import CommandStream
from rgpu.session import Session

FIRST = 1 << 63  # of the handles that no program uses


class Visit:
    """``visiting``: what ``DaemonClient.visit`` answered."""

    def __init__(self, daemon: Any, visiting: Any, kind: str) -> None:
        given = None if daemon.token and daemon.token.own else daemon.token
        token = given and given.but(server_key=visiting.key)
        wire = link.connect(reachable(daemon, visiting.endpoints), visiting.visit, kind, token)
        self._stream = CommandStream(Session(visiting.visit, 1), wire, name=f"the session on {daemon.address}")
        self._stream.lose_after(10.0)

    def __enter__(self) -> state.Line:
        return state.Line(self._stream, itertools.count(FIRST).__next__)

    def __exit__(self, *_: Any) -> None:
        self._stream.close()


def kept(line: state.Line) -> tuple[list[tuple], str]:
    """The entries that a checkpoint has, and what it cannot have."""
    entries = state.describe(line)
    found = [entry for entry in checkpoint.savable(entries) if entry[2] != "random.Generator"]
    return found, state.left(entries)


def defaults(entries: list[tuple]) -> dict:
    """If there is just one RandomState it is the device's own."""
    found = [entry[1] for entry in entries if entry[0] == "made" and entry[2] == "random.RandomState"]
    return {"0": [found[0], 100]} if len(found) == 1 else {}
