"""``cupyx.scipy.sparse``: sparse matrices composed of device arrays.

Construction and arithmetic are declared operations of the worker. What is not there yet says so by
name when used.
"""

from __future__ import annotations

from typing import Any

import rgpu._ndarray  # noqa: F401 - the class of results
from rgpu import surface
from rgpu.cupyx.scipy.sparse._base import SparseEfficiencyWarning as SparseEfficiencyWarning
from rgpu.cupyx.scipy.sparse._base import SparseWarning as SparseWarning
from rgpu.cupyx.scipy.sparse._base import _spbase
from rgpu.cupyx.scipy.sparse._base import sparray as sparray
from rgpu.cupyx.scipy.sparse._base import spmatrix as spmatrix
from rgpu.cupyx.scipy.sparse._construct import *  # noqa: F403 - every name there is CuPy's
from rgpu.cupyx.scipy.sparse._formats import coo_array as coo_array
from rgpu.cupyx.scipy.sparse._formats import (
    coo_matrix,
    csc_matrix,
    csr_matrix,
    dia_matrix,
)
from rgpu.cupyx.scipy.sparse._formats import csc_array as csc_array
from rgpu.cupyx.scipy.sparse._formats import csr_array as csr_array
from rgpu.cupyx.scipy.sparse._formats import dia_array as dia_array


def issparse(x: Any) -> bool:
    """Whether x is one of these matrices or arrays."""
    return isinstance(x, _spbase)


def isspmatrix(x: Any) -> bool:
    return isinstance(x, spmatrix)


def isspmatrix_csr(x: Any) -> bool:
    return isinstance(x, csr_matrix)


def isspmatrix_csc(x: Any) -> bool:
    return isinstance(x, csc_matrix)


def isspmatrix_coo(x: Any) -> bool:
    return isinstance(x, coo_matrix)


def isspmatrix_dia(x: Any) -> bool:
    return isinstance(x, dia_matrix)


__getattr__, __dir__ = surface.face(__name__)
