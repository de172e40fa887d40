"""``cupy.cuda.jitify``: A preprocessor of kernels.

Names of CuPy's that are not here raise NotImplementedError with their name when used.
"""

from __future__ import annotations

from rgpu import surface

__getattr__, __dir__ = surface.face(__name__)
