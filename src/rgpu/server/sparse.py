"""Sparse matrices on the worker: rebuilt from their arrays for one operation, and taken apart again.

A matrix travels as ``("sparse:csr", rows, columns, array, ...)`` whose arrays are handles. Only the
operations declared under ``cupyx.scipy.sparse`` run. The sparse package (SciPy's, or CuPy's, which
has the same interface) is given by the backend and imported at first use.
"""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from rgpu.wire.functions import TABLE

_PREFIX = "cupyx.scipy.sparse."
_KINDS = frozenset(f"{name}_{kind}" for name in ("csr", "csc", "coo", "dia") for kind in ("matrix", "array"))
#: operations that never change an operand; the others get a copy
_PURE = set("toarray matmul rmatmul convert add subtract multiply divide sum mean diagonal getnnz".split())


@functools.cache
def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise NotImplementedError(
            f"sparse matrices need {name} on the server: pip install 'rgpu[cpu]'"
        ) from None


def _restore(package: Any, x: Any, copy: bool) -> Any:
    """Tagged tuples as matrices, at any depth."""
    if isinstance(x, tuple) and x and isinstance(x[0], str) and x[0].startswith("sparse:"):
        kind, shape, *arrays = x
        if kind[7:] not in _KINDS:
            raise TypeError(f"{kind[7:]!r} is not a kind of sparse matrix")
        content = (arrays[0], tuple(arrays[1:])) if kind.startswith("sparse:coo") else tuple(arrays)
        return getattr(package, kind[7:])(content, shape=tuple(shape), copy=copy)
    if isinstance(x, tuple | list):
        return type(x)(_restore(package, item, copy) for item in x)
    return x


def _parts(package: Any, x: Any) -> Any:
    """Matrices as tagged tuples, ``numpy.matrix`` as arrays, at any depth."""
    if package.issparse(x):
        if x.format not in ("csr", "csc", "coo", "dia"):
            x = x.tocsr()
        arrays: tuple
        if x.format == "coo":
            arrays = (x.data, *(x.coords if hasattr(x, "coords") else (x.row, x.col)))
        elif x.format == "dia":
            arrays = (x.data, x.offsets)
        else:
            arrays = (x.data, x.indices, x.indptr)
        kind = "array" if isinstance(x, getattr(package, "sparray", ())) else "matrix"
        return (f"sparse:{x.format}_{kind}", tuple(map(int, x.shape)), *arrays)
    if isinstance(x, tuple | list):
        return tuple(_parts(package, item) for item in x)
    return np.asarray(x) if isinstance(x, np.matrix) else x


def _from_dense(package: Any, dense: Any, kind: str) -> Any:
    if kind not in _KINDS:
        raise TypeError(f"{kind!r} is not a kind of sparse matrix")
    if kind.startswith("csc"):
        return getattr(package, f"csr_{kind[4:]}")(dense).asformat("csc")
    return getattr(package, kind)(dense)


def _stretched(package: Any, a: Any, shape: tuple) -> Any:
    """A row or column repeated to a shape, as broadcasting would."""
    for axis in (0, 1):
        if a.shape[axis] == 1 and shape[axis] != 1:
            ones = np.ones((shape[0], 1) if axis == 0 else (1, shape[1]), a.dtype)
            ones = (package.csr_matrix if package.isspmatrix(a) else package.csr_array)(ones)
            a = ones @ a if axis == 0 else a @ ones
    return a


def _pairwise(package: Any, name: str, a: Any, b: Any) -> Any:
    """A method of two operands; rows and columns broadcast."""
    if package.issparse(b) and a.shape != b.shape and a.ndim == b.ndim == 2:
        shape = np.broadcast_shapes(a.shape, b.shape)
        a, b = _stretched(package, a, shape), _stretched(package, b, shape)
    return getattr(a, name)(b)


def _compare(package: Any, a: Any, name: str, b: Any) -> Any:
    if name not in ("eq", "ne", "lt", "le", "gt", "ge"):
        raise TypeError(f"{name!r} is not a comparison")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the client has warned
        return _pairwise(package, f"__{name}__", a, b)


