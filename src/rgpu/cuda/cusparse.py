"""``cupy.cuda.cusparse``: cuSPARSE by handle. Sparse matrices are in `cupyx.scipy.sparse`.

Names of CuPy's that are not here raise NotImplementedError with their name when used.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from rgpu import surface
from rgpu.cuda.errors import library_error

CuSparseError = library_error("CuSparseError", "cupy_backends.cuda.libs.cusparse")

# ---- descriptors of matrices: what cuSPARSE's older routines are told of one ----------------------

_INVALID_VALUE = 3  # CUSPARSE_STATUS_INVALID_VALUE

_descriptors: dict[int, dict[str, int]] = {}  # by the numbers that stand for them, which are not used again
_numbers = itertools.count(1)


def createMatDescr() -> int:  # noqa: N802 - CuPy's name
    """A new descriptor, of a general matrix that counts from zero; `destroyMatDescr` ends it."""
    number = next(_numbers)
    _descriptors[number] = dict.fromkeys(("type", "index_base", "fill_mode", "diag_type"), 0)
    return number


def destroyMatDescr(descr: int) -> None:  # noqa: N802
    """End a descriptor. CuSparseError for none."""
    _described(descr)
    del _descriptors[descr]


def _described(descr: int) -> dict[str, int]:
    if descr not in _descriptors:
        raise CuSparseError(_INVALID_VALUE)
    return _descriptors[descr]


def _setter(field: str, values: int) -> Callable[[int, int], None]:
    def put(descr: int, value: int) -> None:
        if value not in range(values):
            raise CuSparseError(_INVALID_VALUE)
        _described(descr)[field] = int(value)

    put.__doc__ = f"Set a descriptor's {field}, below {values}. CuSparseError for another value and for no descriptor."
    return put


setMatType = _setter("type", 4)  # noqa: N816
setMatIndexBase = _setter("index_base", 2)  # noqa: N816
setMatFillMode = _setter("fill_mode", 2)  # noqa: N816
setMatDiagType = _setter("diag_type", 2)  # noqa: N816

__getattr__, __dir__ = surface.face(__name__)
