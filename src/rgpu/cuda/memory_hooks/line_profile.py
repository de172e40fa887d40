"""``cupy.cuda.memory_hooks.line_profile``: a hook that adds up allocations by the program's lines.

Frames of this package are left out, as CuPy's compiled ones never show.
"""

from __future__ import annotations

import sys
import traceback
from typing import Any

from rgpu import surface
from rgpu.client import failures
from rgpu.cuda.memory_hook import MemoryHook


class _Line:
    """A line in one way to get there: bytes taken out of pools below it, and from the device, and the next lines."""

    def __init__(self) -> None:
        self.used = self.acquired = 0
        self.below: dict[tuple, _Line] = {}

    def sizes(self) -> str:
        return f"({_shown(self.used)}, {_shown(self.acquired)})"


def _shown(size: float) -> str:
    for unit in ("", "K", "M", "G", "T", "P", "E"):
        if size < 1024:
            return f"{size:.2f}{unit}B"
        size /= 1024
    return f"{size:.2f}ZB"


class LineProfileHook(MemoryHook):
    """Adds up the bytes that a program's lines allocate, callers above what they call.

    ``max_depth``: so many lines of output deep at most, the root among them (0: any depth).
    """

    __module__ = "cupy.cuda.memory_hooks.line_profile"
    name = "LineProfileHook"

    def __init__(self, max_depth: int = 0) -> None:
        self._root, self._max_depth = _Line(), max_depth

    def malloc_preprocess(self, **kwargs: Any) -> None:
        self._add(used=kwargs["mem_size"])

    def alloc_preprocess(self, **kwargs: Any) -> None:
        self._add(acquired=kwargs["mem_size"])

    def _add(self, used: int = 0, acquired: int = 0) -> None:
        line, path = self._root, [x for x in traceback.extract_stack() if failures.is_outside(x.filename)]
        if self._max_depth > 0:
            path = path[: self._max_depth - 1]
        for step in (None, *path):
            if step is not None:
                line = line.below.setdefault((step.filename, step.lineno, step.name), _Line())
            line.used += used
            line.acquired += acquired

    def print_report(self, file: Any = sys.stdout) -> None:
        """Write ``file:line:function (used, acquired)`` for each line, two spaces deeper than its caller."""
        file.write(f"_root {self._root.sizes()}\n")
        waiting = [(1, *item) for item in reversed(self._root.below.items())]
        while waiting:
            depth, (filename, number, name), line = waiting.pop()
            file.write(f"{'  ' * depth}{filename}:{number}:{name} {line.sizes()}\n")
            waiting += [(depth + 1, *item) for item in reversed(line.below.items())]
        file.flush()


__getattr__, __dir__ = surface.face(__name__)
