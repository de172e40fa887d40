"""Arrays to test with: the same numbers with NumPy and on a device."""

from __future__ import annotations

from typing import Any

import numpy as np

from rgpu.functions import creation


def _on(xp: Any, host: np.ndarray) -> Any:
    return host if xp is np else creation.array(host)


def shaped_arange(shape: Any, xp: Any = None, dtype: Any = np.float32, order: str = "C") -> Any:
    """1, 2, 3, ... in the given shape (booleans: alternating, complex: with an imaginary part)."""
    dtype = np.dtype(dtype)
    values = np.arange(1, int(np.prod(shape)) + 1, 1)
    if dtype.kind == "b":
        values = values % 2 == 0
    elif dtype.kind == "c":
        values = values + values * 1j
    return _on(xp, np.array(values.astype(dtype).reshape(shape), order=order))  # type: ignore[call-overload]


def shaped_reverse_arange(shape: Any, xp: Any = None, dtype: Any = np.float32) -> Any:
    """..., 3, 2, 1 in the given shape."""
    dtype = np.dtype(dtype)
    values = np.arange(int(np.prod(shape)), 0, -1)
    if dtype.kind == "b":
        values = values % 2 == 0
    elif dtype.kind == "c":
        values = values + values * 1j
    return _on(xp, values.astype(dtype).reshape(shape))


def shaped_linspace(start: Any, stop: Any, shape: Any, xp: Any = None, dtype: Any = np.float32) -> Any:
    """Evenly spaced values in the given shape; not below 0 where the dtype has no such values, nor above 1 for bool."""
    dtype = np.dtype(dtype)
    if dtype.kind in "bu":
        start, stop = max(start, 0), min(stop, 1) if dtype.kind == "b" else stop
    return _on(xp, np.linspace(start, stop, int(np.prod(shape))).reshape(shape).astype(dtype))


def shaped_random(
    shape: Any, xp: Any = None, dtype: Any = np.float32, scale: float = 10, seed: int = 0, order: str = "C"
) -> Any:
    """Random values below ``scale`` in the given shape; the same for the same seed."""
    numbers, dtype = np.random.RandomState(seed), np.dtype(dtype)
    if dtype.kind == "b":
        values = numbers.randint(2, size=shape)
    else:
        values = numbers.rand(*shape) * scale
    if dtype.kind == "c":
        values = values + 1j * (numbers.rand(*shape) * scale)
    return _on(xp, np.array(values, dtype=dtype, order=order))  # type: ignore[call-overload]


def shaped_sparse_random(
    shape: Any, sp: Any = None, dtype: Any = np.float32, density: float = 0.01, format: str = "coo", seed: int = 0
) -> Any:
    """A random sparse matrix of SciPy's or ours (``sp``: the module)."""
    import scipy.sparse

    if sp is None:
        from rgpu.cupyx.scipy import sparse as sp  # noqa: PLW0127
    rows, columns = shape
    made = scipy.sparse.random(rows, columns, density, random_state=seed).astype(dtype)
    if not hasattr(sp, "coo_matrix"):
        raise ValueError(f"Module {sp} does not have the expected sparse APIs")
    return sp.coo_matrix(made).asformat(format)


def generate_matrix(shape: Any, xp: Any = None, dtype: Any = np.float32, *, singular_values: Any = None) -> Any:
    """Random matrices of shape (..., M, N) with these singular values, which broadcast to (..., min(M, N))."""
    if len(shape) <= 1:
        raise ValueError(f"shape {shape} is invalid for matrices: too few axes")
    if singular_values is None:
        raise TypeError("singular_values is not given")
    if xp is None:
        import rgpu as xp  # noqa: PLW0127
    values, dtype = xp.asarray(singular_values), np.dtype(dtype)
    if dtype.kind not in "fc":
        raise TypeError(f"dtype {dtype} is not supported")
    if values.dtype.kind == "c":
        raise TypeError("singular_values is not real")
    if (values < 0).any():
        raise ValueError("negative singular value is given")
    noise = xp.random.randn(*shape)
    if dtype.kind == "c":
        noise = noise + 1j * xp.random.randn(*shape)
    left, found, right = xp.linalg.svd(noise, full_matrices=False)
    return ((left * xp.broadcast_to(values, found.shape)[..., None, :]) @ right).astype(dtype)
