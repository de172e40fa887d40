"""Index arrays of sparse matrices: which dtype they have, and what must be true of arrays that make a matrix.

Matrices keep positions in int32 wherever they fit (and look at int64 ones to find out, which waits); sparse arrays keep
the dtype they were given. Knows nothing of formats beyond their arrays, and sends no sparse operation.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_LARGEST = np.iinfo(np.int32).max


def get_index_dtype(arrays: Any = (), maxval: Any = None, check_contents: bool = False) -> Any:
    """int32 where the indices (and ``maxval``) fit, else int64. Looks at contents only if asked (and waits)."""
    wide = maxval is not None and maxval > _LARGEST
    for array in (arrays,) if hasattr(arrays, "dtype") else arrays:
        if wide or np.can_cast(array.dtype, np.int32):
            continue
        low, high = (int(array.min()), int(array.max())) if check_contents and array.size else (0, 0)
        wide = not check_contents or high > _LARGEST or low < -_LARGEST - 1
    return np.int64 if wide else np.int32


def safely_cast_index_arrays(A: Any, idx_dtype: Any = np.int32, msg: str = "") -> Any:  # noqa: N803
    """The index arrays in another dtype; ValueError where they do not fit (waits)."""
    limit = np.iinfo(idx_dtype).max
    arrays = A.coords if A.format == "coo" else (A.offsets,) if A.format == "dia" else (A.indices, A.indptr)
    if max(A.shape) > limit or (arrays[0].dtype.itemsize > np.dtype(idx_dtype).itemsize and A.nnz > limit):
        raise ValueError(f"indices are too large for {np.dtype(idx_dtype)}{f' ({msg})' if msg else ''}")
    cast = tuple(array.astype(idx_dtype, copy=False) for array in arrays)
    return cast[0] if A.format == "dia" else cast


def fitting(arrays: tuple, shape: tuple | None, contents: bool) -> tuple:
    """Index arrays in the one dtype that they and the shape need; ``contents``: int32 wherever the values fit."""
    dtype = get_index_dtype(arrays, None if shape is None else max(shape), contents)
    return tuple(array.astype(dtype, copy=False) for array in arrays)


def check_together(data: Any, arrays: tuple, shape: tuple, counted: int) -> None:
    """ValueError for arrays that cannot be one matrix. ``counted``: how many of them have an entry for each element."""
    if any(array.ndim != 1 for array in (data, *arrays)):
        raise ValueError("the arrays of a sparse matrix must be 1-D")
    if len({array.dtype for array in arrays}) != 1:
        raise ValueError(f"index arrays must have the same dtype, not {', '.join(str(x.dtype) for x in arrays)}")
    if any(array.size != data.size for array in arrays[:counted]):
        raise ValueError(f"data and indices must have the same length: {data.size}, not {arrays[0].size}")
    largest = np.iinfo(arrays[0].dtype).max
    if max(shape) > largest:
        raise ValueError(f"the shape {shape} is too large for index dtype {arrays[0].dtype}")
    if data.size > largest:
        raise ValueError(f"nnz {data.size} is too large for index dtype {arrays[0].dtype}")


def int32_only(A: Any, name: str) -> None:  # noqa: N803
    """ValueError for a matrix with int64 indices, which no solver of CuPy's takes."""
    if any(array.dtype.itemsize > 4 for array in A._arrays()[1:]):
        raise ValueError(f"{name} does not take int64 indices; cast them to int32 where they fit")
