"""``cupy.cuda.memory_hooks``: the hooks that come with CuPy."""

from __future__ import annotations

from rgpu import surface
from rgpu.cuda.memory_hooks import debug_print as debug_print
from rgpu.cuda.memory_hooks import line_profile as line_profile
from rgpu.cuda.memory_hooks.debug_print import DebugPrintHook as DebugPrintHook
from rgpu.cuda.memory_hooks.line_profile import LineProfileHook as LineProfileHook

__getattr__, __dir__ = surface.face(__name__)
