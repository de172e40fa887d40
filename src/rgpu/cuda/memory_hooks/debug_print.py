"""``cupy.cuda.memory_hooks.debug_print``: a hook that writes a line of JSON for each allocation and release."""

from __future__ import annotations

import json
import sys
from typing import Any

from rgpu import surface
from rgpu.cuda.memory_hook import MemoryHook


class DebugPrintHook(MemoryHook):
    """Writes what allocates to ``file`` (default: standard output), one JSON object a line, ``flush``: at once.

    ``hook`` is "alloc", "malloc" or "free"; the other keys are those of MemoryHook's methods.
    """

    __module__ = "cupy.cuda.memory_hooks.debug_print"
    name = "DebugPrintHook"

    def __init__(self, file: Any = sys.stdout, flush: bool = True) -> None:
        self.file, self.flush = file, flush

    def _line(self, kind: str, said: dict[str, Any]) -> None:
        shown = {"hook": kind, **said}
        if "pmem_id" in shown:
            shown["pmem_id"] = hex(shown["pmem_id"])
        self.file.write(json.dumps(shown, separators=(",", ":")) + "\n")
        if self.flush:
            self.file.flush()

    def alloc_postprocess(self, **kwargs: Any) -> None:
        self._line("alloc", kwargs)

    def malloc_postprocess(self, **kwargs: Any) -> None:
        self._line("malloc", kwargs)

    def free_postprocess(self, **kwargs: Any) -> None:
        self._line("free", kwargs)


__getattr__, __dir__ = surface.face(__name__)
