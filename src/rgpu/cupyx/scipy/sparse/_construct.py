"""Matrices from descriptions: identities, diagonals, blocks, products, random places.

Each is one declared operation of the worker, but for the random ones, which are draws.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rgpu.cupyx.scipy.sparse import _call
from rgpu.cupyx.scipy.sparse._formats import coo_matrix, dia_matrix
from rgpu.functions import creation


def _made(name: str, *args: Any, **kwargs: Any) -> Any:
    return _call.ask(name, *args, **{key: value for key, value in kwargs.items() if value is not None})


def eye(m: int, n: int | None = None, k: int = 0, dtype: Any = "d", format: Any = None) -> Any:
    """Ones on the k-th diagonal."""
    return _made("eye", m, n, k=k, dtype=np.dtype(dtype), format=format)


def identity(n: int, dtype: Any = "d", format: Any = None) -> Any:
    """The identity matrix."""
    return eye(n, n, dtype=dtype, format=format)


def diags(diagonals: Any, offsets: Any = 0, shape: Any = None, format: Any = None, dtype: Any = None) -> Any:
    """A matrix of diagonals."""
    dtype = None if dtype is None else np.dtype(dtype)
    return _made("diags", diagonals, offsets, shape=shape, format=format, dtype=dtype)


def spdiags(data: Any, diags: Any, m: int, n: int, format: Any = None) -> Any:
    """A matrix of diagonals, given as the rows of an array."""
    return dia_matrix((data, diags), shape=(m, n)).asformat(format)


def bmat(blocks: Any, format: Any = None, dtype: Any = None) -> Any:
    """A matrix of blocks; None is a block of zeros."""
    blocks = [list(row) for row in blocks]
    return _made("bmat", blocks, format=format, dtype=None if dtype is None else np.dtype(dtype))


def vstack(blocks: Any, format: Any = None, dtype: Any = None) -> Any:
    """Matrices on top of each other."""
    return _made("vstack", list(blocks), format=format, dtype=None if dtype is None else np.dtype(dtype))


def hstack(blocks: Any, format: Any = None, dtype: Any = None) -> Any:
    """Matrices side by side."""
    return _made("hstack", list(blocks), format=format, dtype=None if dtype is None else np.dtype(dtype))


def block_diag(mats: Any, format: Any = None, dtype: Any = None) -> Any:
    """Matrices on the diagonal of a matrix of zeros."""
    return _made("block_diag", list(mats), format=format, dtype=None if dtype is None else np.dtype(dtype))


def kron(A: Any, B: Any, format: Any = None) -> Any:  # noqa: N803 - CuPy's names
    """Kronecker product."""
    return _made("kron", A, B, format=format)


def kronsum(A: Any, B: Any, format: Any = None) -> Any:  # noqa: N803
    """Kronecker sum."""
    return _made("kronsum", A, B, format=format)


def tril(A: Any, k: int = 0, format: Any = None) -> Any:  # noqa: N803
    """The lower triangle."""
    return _made("tril", A, k=k, format=format)


def triu(A: Any, k: int = 0, format: Any = None) -> Any:  # noqa: N803
    """The upper triangle."""
    return _made("triu", A, k=k, format=format)


def find(A: Any) -> Any:  # noqa: N803
    """Rows, columns and values of the nonzero elements."""
    return _made("find", A)


def random(
    m: int, n: int, density: float = 0.01, format: str = "coo", dtype: Any = None,
    random_state: Any = None, data_rvs: Any = None,
) -> Any:  # fmt: skip
    """A matrix with random values at random places."""
    from rgpu.random import RandomState, get_random_state

    if not 0 <= density <= 1:
        raise ValueError("density expected to be 0 <= density <= 1")
    state = random_state
    if state is None:
        state = get_random_state()
    elif not isinstance(state, RandomState):
        state = RandomState(state)
    dtype = np.dtype(float if dtype is None else dtype)
    if dtype.char not in "fd":
        raise NotImplementedError(f"type {dtype} not supported")
    count = int(m * n * density)
    places = state.choice(m * n, size=count, replace=False)
    values = state.rand(count, dtype=dtype) if data_rvs is None else creation.asarray(data_rvs(count), dtype)
    return coo_matrix((values, (places // n, places % n)), shape=(m, n)).asformat(format)


def rand(
    m: int, n: int, density: float = 0.01, format: str = "coo", dtype: Any = None, random_state: Any = None
) -> Any:
    """A matrix with uniform random values at random places."""
    return random(m, n, density, format, dtype, random_state)
