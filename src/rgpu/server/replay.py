"""Sequences of commands that a client repeats: kept once, written out again for each repetition.

The twin of csrc/execute_replay.c. Knows no command but that those which repeat others may not be repeated themselves;
what is written out passes the same gate as what a client sends.
"""

from __future__ import annotations

from typing import NamedTuple

from rgpu.errors import ProtocolError
from rgpu.wire import codec, limits, ops

_REPEATING = (ops.Template.tag, ops.Replay.tag)


class _Template(NamedTuple):
    commands: int
    pieces: list[bytes]
    holes: list[int | None]

    def told(self) -> tuple[int, bytes, list[int], list[int | None]]:
        """As the client told it."""
        return self.commands, b"".join(self.pieces), [len(piece) for piece in self.pieces], list(self.holes)


class Templates:
    """Those of one session."""

    def __init__(self) -> None:
        self._kept: dict[int, _Template] = {}

    def get(self, template: int) -> _Template | None:
        return self._kept.get(template)

    def items(self) -> list[tuple[int, _Template]]:
        return list(self._kept.items())

    def define(self, template: int, count: int, data: bytes, pieces: list, holes: list) -> None:
        """Keep one, in place of an earlier one of this number. Raises ProtocolError."""
        if template >= limits.TEMPLATES or not 0 < count <= limits.BATCH:
            raise ProtocolError(f"template {template} of {count} commands")
        if len(pieces) != len(holes) + 1 or sum(pieces) != len(data):
            raise ProtocolError("the pieces of a template do not fit its data")
        cut, at = [], 0
        for size in pieces:
            cut.append(data[at : at + size])
            at += size
        self._kept[template] = _Template(count, cut, list(holes))

    def expand(self, template: int, base: int, given: list) -> list:
        """The commands of a repetition. Raises ProtocolError."""
        kept = self._kept.get(template)
        if kept is None:
            raise ProtocolError(f"unknown template {template}")
        if kept.holes.count(None) != len(given):
            raise ProtocolError(f"{len(given)} values for template {template}")
        whole, values = [b"\xdd" + kept.commands.to_bytes(4, "big"), kept.pieces[0]], iter(given)
        for hole, piece in zip(kept.holes, kept.pieces[1:]):
            value = next(values) if hole is None else (base + hole) % 2**64
            whole += (codec.pack(value), piece)
        commands = codec.unpack(b"".join(whole))
        for command in commands:
            if type(command) is list and command and command[0] in _REPEATING:
                raise ProtocolError("a template repeats no template")
        return commands
