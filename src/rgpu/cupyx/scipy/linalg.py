"""``cupyx.scipy.linalg``: matrix functions and special matrices.

From the table of declared functions; names that are not there yet say so when used.
"""

import warnings
from typing import Any

import rgpu as cp
from rgpu import surface
from rgpu.cupyx.scipy import _table

_table.fill(globals(), "linalg")


def kron(a: Any, b: Any) -> Any:
    """Kronecker product of two matrices. CuPy has deprecated it here."""
    warnings.warn("use `cupy.kron`: `cupyx.scipy.linalg.kron` is deprecated", DeprecationWarning, stacklevel=2)
    return cp.kron(a, b)


__getattr__, __dir__ = surface.face(__name__)
