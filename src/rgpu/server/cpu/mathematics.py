"""Arithmetic, windows and sums where CuPy's results differ from NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np

from rgpu.server.cpu.arrays import OVERRIDES, override


def _power(x1: Any, x2: Any, *args: Any, **kwargs: Any) -> Any:
    """NumPy refuses integers to negative integer powers; a GPU truncates their reciprocals."""
    try:
        return np.power(x1, x2, *args, **kwargs)
    except ValueError as error:
        if "negative integer powers" not in str(error):
            raise
    positive = np.power(x1, abs(x2), *args, **kwargs)
    kept = np.where(np.abs(positive) == 1, positive, 0)  # 1 and -1 are their own reciprocals
    result = np.where(np.less(x2, 0), kept, positive).astype(positive.dtype)
    if positive.ndim and kwargs.get("out") is positive:
        positive[...] = result
        return positive
    return result


OVERRIDES.update({"power": _power, "pow": _power})


#: What reduces, and what divides by the count: the C core's loop calls them itself, for arrays of a dtype that stays.
REDUCTIONS: dict[str, tuple[np.ufunc, ...]] = {
    "sum": (np.add,), "prod": (np.multiply,), "mean": (np.add, np.true_divide),
    "max": (np.maximum,), "amax": (np.maximum,), "min": (np.minimum,), "amin": (np.minimum,),
    "any": (np.logical_or,), "all": (np.logical_and,),
}  # fmt: skip


@override("sum")
def _sum(a: np.ndarray, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False) -> Any:
    """Half precision is added up in single precision, as on a GPU."""
    if a.dtype == np.float16 and out is None and dtype in (None, np.float16):
        return np.asarray(np.sum(a, axis, np.float32, keepdims=keepdims)).astype(np.float16)
    return np.sum(a, axis, dtype, out, keepdims=keepdims)


@override("gradient")
def _gradient(f: np.ndarray, *varargs: Any, axis: Any = None, edge_order: int = 1) -> Any:
    result = np.gradient(f, *varargs, axis=axis, edge_order=edge_order)
    return list(result) if isinstance(result, tuple) else result


@override("cumulative_sum")
def _cumulative_sum(
    x: np.ndarray, /, *, axis: Any = None, dtype: Any = None, out: Any = None, include_initial: bool = False
) -> Any:
    return np.cumulative_sum(
        np.atleast_1d(x), axis=axis, dtype=dtype, out=out, include_initial=include_initial
    )


@override("cumulative_prod")
def _cumulative_prod(
    x: np.ndarray, /, *, axis: Any = None, dtype: Any = None, out: Any = None, include_initial: bool = False
) -> Any:
    return np.cumulative_prod(
        np.atleast_1d(x), axis=axis, dtype=dtype, out=out, include_initial=include_initial
    )


@override("vdot")
def _vdot(a: np.ndarray, b: np.ndarray) -> Any:
    if a.size != b.size:
        raise ValueError("Axis dimension mismatch")
    return np.asarray(np.vdot(a, b))


@override("interp")
def _interp(x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: Any = None) -> Any:
    return np.asarray(np.interp(x, xp, fp, left, right, period))
