"""``cupy.cuda.memory_hooks.line_profile``: a hook into allocation, which happens on the worker.

Its names raise NotImplementedError when used.
"""

from __future__ import annotations

from rgpu import surface

__getattr__, __dir__ = surface.face(__name__)
