"""The four formats: how a matrix is made from its parts, and what only a compressed one can do."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from rgpu.client.remote import Remote
from rgpu.cupyx.scipy.sparse import _call
from rgpu.cupyx.scipy.sparse._base import SparseEfficiencyWarning, _spbase, sparray, spmatrix
from rgpu.functions import creation

_DTYPES = "?fdFD"


def _checked(data: Any, dtype: Any = None) -> Any:
    """The value array in a dtype that sparse matrices have."""
    if np.dtype(data.dtype if dtype is None else dtype).char not in _DTYPES:
        raise ValueError("Only bool, float32, float64, complex64 and complex128 are supported")
    return data if dtype is None else data.astype(dtype, copy=False)


def _is_host_sparse(x: Any) -> bool:
    return type(x).__module__.startswith("scipy.sparse") and hasattr(x, "asformat")


def _is_shape(x: Any, dimensions: tuple[int, ...] = (2,)) -> bool:
    return isinstance(x, tuple) and len(x) in dimensions and all(isinstance(n, int | np.integer) for n in x)


def _shape(shape: Any, dimensions: tuple[int, ...] = (2,)) -> tuple[int, ...]:
    if not isinstance(shape, tuple | list) or len(shape) not in dimensions:
        raise ValueError("invalid dimensions, must be a 2-tuple")
    extents = tuple(int(n) for n in shape)
    if any(n < 0 for n in extents):
        raise ValueError("'shape' elements cannot be negative")
    return extents


def _array(x: Any, copy: bool, integer: bool = False) -> Any:
    if not isinstance(x, Remote | np.ndarray | list | tuple):
        raise ValueError(f"cannot make a sparse matrix of {type(x)}")
    result = creation.array(x, copy=copy)
    if integer and result.dtype.char not in "il":
        result = result.astype(np.int32)
    return result


class _Format(_spbase):
    """Construction that the formats share."""

    _dimensions: tuple[int, ...] = (2,)  # that an object may have

    def __init__(
        self, arg1: Any, shape: Any = None, dtype: Any = None, copy: bool = False, *, maxprint: Any = None
    ) -> None:
        if maxprint is not None:
            self.maxprint = maxprint
        if isinstance(arg1, _spbase):
            if arg1.ndim not in self._dimensions:
                raise ValueError(f"{self.format}_{self._kind} cannot have {arg1.ndim} dimensions")
            made = arg1.asformat(self.format)
            made = made.copy() if copy and made is arg1 else made
            self._take(made, dtype)
        elif _is_host_sparse(arg1):
            self._take_host(arg1.asformat(self.format), dtype)
        elif _is_shape(arg1, self._dimensions):
            self._shape = _shape(arg1, self._dimensions)
            self._set_arrays(self._empty(np.dtype(float if dtype is None else dtype)))
        elif isinstance(arg1, tuple):
            self._from_parts(arg1, shape, dtype, copy)
        else:
            dense = creation.array(arg1, dtype=dtype, copy=False)
            if dense.ndim > 2:
                raise ValueError("expected dimension <= 2 array or matrix")
            if self._kind == "array" and dense.ndim not in self._dimensions:
                raise ValueError(f"{self.format}_array cannot have {dense.ndim} dimensions")
            _checked(dense)
            self._take(_call.ask("from_dense", dense, f"{self.format}_{self._kind}"), None)
        if shape is not None and not isinstance(arg1, tuple) and _shape(shape, self._dimensions) != self._shape:
            raise ValueError(f"inconsistent shapes: {self._shape} != {shape}")

    def _take(self, other: Any, dtype: Any) -> None:
        self._shape = other._shape
        arrays = other._arrays()
        self._set_arrays((_checked(arrays[0], dtype), *arrays[1:]))

    def _take_host(self, host: Any, dtype: Any) -> None:
        if self.format == "coo":
            parts = [host.data, *(host.coords if hasattr(host, "coords") else (host.row, host.col))]
        else:
            names = ("data", "offsets") if self.format == "dia" else ("data", "indices", "indptr")
            parts = [getattr(host, name) for name in names]
        arrays = [creation.array(part) for part in parts]
        self._shape = _shape(host.shape, self._dimensions)
        self._set_arrays((_checked(arrays[0], dtype), *arrays[1:]))

    def _empty(self, dtype: np.dtype) -> tuple:
        raise NotImplementedError

    def _from_parts(self, parts: tuple, shape: Any, dtype: Any, copy: bool) -> None:
        raise NotImplementedError


class _Coordinates(_Format):
    """Coordinates: ``data`` and an array of positions along each axis (``coords``, of which row and col are two)."""

    format = "coo"
    coords: tuple

    row = property(lambda self: self.coords[-2] if len(self.coords) > 1 else creation.zeros_like(self.coords[0]))
    col = property(lambda self: self.coords[-1])

    def _arrays(self) -> tuple:
        return self.data, *self.coords

    def _set_arrays(self, arrays: tuple) -> None:
        self.data, self.coords = arrays[0], tuple(arrays[1:])
        self.has_canonical_format = False

    def _empty(self, dtype: np.dtype) -> tuple:
        return creation.zeros(0, dtype), *[creation.zeros(0, np.int32) for _ in self._shape]

    def _from_parts(self, parts: tuple, shape: Any, dtype: Any, copy: bool) -> None:
        if len(parts) != 2:
            raise TypeError("invalid input format")
        positions: Any = parts[1]
        if isinstance(positions, Remote | np.ndarray) and positions.ndim == 2:
            positions = list(positions)  # type: ignore[arg-type]
        if not isinstance(positions, tuple | list) or len(positions) not in self._dimensions:
            raise TypeError("invalid input format")
        data = _checked(_array(parts[0], copy), dtype)
        coords = tuple(_array(x, copy, integer=True) for x in positions)
        if any(x.ndim != 1 or x.size != data.size for x in (data, *coords)):
            raise ValueError("row, column, and data array must all be the same length")
        if shape is None:
            if not data.size:
                raise ValueError("cannot infer dimensions from zero sized index arrays")
            shape = tuple(int(x.max()) + 1 for x in coords)
        self._shape = _shape(shape, self._dimensions)
        if len(self._shape) != len(coords):
            raise ValueError("mismatching number of index arrays for shape")
        self._within(coords)
        self._set_arrays((data, *coords))

    def _within(self, coords: tuple) -> None:
        """ValueError for positions outside the shape (waits, as CuPy does)."""
        names = ("row", "column") if len(coords) == 2 else ("axis 0",)
        for name, extent, places in zip(names, self._shape, coords):
            if places.size:
                low, high = int(places.min()), int(places.max())
                if high >= extent:
                    raise ValueError(f"{name} index exceeds matrix dimensions")
                if low < 0:
                    raise ValueError(f"negative {name} index found")

    def __getitem__(self, key: Any) -> Any:
        if self._kind == "matrix":
            raise TypeError("'coo_matrix' object is not subscriptable")
        return self.tocsr()[key]

    def transpose(self, axes: Any = None, copy: bool = False) -> Any:
        if axes is not None:
            raise ValueError("Sparse matrices do not support an 'axes' parameter")
        made = type(self)._of((self.data, *self.coords[::-1]), self._shape[::-1])
        return made.copy() if copy else made

    def sum_duplicates(self) -> None:
        """Add up the values of equal coordinates."""
        self._set_arrays(_call.ask("sum_duplicates", self)._arrays())
        self.has_canonical_format = True

    def eliminate_zeros(self) -> None:
        """Drop stored zeros."""
        self._set_arrays(_call.ask("eliminate_zeros", self)._arrays())


class _Compressed(_Format):
    """Rows or columns, compressed: ``data``, ``indices`` and ``indptr``."""

    _major = 0

    def _arrays(self) -> tuple:
        return self.data, self.indices, self.indptr

    def _set_arrays(self, arrays: tuple) -> None:
        self.data, self.indices, self.indptr = arrays
        self._facts: dict[str, bool] = {}

    def _empty(self, dtype: np.dtype) -> tuple:
        count = self._shape[self._major] + 1 if len(self._shape) > 1 else 2
        return creation.zeros(0, dtype), creation.zeros(0, np.int32), creation.zeros(count, np.int32)

    def _from_parts(self, parts: tuple, shape: Any, dtype: Any, copy: bool) -> None:
        if len(parts) == 2 and isinstance(parts[1], tuple | list):
            self._take(self._class("coo")(parts, shape, dtype, copy).asformat(self.format), None)
            return
        if len(parts) != 3:
            raise ValueError("unrecognized form of sparse matrix constructor")
        data = _checked(_array(parts[0], copy), dtype)
        indices, indptr = (_array(x, copy, integer=True) for x in parts[1:])
        if not data.ndim == indices.ndim == indptr.ndim == 1:
            raise ValueError("data, indices, and indptr should be 1-D")
        if data.size != indices.size:
            raise ValueError("indices and data should have the same size")
        if shape is None:
            minor = int(indices.max()) + 1 if indices.size else 0
            shape = (indptr.size - 1, minor)[:: -1 if self._major else 1]
        self._shape = _shape(shape, self._dimensions)
        expected = (self._shape[self._major] if len(self._shape) > 1 else 1) + 1
        if indptr.size != expected:
            raise ValueError(f"index pointer size ({indptr.size}) should be ({expected})")
        if int(indptr[0]):
            raise ValueError("index pointer should start with 0")
        self._set_arrays((data, indices, indptr))

    def transpose(self, axes: Any = None, copy: bool = False) -> Any:
        if axes is not None:
            raise ValueError("Sparse matrices do not support an 'axes' parameter")
        if len(self._shape) == 1:
            return self.copy() if copy else self
        made = self._class("csr" if self._major else "csc")._of(self._arrays(), self._shape[::-1])
        return made.copy() if copy else made

    def _rewritten(self, name: str, fact: str | None = None) -> None:
        """The matrix after an operation, unless it is known to have what that would bring about."""
        if fact is not None and self._facts.get(fact):
            return
        self._set_arrays(_call.ask(name, self)._arrays())
        if fact is not None:
            self._facts = {"has_sorted_indices": True, fact: True}

    def sum_duplicates(self) -> None:
        """Add up equal entries; indices are sorted afterwards."""
        self._rewritten("sum_duplicates", "has_canonical_format")

    def sort_indices(self) -> None:
        """Sort the indices within each row or column."""
        self._rewritten("sort_indices", "has_sorted_indices")

    def sorted_indices(self) -> Any:
        made = self.copy()
        made.sort_indices()
        return made

    def eliminate_zeros(self) -> None:
        """Drop stored zeros."""
        self._rewritten("eliminate_zeros")

    def prune(self) -> None:
        """Drop what the arrays have beyond the last element (waits)."""
        count = int(self.indptr[-1])
        if count > self.data.size:
            raise ValueError("the arrays are shorter than the index pointer says")
        self.data, self.indices = self.data[:count].copy(), self.indices[:count].copy()

    def __getitem__(self, key: Any) -> Any:
        return _call.ask("getitem", self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._become(_call.ask("setitem", self, key, value))

    def _compared(self, name: str, other: Any) -> Any:
        if isinstance(other, _spbase):
            pairs = zip(self._shape, other._shape)
            if any(a != b and a != 1 and b != 1 for a, b in pairs):
                raise ValueError("inconsistent shape")
            if name in ("eq", "le", "ge"):
                warnings.warn(
                    f"Comparing sparse matrices with {name} is inefficient",
                    SparseEfficiencyWarning,
                    stacklevel=3,
                )
        return _call.ask("compare", self, name, other)


def _fact(name: str) -> property:
    """A fact about the indices: asked once, forgotten when the arrays change, and assignable."""

    def get(self: Any) -> bool:
        if name not in self._facts:
            self._facts[name] = bool(_call.ask("fact", self, name))
        return self._facts[name]

    def set_(self: Any, value: bool) -> None:
        self._facts[name] = bool(value)

    return property(get, set_)


_Compressed.has_sorted_indices = _fact("has_sorted_indices")  # type: ignore[attr-defined]
_Compressed.has_canonical_format = _fact("has_canonical_format")  # type: ignore[attr-defined]
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    _method = lambda self, other, name=_name: self._compared(name, other)  # noqa: E731
    _method.__name__ = f"__{_name}__"
    setattr(_Compressed, f"__{_name}__", _method)
_Compressed.__hash__ = None  # type: ignore[assignment]


class _Rows(_Compressed):
    format = "csr"
    _major = 0


class _Columns(_Compressed):
    format = "csc"
    _major = 1


class _Diagonals(_Format):
    """Diagonals: ``data`` (one row each) and ``offsets``."""

    format = "dia"

    def _arrays(self) -> tuple:
        return self.data, self.offsets

    def _set_arrays(self, arrays: tuple) -> None:
        self.data, self.offsets = arrays

    def _empty(self, dtype: np.dtype) -> tuple:
        return creation.zeros((0, 0), dtype), creation.zeros(0, np.int32)

    def _from_parts(self, parts: tuple, shape: Any, dtype: Any, copy: bool) -> None:
        if len(parts) != 2:
            raise ValueError("unrecognized form for dia_matrix constructor")
        if shape is None:
            raise ValueError("expected a shape argument")
        data = _checked(_array(parts[0], copy), dtype)
        data = data.reshape(1, -1) if data.ndim < 2 else data
        offsets = creation.array(parts[1], copy=copy).astype(np.int32, copy=False)
        offsets = offsets.reshape(-1) if offsets.ndim < 1 else offsets
        if offsets.ndim != 1:
            raise ValueError("offsets array must have rank 1")
        if data.ndim != 2:
            raise ValueError("data array must have rank 2")
        if data.shape[0] != offsets.size:
            raise ValueError(f"number of diagonals ({data.shape[0]}) does not match offsets ({offsets.size})")
        places = offsets.get().tolist()
        if len(set(places)) != len(places):
            raise ValueError("offset array contains duplicate values")
        self._shape = _shape(shape)
        self._set_arrays((data, offsets))

    def _getnnz(self, axis: Any = None) -> int:
        if axis is not None:
            raise NotImplementedError("getnnz over an axis is not implemented for DIA format")
        rows, columns = self._shape
        ends = min(columns, self.data.shape[1])
        return sum(max(0, min(rows + k, ends) - max(k, 0)) for k in self.offsets.get().tolist())


def _concrete(format: str, base: type, root: type, dimensions: tuple[int, ...]) -> Any:
    """The class of one format, of matrices or of arrays."""
    kind = root._kind  # type: ignore[attr-defined]
    body = {"__doc__": base.__doc__ or f"A sparse {kind}: {format}.", "_dimensions": dimensions}
    made = type(f"{format}_{kind}", (root, base), {**body, "__module__": "cupyx.scipy.sparse"})
    _call.classes[made.__name__] = made
    return made


coo_matrix = _concrete("coo", _Coordinates, spmatrix, (2,))
csr_matrix = _concrete("csr", _Rows, spmatrix, (2,))
csc_matrix = _concrete("csc", _Columns, spmatrix, (2,))
dia_matrix = _concrete("dia", _Diagonals, spmatrix, (2,))
coo_array = _concrete("coo", _Coordinates, sparray, (1, 2))
csr_array = _concrete("csr", _Rows, sparray, (1, 2))
csc_array = _concrete("csc", _Columns, sparray, (2,))
dia_array = _concrete("dia", _Diagonals, sparray, (2,))
