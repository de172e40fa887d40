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
#: what gives indices in the narrowest dtype whatever dtype they had in matrices (in arrays they keep it)
_NARROWING = {"kron"}
#: an axis of which no operation may need memory for each position
_VERY_LONG = 1 << 24
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


def _check_places(matrix: Any) -> None:
    """ValueError for indices of a csr or csc matrix that lead outside: SciPy's loops would follow them."""
    places, starts = matrix.indices, matrix.indptr
    if places.size and not 0 <= places.min() <= places.max() < matrix.shape[-1 if matrix.format == "csr" else 0]:
        raise ValueError("indices lead outside the matrix")
    if (starts[1:] < starts[:-1]).any():
        raise ValueError("indptr must not decrease")


def _restore(package: Any, x: Any, copy: bool) -> Any:
    """Tagged tuples as matrices, at any depth."""
    if isinstance(x, tuple) and x and isinstance(x[0], str) and x[0].startswith("sparse:"):
        kind, shape, *arrays = x
        if kind[7:] not in _KINDS:
            raise TypeError(f"{kind[7:]!r} is not a kind of sparse matrix")
        content = (arrays[0], tuple(arrays[1:])) if kind.startswith("sparse:coo") else tuple(arrays)
        made = getattr(package, kind[7:])(content, shape=tuple(shape), copy=copy)
        if made.format in ("csr", "csc") and package.__name__.startswith("scipy"):
            _check_places(made)
        return made
    if isinstance(x, tuple | list):
        return type(x)(_restore(package, item, copy) for item in x)
    return x


def _parts(package: Any, x: Any, wide: bool = False) -> Any:
    """Matrices as tagged tuples, ``numpy.matrix`` as arrays, at any depth. ``wide``: index arrays become int64."""
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
        if wide:
            arrays = (arrays[0], *(places.astype(np.int64, copy=False) for places in arrays[1:]))
        kind = "array" if isinstance(x, getattr(package, "sparray", ())) else "matrix"
        return (f"sparse:{x.format}_{kind}", tuple(map(int, x.shape)), *arrays)
    if isinstance(x, tuple | list):
        return tuple(_parts(package, item, wide) for item in x)
    return np.asarray(x) if isinstance(x, np.matrix) else x


def taken_apart(x: Any) -> Any:
    """An argument as it travels: matrices of whatever package as their parts."""
    if isinstance(x, tuple | list):
        return type(x)(taken_apart(item) for item in x)
    return _parts(_package(f"{type(x).__module__.partition('.')[0]}.sparse"), x) if hasattr(x, "tocsr") else x


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


def _each_once(a: Any) -> Any:
    """A matrix of truth values without duplicates, of which a sum would count each."""
    if a.dtype.kind == "b" and a.format != "dia":
        a = a.copy()
        a.sum_duplicates()
    return a


def _convert(package: Any, matrix: Any, kind: str) -> Any:
    if matrix.format != "dia" or matrix.shape[0] <= _VERY_LONG or not package.__name__.startswith("scipy"):
        return matrix.asformat(kind, copy=True)
    count = min(matrix.data.shape[1], matrix.shape[1])  # not by way of the rows, which SciPy takes
    columns = np.broadcast_to(np.arange(count), (matrix.offsets.size, count))
    rows = columns - matrix.offsets.astype(np.int64)[:, None]
    held = (rows >= 0) & (rows < matrix.shape[0])
    made = getattr(package, "coo_matrix" if package.isspmatrix(matrix) else "coo_array")
    return made((matrix.data[:, :count][held], (rows[held], columns[held])), shape=matrix.shape).asformat(kind)


def _reserve_product(a: Any, b: Any) -> None:
    """MemoryError where there is no memory for the fewest elements that a product of sparse matrices can have (each
    row those of the longest row of ``b`` that it takes): SciPy counts them one by one, for minutes, before it asks."""
    if min(a.shape[0] * b.shape[1], a.nnz * b.nnz) < _VERY_LONG:
        return
    a, b = a.tocsr(), b.tocsr()
    rows = np.flatnonzero(np.diff(a.indptr))  # reduceat has no empty rows
    fewest = int(np.maximum.reduceat(np.diff(b.indptr)[a.indices], a.indptr[rows]).sum(dtype=np.int64))
    np.empty(fewest * (np.result_type(a.dtype, b.dtype).itemsize + a.indices.itemsize), np.uint8)


def _matmul(package: Any, a: Any, b: Any) -> Any:
    if not package.issparse(b) or a.ndim != 2 or b.ndim != 2 or not package.__name__.startswith("scipy"):
        return a @ b
    if a.shape[1] == b.shape[0]:
        _reserve_product(a, b)
    if b.shape[1] <= _VERY_LONG:
        return a @ b
    b = b.tocsr()
    used, places = np.unique(b.indices, return_inverse=True)  # the columns that have elements
    made = a @ type(b)((b.data, places, b.indptr), shape=(b.shape[0], used.size))
    return type(b)((made.data, used[made.indices], made.indptr), shape=(a.shape[0], b.shape[1]))


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
    matrix = matrix.asformat("csr" if matrix.format in ("coo", "dia") else matrix.format)
    if not package.__name__.startswith("scipy"):
        return matrix[key]
    key = _wrapped(key, matrix.shape)
    minor = 1 if matrix.format == "csr" else 0
    if isinstance(key, tuple) and len(key) == matrix.ndim == 2 and matrix.shape[minor] > _VERY_LONG:
        major, places = key[1 - minor], key[minor]
        if isinstance(major, slice) and major == slice(None) and getattr(places, "ndim", 0) == 1:
            return _picked(package, matrix, places.nonzero()[0] if places.dtype.kind == "b" else places)
    return matrix[key]


