"""``cupy.cuda.cusolver``: cuSOLVER by handle. Solvers are in `cupy.linalg`.

Names of CuPy's that are not here raise NotImplementedError with their name when used.
"""

from __future__ import annotations

from rgpu import surface
from rgpu.cuda.errors import library_error

CUSOLVERError = library_error("CUSOLVERError", "cupy_backends.cuda.libs.cusolver")

_VERSION = 11, 7, 5


def getProperty(type: int) -> int:  # noqa: N802, A002 - CuPy's names
    """A part of the version of the cuSOLVER whose interface this is: 0 major, 1 minor, 2 patch."""
    return _VERSION[type]


def _getVersion() -> tuple[int, int, int]:  # noqa: N802 - CuPy's name, by which programs ask
    return _VERSION


__getattr__, __dir__ = surface.face(__name__)
