"""Statistics with CuPy's parameters and dtypes: percentiles, histograms, averages."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from rgpu.server.cpu.arrays import override

_METHODS = ("linear", "lower", "higher", "midpoint", "nearest")


@override("quantile")
def _quantile(
    a: np.ndarray, q: Any, axis: Any = None, out: Any = None, overwrite_input: bool = False,
    method: str = "linear", keepdims: bool = False, *, interpolation: Any = None,
) -> Any:  # fmt: skip
    method = interpolation or method
    if isinstance(q, tuple | list):
        q = np.asarray(q)
    if not (np.count_nonzero(q >= 0.0) and np.count_nonzero(q <= 1.0)):
        raise ValueError("Quantiles must be in the range [0, 1]")
    return _unchecked(a, q, axis, out, method, keepdims, overwrite_input)


@override("percentile")
def _percentile(
    a: np.ndarray, q: Any, axis: Any = None, out: Any = None, overwrite_input: bool = False,
    method: str = "linear", keepdims: bool = False, *, interpolation: Any = None,
) -> Any:  # fmt: skip
    method = interpolation or method
    if isinstance(q, tuple | list):
        q = np.asarray(q)
    q = q / 100
    if not (np.count_nonzero(q >= 0.0) and np.count_nonzero(q <= 1.0)):
        raise ValueError("Percentiles must be in the range [0, 100]")
    return _unchecked(a, q, axis, out, method, keepdims, overwrite_input)


def _unchecked(
    a: np.ndarray, q: Any, axis: Any, out: Any, method: str, keepdims: bool, overwrite: bool
) -> Any:
    if np.ndim(q) > 1:
        raise ValueError(f"Expected q to have a dimension of 1.\nActual: {np.ndim(q)} != 1")
    if method not in _METHODS:
        raise ValueError(f"Unexpected interpolation method: {method!r}")
    exact = method in ("lower", "higher", "nearest")
    dtype = a.dtype if exact else np.result_type(a, q)
    wide = a if exact or a.dtype.kind == "c" else a.astype(np.result_type(dtype, np.float32))
    result = np.quantile(wide, np.asarray(q, float), axis=axis, method=method, keepdims=keepdims)
    result = np.asarray(result).astype(dtype)
    if overwrite and a.flags.c_contiguous:
        a.reshape(-1).sort() if axis is None else a.sort(axis=axis if isinstance(axis, int) else -1)
    if out is None:
        return result
    out[...] = result
    return out


@override("histogram")
def _histogram(
    x: np.ndarray,
    bins: Any = 10,
    range: Any = None,
    density: bool = False,
    weights: Any = None,  # noqa: A002
) -> Any:
    if x.dtype.kind == "c":
        raise NotImplementedError("complex number is not supported")
    if isinstance(bins, str):
        raise NotImplementedError("only integer and array bins are implemented")
    if x.dtype == bool:
        x = x.astype(np.uint8)
    if np.ndim(bins) > 1:
        raise ValueError("`bins` must be 1d, when an array")
    if np.ndim(bins) == 0 and operator.index(bins) < 1:
        raise ValueError("`bins` must be positive, when an integer")
    counts, edges = np.histogram(x, bins, _pair(range), density=density, weights=weights)
    if weights is not None and not density:
        counts = counts.astype(
            int if weights.dtype.kind in "bui" else np.result_type(weights.dtype, np.float64)
        )
    return counts, edges


def _pair(limits: Any) -> Any:
    return None if limits is None else tuple(x.item() if isinstance(x, np.ndarray) else x for x in limits)


@override("histogramdd")
def _histogramdd(
    sample: Any,
    bins: Any = 10,
    range: Any = None,
    weights: Any = None,
    density: bool = False,  # noqa: A002
) -> Any:
    if not isinstance(sample, np.ndarray):
        sample = np.stack(sample, axis=-1)
    if isinstance(bins, list | tuple) and any(isinstance(b, list | tuple) for b in bins):
        raise ValueError("array-like bins not supported")
    counts, edges = np.histogramdd(sample, bins, range, density=density, weights=weights)
    return counts, list(edges)


@override("histogram2d")
def _histogram2d(
    x: Any,
    y: Any,
    bins: Any = 10,
    range: Any = None,
    weights: Any = None,
    density: Any = None,  # noqa: A002
) -> Any:
    if isinstance(bins, list | tuple) and len(bins) > 2:
        raise ValueError("array-like bins not supported in CuPy")
    if isinstance(bins, np.ndarray):
        bins = [bins, bins]
    counts, edges = _histogramdd([x, y], bins, range, weights, bool(density))
    return counts, *edges


@override("average")
def _average(
    a: np.ndarray, axis: Any = None, weights: Any = None, returned: bool = False, *, keepdims: bool = False
) -> Any:
    return np.average(a, axis, weights, returned, keepdims=keepdims)


@override("cov")
def _cov(
    a: np.ndarray, y: Any = None, rowvar: bool = True, bias: bool = False, ddof: Any = None,
    fweights: Any = None, aweights: Any = None, *, dtype: Any = None,
) -> Any:  # fmt: skip
    return np.asarray(np.cov(a, y, rowvar, bias, ddof, fweights, aweights, dtype=dtype))


@override("corrcoef")
def _corrcoef(
    a: np.ndarray,
    y: Any = None,
    rowvar: bool = True,
    bias: Any = None,
    ddof: Any = None,
    *,
    dtype: Any = None,
) -> Any:
    return np.asarray(np.corrcoef(a, y, rowvar, dtype=dtype))
