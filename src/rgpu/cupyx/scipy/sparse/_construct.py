"""Matrices from descriptions: identities, diagonals, blocks, products, random places.

Each is one declared operation of the worker, but for the random ones, which are draws.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rgpu.cupyx.scipy.sparse import _call
from rgpu.cupyx.scipy.sparse._formats import coo_array, coo_matrix, dia_matrix
from rgpu.cupyx.scipy.sparse._indices import get_index_dtype as get_index_dtype
from rgpu.cupyx.scipy.sparse._indices import safely_cast_index_arrays as safely_cast_index_arrays
from rgpu.functions import creation

__all__ = [
    "block_array", "block_diag", "bmat", "diags", "diags_array", "eye", "eye_array", "find", "get_index_dtype",
    "hstack", "identity", "kron", "kronsum", "matrix_transpose", "permute_dims", "rand", "random",
    "random_array", "safely_cast_index_arrays", "spdiags", "swapaxes", "tril", "triu", "vstack",
]  # fmt: skip


def _made(name: str, *args: Any, **kwargs: Any) -> Any:
    return _call.ask(name, *args, **{key: value for key, value in kwargs.items() if value is not None})


def _stacked(blocks: list) -> str:
    """The format of blocks put together: as the blocks', where compressed ones lie along their compressed axis."""
    formats = {getattr(block, "format", None) for row in blocks for block in row}
    if formats == {"csr"} and all(len(row) == 1 for row in blocks):
        return "csr"
    return "csc" if formats == {"csc"} and len(blocks) == 1 else "coo"


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


def diags_array(
    diagonals: Any, /, *, offsets: Any = 0, shape: Any = None, format: Any = None, dtype: Any = None
) -> Any:
    """A sparse array of diagonals."""
    dtype = None if dtype is None else np.dtype(dtype)
    return _made("diags_array", diagonals, offsets=offsets, shape=shape, format=format, dtype=dtype)


def eye_array(m: int, n: int | None = None, *, k: int = 0, dtype: Any = float, format: Any = None) -> Any:
    """A sparse array with ones on the k-th diagonal."""
    return _made("eye_array", m, n, k=k, dtype=np.dtype(dtype), format=format)


def block_array(blocks: Any, *, format: Any = None, dtype: Any = None) -> Any:
    """A sparse array of blocks; None is a block of zeros."""
    blocks = [list(row) for row in blocks]
    format = format or _stacked(blocks)
    return _made("block_array", blocks, format=format, dtype=None if dtype is None else np.dtype(dtype))


def matrix_transpose(A: Any) -> Any:  # noqa: N803 - CuPy's name
    """The last two axes exchanged."""
    return A.transpose()


def swapaxes(A: Any, axis1: int, axis2: int) -> Any:  # noqa: N803
    """Two axes exchanged."""
    axes = list(range(A.ndim))
    if not all(-A.ndim <= axis < A.ndim for axis in (axis1, axis2)):
        raise ValueError("Invalid axis")
    axes[axis1], axes[axis2] = axes[axis2], axes[axis1]
    return permute_dims(A, axes)


def permute_dims(A: Any, axes: Any = None, copy: bool = False) -> Any:  # noqa: N803
    """The axes in another order; without ``axes`` backwards."""
    order = list(range(A.ndim))
    axes = order[::-1] if axes is None else [int(axis) % A.ndim if -A.ndim <= axis < A.ndim else -1 for axis in axes]
    if sorted(axes) != order:
        raise ValueError("axes must be a permutation of the dimensions")
    return A.transpose(copy=copy) if axes != order else A.copy() if copy else A


def spdiags(data: Any, diags: Any, m: int, n: int, format: Any = None) -> Any:
    """A matrix of diagonals, given as the rows of an array."""
    return dia_matrix((data, diags), shape=(m, n)).asformat(format)


def bmat(blocks: Any, format: Any = None, dtype: Any = None) -> Any:
    """A matrix of blocks; None is a block of zeros."""
    blocks = [list(row) for row in blocks]
    return _made("bmat", blocks, format=format or _stacked(blocks), dtype=None if dtype is None else np.dtype(dtype))


def vstack(blocks: Any, format: Any = None, dtype: Any = None) -> Any:
    """Matrices on top of each other."""
    blocks = list(blocks)
    format = format or _stacked([[block] for block in blocks])
    return _made("vstack", blocks, format=format, dtype=None if dtype is None else np.dtype(dtype))


def hstack(blocks: Any, format: Any = None, dtype: Any = None) -> Any:
    """Matrices side by side."""
    blocks = list(blocks)
    format = format or _stacked([blocks])
    return _made("hstack", blocks, format=format, dtype=None if dtype is None else np.dtype(dtype))


def block_diag(mats: Any, format: Any = None, dtype: Any = None) -> Any:
    """Matrices on the diagonal of a matrix of zeros. Lists are rows, or matrices of doubles."""

    def block(x: Any) -> Any:
        return x if hasattr(x, "shape") else np.atleast_2d(np.asarray(x, np.result_type(np.asarray(x), np.float64)))

    blocks = [block(x) for x in mats]
    return _made("block_diag", blocks, format=format, dtype=None if dtype is None else np.dtype(dtype))


def kron(A: Any, B: Any, format: Any = None) -> Any:  # noqa: N803 - CuPy's names
    """Kronecker product."""
    return _made("kron", A, B, format=format or "coo")


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


def random_array(
    shape: Any, *, density: float = 0.01, format: str = "coo", dtype: Any = None, rng: Any = None,
    random_state: Any = None, data_sampler: Any = None,
) -> Any:  # fmt: skip
    """A sparse array with random values at random places."""
    shape = (int(shape),) if isinstance(shape, int) else tuple(int(n) for n in shape)
    rows = shape[0] if len(shape) > 1 else 1
    sampler = None if data_sampler is None else lambda count: data_sampler(size=count)
    made = random(rows, shape[-1], density, "coo", dtype, rng if random_state is None else random_state, sampler)
    coords = (made.row, made.col) if len(shape) > 1 else (made.col,)
    return coo_array((made.data, coords), shape=shape).asformat(format)


def rand(
    m: int, n: int, density: float = 0.01, format: str = "coo", dtype: Any = None, random_state: Any = None
) -> Any:
    """A matrix with uniform random values at random places."""
    return random(m, n, density, format, dtype, random_state)
