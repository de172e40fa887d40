"""``cupyx.scipy.spatial.distance``: distances between vectors.

From the table of declared functions, in the dtype of the vectors as CuPy has it; two metrics that SciPy lacks are
array operations. CuPy needs cuVS for all of this: rgpu does not, so that nothing here can be missing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import rgpu as cp
from rgpu import surface
from rgpu.cupyx.scipy import _table, special

_table.fill(globals(), "spatial.distance")
_cdist = globals()["cdist"]
#: other names of metrics, by the one that SciPy knows
_ALIASES = {
    name: metric
    for metric, names in {
        "canberra": "canberra",
        "chebyshev": "chebychev chebyshev cheby cheb ch",
        "cityblock": "cityblock cblock cb c",
        "correlation": "correlation co",
        "cosine": "cosine cos",
        "hamming": "matching hamming hamm ha h",
        "euclidean": "euclidean euclid eu e",
        "jensenshannon": "jensenshannon js",
        "minkowski": "minkowski mi m pnorm",
        "russellrao": "russellrao",
        "sqeuclidean": "sqeuclidean sqe sqeuclid",
        "hellinger": "hellinger",
        "kl_divergence": "kl_divergence kl_div kld",
    }.items()
    for name in names.split()
}


def check_soft_dependencies() -> None:
    """Nothing is missing: what CuPy leaves to cuVS the servers do themselves."""


def _points(x: Any, name: str) -> Any:
    x = cp.asarray(x)
    if x.ndim != 2:
        raise ValueError(f"{name} must be a 2-dimensional array.")
    return x if x.dtype.char in "fd" else x.astype(np.float32)


def cdist(XA: Any, XB: Any, metric: str = "euclidean", out: Any = None, **kwargs: Any) -> Any:  # noqa: N803
    """Distances of all pairs of rows: (mA, mB) in the dtype of XA, float32 unless that is float64.

    ``metric``: one of SciPy's that CuPy has, 'hellinger' or 'kl_divergence'; ``p=`` for 'minkowski'.
    """
    if not isinstance(metric, str):
        raise TypeError("2nd argument metric must be a string identifier")
    known = _ALIASES.get(metric.lower())
    if known is None:
        raise ValueError(f"Unknown Distance Metric: {metric.lower()}")
    a, b = _points(XA, "XA"), _points(XB, "XB")
    if a.shape[1] != b.shape[1]:
        raise ValueError("XA and XB must have the same number of columns (i.e. feature dimension.)")
    if known == "hellinger":
        found = _cdist(cp.sqrt(a), cp.sqrt(b), "euclidean") / np.sqrt(2)
    elif known == "kl_divergence":
        found = special.rel_entr(a[:, None], b[None]).sum(axis=-1)
    elif known == "minkowski":
        found = _cdist(a, b, known, p=kwargs.get("p", 2.0))
    else:
        found = _cdist(*((a != 0, b != 0) if known == "russellrao" else (a, b)), known)
    if out is None:
        return found.astype(a.dtype, copy=False)
    out[...] = found
    return out


def pdist(X: Any, metric: str = "euclidean", *, out: Any = None, **kwargs: Any) -> Any:  # noqa: N803
    """Distances of the pairs of rows i < j, row by row: the upper triangle of ``cdist(X, X)``."""
    distances = cdist(X, X, metric, out, **kwargs)
    return distances[cp.triu_indices_from(distances, 1)]


def distance_matrix(x: Any, y: Any, p: float = 2.0) -> Any:
    """Minkowski distances of all pairs of rows."""
    return cdist(x, y, "minkowski", p=p)


def _of_two(metric: str, doc: str) -> Callable[..., Any]:
    def distance(u: Any, v: Any) -> Any:
        return cdist(cp.atleast_2d(u), cp.atleast_2d(v), metric)[0, 0]

    distance.__name__ = distance.__qualname__ = metric
    distance.__doc__ = doc + " 0-d, in the dtype of u."
    return distance


def minkowski(u: Any, v: Any, p: float) -> Any:
    """The p-norm of ``u - v``: 0-d, in the dtype of u."""
    return cdist(cp.atleast_2d(u), cp.atleast_2d(v), "minkowski", p=p)[0, 0]


canberra = _of_two("canberra", "The sum of ``|u - v| / (|u| + |v|)``.")
chebyshev = _of_two("chebyshev", "The largest of ``|u - v|``.")
cityblock = _of_two("cityblock", "The sum of ``|u - v|``.")
correlation = _of_two("correlation", "One minus the correlation of u and v.")
cosine = _of_two("cosine", "One minus the cosine of the angle between u and v.")
euclidean = _of_two("euclidean", "The 2-norm of ``u - v``.")
hamming = _of_two("hamming", "The part of the elements that differ.")
hellinger = _of_two("hellinger", "The 2-norm of ``sqrt(u) - sqrt(v)`` over ``sqrt(2)``.")
jensenshannon = _of_two("jensenshannon", "The square root of the Jensen-Shannon divergence.")
kl_divergence = _of_two("kl_divergence", "The sum of ``u log(u / v)``.")
russellrao = _of_two("russellrao", "The part of the elements that are not both true.")
sqeuclidean = _of_two("sqeuclidean", "The square of the 2-norm of ``u - v``.")

__getattr__, __dir__ = surface.face(__name__)
