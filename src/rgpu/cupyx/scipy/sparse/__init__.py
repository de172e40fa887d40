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
from rgpu.cupyx.scipy.sparse._base import spmatrix as spmatrix
from rgpu.cupyx.scipy.sparse._construct import (
    block_diag as block_diag,
)
from rgpu.cupyx.scipy.sparse._construct import (
    bmat as bmat,
)
from rgpu.cupyx.scipy.sparse._construct import (
    diags as diags,
)
from rgpu.cupyx.scipy.sparse._construct import (
    eye as eye,
)
from rgpu.cupyx.scipy.sparse._construct import (
    find as find,
)
from rgpu.cupyx.scipy.sparse._construct import (
    hstack as hstack,
)
from rgpu.cupyx.scipy.sparse._construct import (
    identity as identity,
)
from rgpu.cupyx.scipy.sparse._construct import (
    kron as kron,
)
from rgpu.cupyx.scipy.sparse._construct import (
    kronsum as kronsum,
)
from rgpu.cupyx.scipy.sparse._construct import (
    rand as rand,
)
from rgpu.cupyx.scipy.sparse._construct import (
    random as random,
)
from rgpu.cupyx.scipy.sparse._construct import (
    spdiags as spdiags,
)
from rgpu.cupyx.scipy.sparse._construct import (
    tril as tril,
)
from rgpu.cupyx.scipy.sparse._construct import (
    triu as triu,
)
from rgpu.cupyx.scipy.sparse._construct import (
    vstack as vstack,
)
from rgpu.cupyx.scipy.sparse._formats import coo_matrix, csc_matrix, csr_matrix, dia_matrix


def issparse(x: Any) -> bool:
    """Whether x is one of these matrices."""
    return isinstance(x, spmatrix)


isspmatrix = issparse


def isspmatrix_csr(x: Any) -> bool:
    return isinstance(x, csr_matrix)


def isspmatrix_csc(x: Any) -> bool:
    return isinstance(x, csc_matrix)


def isspmatrix_coo(x: Any) -> bool:
    return isinstance(x, coo_matrix)


def isspmatrix_dia(x: Any) -> bool:
    return isinstance(x, dia_matrix)


__getattr__, __dir__ = surface.face(__name__)