def _fact(package: Any, matrix: Any, name: str) -> bool:
    if name not in ("has_sorted_indices", "has_canonical_format"):
        raise TypeError(f"{name!r} is not a fact about a matrix")
    return bool(getattr(matrix, name))


def _index(package: Any, matrix: Any, key: Any) -> Any:
    return matrix.asformat("csr" if matrix.format in ("coo", "dia") else matrix.format)[key]


def _set(package: Any, matrix: Any, key: Any, value: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SciPy's advice on efficiency is not for the server's log
        matrix[key] = value
    return matrix


def _in_place(name: str) -> Callable[..., Any]:
    def operation(package: Any, matrix: Any, *args: Any, **kwargs: Any) -> Any:
        getattr(matrix, name)(*args, **kwargs)
        return matrix

    return operation


def _method(name: str) -> Callable[..., Any]:
    return lambda package, matrix, *args, **kwargs: getattr(matrix, name)(*args, **kwargs)


def _function(name: str) -> Callable[..., Any]:
    return lambda package, *args, **kwargs: getattr(package, name)(*args, **kwargs)


def _of_module(name: str) -> Callable[..., Any]:
    module, _, short = name.partition(".")

    def operation(package: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(_package(f"{package.__name__}.{module}"), short)(*args, **kwargs)

    return operation


_OPERATIONS: dict[str, Callable[..., Any]] = {
    "from_dense": _from_dense,
    "convert": lambda package, matrix, kind: matrix.asformat(kind, copy=True),
    "toarray": lambda package, matrix, order=None: matrix.toarray(),
    "matmul": lambda package, a, b: a @ b,
    "rmatmul": lambda package, a, b: (a.T @ b.T).T,
    "add": lambda package, a, b: a + b,
    "subtract": lambda package, a, b: a - b,
    "divide": lambda package, a, b: a / b,
    "power": lambda package, a, n: a**n,
    "compare": _compare,
    "maximum": lambda package, a, b: _pairwise(package, "maximum", a, b),
    "minimum": lambda package, a, b: _pairwise(package, "minimum", a, b),
    "fact": _fact,
    "getitem": _index,
    "setitem": _set,
}
_IN_PLACE = "sum_duplicates sort_indices eliminate_zeros setdiag".split()
_METHODS = """multiply sum mean max min argmax argmin diagonal getnnz count_nonzero nonzero transpose
reshape""".split()


def _operation(name: str) -> Callable[..., Any]:
    if "." in name:
        return _of_module(name)
    found = _OPERATIONS.get(name)
    if found is not None:
        return found
    return _in_place(name) if name in _IN_PLACE else _method(name) if name in _METHODS else _function(name)


def translated(package_name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of matrices, with matrices as their parts on both ends."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if not _has_matrices(args) and not _has_matrices(tuple(kwargs.values())):
            result = function(*args, **kwargs)  # the package need not be there
            return _parts(_package(package_name), result) if hasattr(result, "tocsr") else result
        package = _package(package_name)
        args = _restore(package, args, True)
        kwargs = {key: _restore(package, value, True) for key, value in kwargs.items()}
        return _parts(package, function(*args, **kwargs))

    return call


def _has_matrices(x: Any) -> bool:
    if isinstance(x, tuple) and x and isinstance(x[0], str) and x[0].startswith("sparse:"):
        return True
    return isinstance(x, tuple | list) and any(_has_matrices(item) for item in x)


def overrides(package_name: str) -> dict[str, Callable[..., Any]]:
    """Every declared sparse operation over one sparse package (``scipy.sparse``)."""

    def bound(name: str) -> Callable[..., Any]:
        operation, copy = _operation(name), name not in _PURE

        def call(*args: Any, **kwargs: Any) -> Any:
            package = _package(package_name)
            args = _restore(package, args, copy)
            kwargs = {key: _restore(package, value, copy) for key, value in kwargs.items()}
            return _parts(package, operation(package, *args, **kwargs))

        return call

    names = [function.name for function in TABLE if function.kind == "sparse"]
    return {name: bound(name.removeprefix(_PREFIX)) for name in names}
