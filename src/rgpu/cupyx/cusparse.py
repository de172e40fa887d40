"""``cupyx.cusparse``: operations on sparse matrices by the names of cuSPARSE's routines, which run on every backend.

Each is what the classes of ``cupyx.scipy.sparse`` do; routines that CUDA 12 no longer has are not here either.
Must not compute anything here.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

import rgpu as cp
import rgpu.cupyx.scipy.sparse.linalg  # noqa: F401
from rgpu import surface
from rgpu.cuda import cusparse as _library
from rgpu.cupyx.scipy import sparse
from rgpu.cupyx.scipy.sparse import _call, _indices

_HERE = frozenset(
    """coo2csr coo2csc csr2coo csc2coo csr2cscEx2 csc2csrEx2 csrsort cscsort coosort csrgeam2 spgeam spgemm spmv spmm
    dense2csr dense2csc denseToSparse sparseToDense spsm csr2csr_compress csrilu02""".split()
)
_GONE = frozenset("csrmv csrmm csrmm2 csrgeam csrgemm csrgemm2 csr2dense csc2dense csr2csc csc2csr csrsm2".split())


def check_availability(name: str) -> bool:
    """Whether a routine is there. ValueError for a name that CuPy does not ask for."""
    if name not in _HERE | _GONE:
        raise ValueError(f"No available version information specified for {name}")
    return name in _HERE


def getVersion() -> int:  # noqa: N802 - CuPy's name
    """Whose routines are here: CUDA 12's. What computes is the server's business."""
    return 12000


def _formats(formats: str, *matrices: Any) -> None:
    """TypeError for what is no sparse matrix of one of these formats."""
    for x in matrices:
        if not sparse.issparse(x) or x.format not in formats.split():
            raise TypeError(f"unsupported type (actual: {type(x)})")


class MatDescriptor:
    """How cuSPARSE's older routines are to read a matrix, by the number ``descriptor``. A copy is a new one."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor: int | None = descriptor

    @classmethod
    def create(cls) -> MatDescriptor:
        """A new descriptor, of a general matrix that counts from zero."""
        return cls(_library.createMatDescr())

    def __reduce__(self) -> tuple:
        return self.create, ()

    def __del__(self) -> None:
        if self.descriptor and not sys.is_finalizing():
            _library.destroyMatDescr(self.descriptor)
            self.descriptor = None

    def set_mat_type(self, typ: int) -> None:
        """General, symmetric, Hermitian or triangular: ``CUSPARSE_MATRIX_TYPE_*``."""
        _library.setMatType(self.descriptor, typ)

    def set_mat_index_base(self, base: int) -> None:
        """Whether it counts from zero or one: ``CUSPARSE_INDEX_BASE_*``."""
        _library.setMatIndexBase(self.descriptor, base)

    def set_mat_fill_mode(self, fill_mode: int) -> None:
        """Which triangle is there: ``CUSPARSE_FILL_MODE_*``."""
        _library.setMatFillMode(self.descriptor, fill_mode)

    def set_mat_diag_type(self, diag_type: int) -> None:
        """Whether the diagonal is ones: ``CUSPARSE_DIAG_TYPE_*``."""
        _library.setMatDiagType(self.descriptor, diag_type)


# ---- sums and products ----------------------------------------------------------------------------


def csrgeam2(a: Any, b: Any, alpha: Any = 1, beta: Any = 1) -> Any:
    """``alpha * a + beta * b`` of two csr matrices of one shape, as a csr matrix."""
    _formats("csr", a, b)
    if a.shape != b.shape:
        raise ValueError("inconsistent shapes")
    return (a * alpha + b * beta).asformat("csr")


spgeam = csrgeam2


def spgemm(a: Any, b: Any, alpha: Any = 1) -> Any:
    """``alpha * a @ b`` of two csr matrices, as a csr matrix."""
    _formats("csr", a, b)
    if a.shape[1] != b.shape[0]:
        raise ValueError(f"dimension mismatch: {a.shape} and {b.shape}")
    return (a @ b).asformat("csr") * alpha


def _dense_product(a: Any, x: Any, y: Any, alpha: Any, beta: Any, transa: bool) -> Any:
    _formats("csr csc coo", a)
    if (a.shape[0] if transa else a.shape[1]) != x.shape[0]:
        raise ValueError("dimension mismatch")
    if not a.has_canonical_format:
        raise ValueError("expected canonical format")
    product = (a.T if transa else a) @ x
    if y is None:
        return product * alpha if alpha != 1 else product
    if y.shape != product.shape:
        raise ValueError("dimension mismatch")
    y[...] = product * alpha + y * beta
    return y


def spmv(a: Any, x: Any, y: Any = None, alpha: Any = 1, beta: Any = 0, transa: bool = False) -> Any:
    """``alpha * op(a) @ x + beta * y`` for a vector ``x``, into ``y`` if there is one. ValueError for duplicates."""
    if x.ndim != 1:
        raise ValueError("x must be a 1-D array")
    return _dense_product(a, x, y, alpha, beta, transa)


def spmm(
    a: Any, b: Any, c: Any = None, alpha: Any = 1, beta: Any = 0, transa: bool = False, transb: bool = False
) -> Any:
    """``alpha * op(a) @ op(b) + beta * c`` for a dense ``b``, into ``c`` if there is one; both in Fortran order."""
    if b.ndim != 2:
        raise ValueError("b must be a 2-D array")
    if not b.flags.f_contiguous or (c is not None and not c.flags.f_contiguous):
        raise ValueError("b and c must be in Fortran order")
    return _dense_product(a, b.T if transb else b, c, alpha, beta, transa)