def _wrapped(key: Any, shape: tuple) -> Any:
    """An index whose arrays count from the start again beyond the end of an axis: CuPy does not look at them."""
    keys = key if isinstance(key, tuple) else (key,)
    if len(keys) > len(shape) or any(k is None or k is Ellipsis for k in keys):
        return key

    def wrap(k: Any, extent: int) -> Any:
        k = np.asarray(k) if isinstance(k, list) else k
        return k % extent if getattr(k, "ndim", 0) and k.dtype.kind in "iu" and k.size and extent else k

    made = tuple(wrap(k, extent) for k, extent in zip(keys, shape))
    return made if isinstance(key, tuple) else made[0]


def _picked(package: Any, matrix: Any, places: Any) -> Any:
    """Columns of a csr (rows of a csc) by their numbers, without memory for each column that there is."""
    order = places.argsort(kind="stable")
    ends = [places[order].searchsorted(matrix.indices, side) for side in ("left", "right")]
    counts = ends[1] - ends[0]  # how often each element was asked for
    starts = np.repeat(ends[0] - (counts.cumsum() - counts), counts)
    chosen = order[np.arange(int(counts.sum())) + starts]
    majors = np.repeat(np.arange(matrix.indptr.size - 1), np.diff(matrix.indptr))
    coords = (np.repeat(majors, counts), chosen)
    shape = (matrix.indptr.size - 1, places.size)
    if matrix.format == "csc":
        coords, shape = coords[::-1], shape[::-1]
    kind = "matrix" if package.isspmatrix(matrix) else "array"
    made = getattr(package, f"coo_{kind}")((np.repeat(matrix.data, counts), coords), shape=shape)
    return made.asformat(matrix.format)


def _set(package: Any, matrix: Any, key: Any, value: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SciPy's advice on efficiency is not for the server's log
        matrix[_wrapped(key, matrix.shape) if package.__name__.startswith("scipy") else key] = value
    return matrix


def _incomplete_lu(package: Any, matrix: Any) -> Any:
    _package("cupyx.cusparse").csrilu02(matrix)
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
    "convert": _convert,
    "toarray": lambda package, matrix, order=None: matrix.toarray(),
    "matmul": _matmul,
    "rmatmul": lambda package, a, b: (a.T @ b.T).T,
    "add": lambda package, a, b: a + b,
    "subtract": lambda package, a, b: a - b,
    "divide": lambda package, a, b: a / b,
    "sum": lambda package, a, **options: _each_once(a).sum(**options),
    "mean": lambda package, a, **options: _each_once(a).mean(**options),
    "compare": _compare,
    "maximum": lambda package, a, b: _pairwise(package, "maximum", a, b),
    "minimum": lambda package, a, b: _pairwise(package, "minimum", a, b),
    "fact": _fact,
    "getitem": _index,
    "setitem": _set,
    "incomplete_lu": _incomplete_lu,
}
_IN_PLACE = "sum_duplicates sort_indices eliminate_zeros setdiag".split()
_METHODS = """multiply max min argmax argmin diagonal getnnz count_nonzero nonzero transpose
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


def _any_wide(x: Any, matrices: bool) -> bool:
    """Whether a matrix (unless ``matrices`` is false) or sparse array among arguments has int64 indices."""
    if isinstance(x, tuple) and x and isinstance(x[0], str) and x[0].startswith("sparse:"):
        return (matrices or x[0].endswith("array")) and any(places.dtype == np.int64 for places in x[3:])
    return isinstance(x, tuple | list) and any(_any_wide(item, matrices) for item in x)


def overrides(package_name: str, own: dict[str, Callable[..., Any]] | None = None) -> dict[str, Callable[..., Any]]:
    """Every declared sparse operation over a package (``scipy.sparse``), some by functions of the backend's ``own``."""

    def bound(name: str) -> Callable[..., Any]:
        operation, copy = (own or {}).get(name) or _operation(name), name not in _PURE

        def call(*args: Any, **kwargs: Any) -> Any:
            package = _package(package_name)
            wide = _any_wide(args, name not in _NARROWING)
            args = _restore(package, args, copy)
            kwargs = {key: _restore(package, value, copy) for key, value in kwargs.items()}
            return _parts(package, operation(package, *args, **kwargs), wide)

        return call

    names = [function.name for function in TABLE if function.kind == "sparse"]
    return {name: bound(name.removeprefix(_PREFIX)) for name in names}
