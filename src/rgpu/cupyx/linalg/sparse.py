"""``cupyx.linalg.sparse``: a sparse linear system whose matrix is positive definite."""

from __future__ import annotations

from typing import Any

import numpy as np

from rgpu import surface
from rgpu.cupyx.scipy import sparse


def lschol(A: Any, b: Any) -> Any:  # noqa: N803 - CuPy's name
    """The solution of ``A x = b``, float64 (N,), for a symmetric positive definite A (N, N), sparse or dense.

    ValueError for a ``b`` that is not a vector of N. The worker factors A by LU, which does not need it definite.
    """
    if not (sparse.issparse(A) and A.format == "csr"):
        A = sparse.csr_matrix(A)  # noqa: N806
    if A.shape[0] != A.shape[1]:
        raise np.linalg.LinAlgError("Last 2 dimensions of the array must be square")
    if b.ndim != 1 or len(b) != A.shape[0]:
        raise ValueError("b must be 1-d array whose size is same as A")
    dtype = np.result_type(A.dtype, np.float32)
    return sparse.linalg.spsolve(A.astype(dtype), b.astype(dtype)).astype(np.float64)


__getattr__, __dir__ = surface.face(__name__)