def spsm(
    a: Any, b: Any, alpha: Any = 1.0, lower: bool = True, unit_diag: bool = False, transa: Any = False
) -> Any:
    """The solution of ``op(a) x = alpha * b`` for a triangular sparse ``a``; ``transa``: False, True, 'N', 'T', 'H'."""
    _formats("csr csc coo", a)
    kind = {False: "N", True: "T"}.get(transa, transa)
    if kind not in ("N", "T", "H"):
        raise ValueError(f"unknown transa (actual: {transa})")
    if b.ndim not in (1, 2) or a.shape[0] != a.shape[1] or a.shape[0] != b.shape[0]:
        raise ValueError(f"a must be square and b have as many rows (actual: {a.shape}, {b.shape})")
    op = a if kind == "N" else a.T if kind == "T" else a.T.conj()
    solve = sparse.linalg.spsolve_triangular
    return solve(op.tocsr(), b * alpha, lower=lower == (kind == "N"), unit_diagonal=unit_diag)


def csrilu02(a: Any, level_info: bool = False) -> None:
    """The incomplete factors of a square csr matrix, without fill-in or pivoting, in its place (waits).

    TypeError for another format or dtype than fdFD; ValueError for other shapes, int64 indices, and a pivot that is
    missing or zero. ``level_info`` chooses how a GPU computes."""
    _formats("csr", a)
    if a.shape[0] != a.shape[1]:
        raise ValueError(f"invalid shape (a.shape: {a.shape})")
    _indices.int32_only(a, "csrilu02")
    if not isinstance(level_info, bool):
        raise ValueError(f"Unknown level_info (actual: {level_info})")
    if np.dtype(a.dtype).char not in "fdFD":
        raise TypeError(f"Invalid dtype (actual: {a.dtype})")
    a.data[...] = _call.ask("incomplete_lu", a).data


def csrsm2(*args: Any, **kwargs: Any) -> None:
    """Gone in CUDA 12: use ``spsm``."""
    raise RuntimeError("csrsm2 is not available.")


# ---- order and formats ----------------------------------------------------------------------------


def csrsort(x: Any) -> None:
    """Sort the indices of each row, in place."""
    _formats("csr csc", x)
    x._has_sorted_indices = False
    x.sort_indices()


cscsort = csrsort


def coosort(x: Any, sort_by: str = "r") -> None:
    """Sort the elements by row and column ('r'), or by column and row ('c'), in place."""
    _formats("coo", x)
    if sort_by not in ("r", "c"):
        raise ValueError("sort_by must be either 'r' or 'c'")
    keys = [x.col, x.row] if sort_by == "r" else [x.row, x.col]
    order = cp.lexsort(cp.stack(keys))
    x.row[...], x.col[...], x.data[...] = x.row[order], x.col[order], x.data[order]


def coo2csr(x: Any) -> Any:
    """A coo matrix as a csr matrix."""
    _formats("coo", x)
    return x.tocsr()


def coo2csc(x: Any) -> Any:
    """A coo matrix as a csc matrix."""
    _formats("coo", x)
    return x.tocsc()


def csr2coo(x: Any, data: Any, indices: Any) -> Any:
    """A compressed matrix as a coo matrix, with these values and indices in place of its own."""
    made = x.tocoo()
    made.data = data
    made.coords = (made.row, indices) if x.format == "csr" else (indices, made.col)
    return made


csc2coo = csr2coo


def csr2cscEx2(x: Any) -> Any:  # noqa: N802 - CuPy's name
    """A csr matrix as a csc matrix."""
    _formats("csr", x)
    return x.tocsc()


def csc2csrEx2(x: Any) -> Any:  # noqa: N802
    """A csc matrix as a csr matrix."""
    _formats("csc", x)
    return x.tocsr()


def denseToSparse(x: Any, format: str = "csr") -> Any:  # noqa: N802
    """A dense matrix as a sparse one."""
    if x.ndim != 2:
        raise ValueError("x must be a 2-D array")
    return getattr(sparse, f"{format}_matrix")(x)


def dense2csr(x: Any) -> Any:
    """A dense matrix as a csr matrix."""
    return denseToSparse(x, "csr")


def dense2csc(x: Any) -> Any:
    """A dense matrix as a csc matrix."""
    return denseToSparse(x, "csc")


def sparseToDense(x: Any, out: Any = None) -> Any:  # noqa: N802
    """A sparse matrix as a dense one, into ``out`` if there is one."""
    _formats("csr csc coo", x)
    if np.dtype(x.dtype).char not in "fdFD":
        raise TypeError(f"unsupported dtype (actual: {x.dtype})")
    return x.toarray(out=out)


def csr2csr_compress(x: Any, tol: Any) -> Any:
    """A copy of a csr matrix without the elements whose absolute value is ``tol`` or less."""
    _formats("csr", x)
    if np.dtype(x.dtype).char not in "fdFD":
        raise ValueError("unsupported dtype")
    kept = abs(x.data) > tol
    before = cp.zeros(len(kept) + 1, dtype=x.indptr.dtype)  # how many are kept of the elements before each
    cp.cumsum(kept, out=before[1:])
    return sparse.csr_matrix((x.data[kept], x.indices[kept], before[x.indptr]), shape=x.shape)


__getattr__, __dir__ = surface.face(__name__)
