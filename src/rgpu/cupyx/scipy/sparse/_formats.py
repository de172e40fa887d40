"""The four formats: how a matrix is made from its parts, and what only a compressed one can do."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from rgpu.client.remote import Remote
from rgpu.cupyx.scipy.sparse import _call, _indices
from rgpu.cupyx.scipy.sparse._base import SparseEfficiencyWarning, _spbase, is_scalar, sparray, spmatrix
from rgpu.functions import creation

_DTYPES = "?fdFD"
#: what may be known of the arrays of a compressed matrix; an attribute that is not there is not known
_FACTS = ("_has_canonical_format", "_has_sorted_indices")


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

    _allow_nd: tuple[int, ...] = (2,)  # that an object may have

    def __init__(
        self, arg1: Any, shape: Any = None, dtype: Any = None, copy: bool = False, *, maxprint: Any = None
    ) -> None:
        if maxprint is not None:
            self.maxprint = maxprint
        if isinstance(arg1, _spbase):
            if arg1.ndim not in self._allow_nd:
                raise ValueError(f"{self.format}_{self._kind} cannot have {arg1.ndim} dimensions")
            made = arg1.asformat(self.format)
            self._take(made.copy() if copy and made is arg1 else made, dtype)
        elif _is_host_sparse(arg1):
            self._take_host(arg1.asformat(self.format), dtype)
        elif _is_shape(arg1, self._allow_nd):
            self._shape = _shape(arg1, self._allow_nd)
            self._set_arrays(self._empty(np.dtype(float if dtype is None else dtype)))
        elif isinstance(arg1, tuple):
            if _is_shape(arg1, (len(arg1),)) and 1 in self._allow_nd:
                raise ValueError(f"{self.format}_array has 1-D and 2-D shapes only, not {arg1}")
            self._fill(arg1, shape, dtype, copy)
        else:
            self._take_dense(creation.array(arg1, dtype=dtype, copy=False))
        if shape is not None and not isinstance(arg1, tuple) and _shape(shape, self._allow_nd) != self._shape:
            self._widen(_shape(shape, self._allow_nd))

    def _take_dense(self, dense: Any) -> None:
        if dense.ndim > 2:
            raise ValueError("expected dimension <= 2 array or matrix")
        if self._kind == "array" and dense.ndim not in self._allow_nd:
            wrong = TypeError if dense.ndim == 0 and 1 in self._allow_nd else ValueError
            raise wrong(f"{self.format}_array cannot have {dense.ndim} dimensions")
        _checked(dense)
        self._take(_call.ask("from_dense", dense, f"{self.format}_{self._kind}"), None)
        if self.format == "coo":
            self.has_canonical_format = True

    def _widen(self, shape: tuple[int, ...]) -> None:
        """The same elements in another shape, which must hold them; a csr_array of one dimension may become a row."""
        places = self.asformat("coo").coords
        if self.format == "csr" and len(shape) == 2 and len(places) == 1:
            places = (creation.zeros_like(places[0]), *places)
        if len(shape) != len(places) or self.format == "dia":
            raise ValueError(f"inconsistent shapes: {self._shape} != {shape}")
        self._take(self._class("coo")((self.asformat("coo").data, places), shape).asformat(self.format), None)

    def _take(self, other: Any, dtype: Any) -> None:
        self._shape = other._shape
        arrays = other._arrays()
        self._set_arrays((_checked(arrays[0], dtype), *arrays[1:]))
        self._inherit(other)

    def _take_host(self, host: Any, dtype: Any) -> None:
        if self.format == "coo":
            parts = [host.data, *(host.coords if hasattr(host, "coords") else (host.row, host.col))]
        else:
            names = ("data", "offsets") if self.format == "dia" else ("data", "indices", "indptr")
            parts = [getattr(host, name) for name in names]
        arrays = [creation.array(part) for part in parts]
        self._shape = _shape(host.shape, self._allow_nd)
        self._set_arrays((_checked(arrays[0], dtype), *arrays[1:]))

    def _empty(self, dtype: np.dtype) -> tuple:
        raise NotImplementedError

    def _fill(self, parts: tuple, shape: Any, dtype: Any, copy: bool) -> None:
        raise NotImplementedError


class _Coordinates(_Format):
    """Coordinates: ``data`` and an array of positions along each axis (``coords``, of which row and col are two)."""

    format = "coo"
    coords: tuple

    @property
    def row(self) -> Any:
        return self.coords[-2] if len(self.coords) > 1 else creation.zeros_like(self.coords[0])

    @row.setter
    def row(self, positions: Any) -> None:
        if len(self.coords) == 1:
            raise ValueError("a sparse array of one dimension has no rows")
        self.coords = (positions, self.coords[1])

    @property
    def col(self) -> Any:
        return self.coords[-1]

    @col.setter
    def col(self, positions: Any) -> None:
        self.coords = (*self.coords[:-1], positions)

    @classmethod
    def _from_parts(cls, data: Any, row: Any, col: Any, shape: Any, has_canonical_format: bool = False) -> Any:
        """A matrix over arrays whose positions are within the shape, without copies or waiting."""
        shape = _shape(shape)
        _indices.check_together(data, (row, col), shape, 2)
        made = cls._of((data, row, col), shape)
        made.has_canonical_format = bool(has_canonical_format)
        return made

    def _inherit(self, other: Any) -> None:
        self.has_canonical_format = other.format == "coo" and other.has_canonical_format

    def _arrays(self) -> tuple:
        return self.data, *self.coords

    def _set_arrays(self, arrays: tuple) -> None:
        self.data, self.coords = arrays[0], tuple(arrays[1:])
        self.has_canonical_format = False

    def _empty(self, dtype: np.dtype) -> tuple:
        places = _indices.get_index_dtype(maxval=max(self._shape))
        return creation.zeros(0, dtype), *[creation.zeros(0, places) for _ in self._shape]

    def _fill(self, parts: tuple, shape: Any, dtype: Any, copy: bool) -> None:
        if len(parts) != 2:
            raise TypeError("invalid input format")
        positions: Any = parts[1]
        if isinstance(positions, Remote | np.ndarray) and positions.ndim == 2:
            positions = list(positions)  # type: ignore[arg-type]
        if not isinstance(positions, tuple | list) or len(positions) not in self._allow_nd:
            raise TypeError("invalid input format")
        data = _checked(_array(parts[0], copy), dtype)
        coords = tuple(_array(x, copy, integer=True) for x in positions)
        if any(x.ndim != 1 or x.size != data.size for x in (data, *coords)):
            raise ValueError("row, column, and data array must all be the same length")
        if shape is None:
            if not data.size:
                raise ValueError("cannot infer dimensions from zero sized index arrays")
            shape = tuple(int(x.max()) + 1 for x in coords)
        self._shape = _shape(shape, self._allow_nd)
        if len(self._shape) != len(coords):
            raise ValueError("mismatching number of index arrays for shape")
        self._within(coords)
        self._set_arrays((data, *_indices.fitting(coords, self._shape, self._kind == "matrix")))

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
        made = self.tocsr()[key]
        return made.asformat("coo") if isinstance(made, _spbase) else made

    def transpose(self, axes: Any = None, copy: bool = False) -> Any:
        if axes is not None:
            raise ValueError("Sparse matrices do not support an 'axes' parameter")
        made = type(self)._of((self.data, *self.coords[::-1]), self._shape[::-1])
        return made.copy() if copy else made

    def dot(self, other: Any) -> Any:
        """Product with a scalar, an array without axes too, a dense vector or matrix, or a sparse matrix."""
        return self._with_values(self.data * other) if is_scalar(other) else self @ other

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
        for fact in _FACTS:  # not known of these arrays
            self.__dict__.pop(fact, None)

    def _inherit(self, other: Any) -> None:
        for fact in _FACTS:
            if fact in other.__dict__:
                setattr(self, fact, getattr(other, fact))

    @property
    def has_canonical_format(self) -> bool:
        """Whether indices are sorted and without duplicates: asked once (waits), assignable."""
        if not self.data.size:
            self._has_canonical_format = self._has_sorted_indices = True
        elif not self.__dict__.get("_has_sorted_indices", True):
            self._has_canonical_format = False
        elif "_has_canonical_format" not in self.__dict__:
            self.has_canonical_format = _call.ask("fact", self, "has_canonical_format")
        return self._has_canonical_format

    @has_canonical_format.setter
    def has_canonical_format(self, value: bool) -> None:
        self._has_canonical_format = bool(value)
        if value:
            self._has_sorted_indices = True

    @property
    def has_sorted_indices(self) -> bool:
        """Whether the indices within each row or column are sorted: asked once (waits), assignable."""
        if "_has_sorted_indices" not in self.__dict__:
            self._has_sorted_indices = not self.data.size or bool(_call.ask("fact", self, "has_sorted_indices"))
        return self._has_sorted_indices

    @has_sorted_indices.setter
    def has_sorted_indices(self, value: bool) -> None:
        self._has_sorted_indices = bool(value)

    @classmethod
    def _from_parts(
        cls, data: Any, indices: Any, indptr: Any, shape: Any, has_canonical_format: bool | None = None,
        has_sorted_indices: bool | None = None,
    ) -> Any:  # fmt: skip
        """A matrix over arrays that are known to fit, without copies or waiting; the facts, where they are known."""
        if has_canonical_format and has_sorted_indices is False:
            raise ValueError("a canonical format has sorted indices")
        shape = _shape(shape, cls._allow_nd)
        _indices.check_together(data, (indices, indptr), shape, 1)
        major = shape[cls._major] if len(shape) > 1 else 1
        if indptr.size != major + 1:
            raise ValueError(f"indptr has {indptr.size} elements for a major axis of {major}: one more is needed")
        made = cls._of((data, indices, indptr), shape)
        for fact, known in zip(_FACTS, (has_canonical_format, has_sorted_indices or has_canonical_format)):
            if known is not None:
                setattr(made, fact, bool(known))
        return made

    def _empty(self, dtype: np.dtype) -> tuple:
        count = self._shape[self._major] + 1 if len(self._shape) > 1 else 2
        places = _indices.get_index_dtype(maxval=max(self._shape))
        return creation.zeros(0, dtype), creation.zeros(0, places), creation.zeros(count, places)

    def _fill(self, parts: tuple, shape: Any, dtype: Any, copy: bool) -> None:
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
        self._shape = _shape(shape, self._allow_nd)
        ends = indptr[:: max(1, indptr.size - 1)].get() if indptr.size else (0,)
        if ends[0]:
            raise ValueError(f"index pointer should start with 0 (got {ends[0]})")
        if ends[-1] > data.size:
            raise ValueError(f"last index pointer ({ends[-1]}) exceeds the size of data and indices ({data.size})")
        if ends[-1] < data.size:
            data, indices = data[: int(ends[-1])], indices[: int(ends[-1])]
        expected = (self._shape[self._major] if len(self._shape) > 1 else 1) + 1
        if indptr.size != expected:
            raise ValueError(f"index pointer size ({indptr.size}) should be ({expected})")
        indices, indptr = _indices.fitting((indices, indptr), self._shape, self._kind == "matrix")
        self._set_arrays((data, indices, indptr))

    def transpose(self, axes: Any = None, copy: bool = False) -> Any:
        if axes is not None:
            raise ValueError("Sparse matrices do not support an 'axes' parameter")
        if len(self._shape) == 1:
            return self.copy() if copy else self
        made = self._class("csr" if self._major else "csc")._of(self._arrays(), self._shape[::-1])
        made._inherit(self)
        return made.copy() if copy else made

    def asformat(self, format: str | None) -> Any:
        made = super().asformat(format)
        if made is not self and self.__dict__.get("_has_canonical_format") and format in ("csr", "csc"):
            made.has_canonical_format = True
        elif made.format == "coo" and self.format == "csr":  # row by row
            made.has_canonical_format = self.__dict__.get("_has_canonical_format", False)
        return made

    def _rewritten(self, name: str, fact: str | None = None) -> None:
        """The matrix after an operation, unless it is known to have what that would bring about."""
        if fact is not None and self.__dict__.get(f"_{fact}"):
            return
        self._set_arrays(_call.ask(name, self)._arrays())
        if fact is not None:
            setattr(self, fact, True)
            self._has_sorted_indices = True

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

    def _keeps_order(self, key: Any) -> bool:
        """Whether an index takes whole rows (columns of a csc), or a stretch of each: that keeps their order."""
        keys = key if isinstance(key, tuple) else (key,)
        if len(keys) != len(self._shape) and len(keys) != 1 or any(k is None or k is Ellipsis for k in keys):
            return False
        minor = (*keys, slice(None))[1 - self._major] if len(self._shape) > 1 else keys[0]
        return isinstance(minor, slice) and minor.step in (None, 1)

    def __getitem__(self, key: Any) -> Any:
        made = _call.ask("getitem", self, key)
        if isinstance(made, _spbase) and made.format == self.format and self._keeps_order(key):
            made._inherit(self)
        return made

    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(key, tuple) and len(key) > len(self._shape):
            raise IndexError(f"too many indices: {len(key)} for {len(self._shape)} dimensions")
        before = self.data.size
        self._become(_call.ask("setitem", self, key, value))
        if self.data.size > before:
            message = f"Changing the sparsity structure of a {self.format}_{self._kind} is expensive."
            warnings.warn(message, SparseEfficiencyWarning, stacklevel=2)

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
        return creation.zeros((0, 0), dtype), creation.zeros(0, _indices.get_index_dtype(maxval=max(self._shape)))

    def _fill(self, parts: tuple, shape: Any, dtype: Any, copy: bool) -> None:
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
        self._set_arrays((data, offsets.astype(_indices.get_index_dtype(maxval=max(self._shape)), copy=False)))

    def transpose(self, axes: Any = None, copy: bool = False) -> Any:
        """As columns: the rows of this matrix."""
        return self.tocsr().transpose(axes, copy)

    def _getnnz(self, axis: Any = None) -> int:
        if axis is not None:
            raise NotImplementedError("getnnz over an axis is not implemented for DIA format")
        rows, columns = self._shape
        ends = min(columns, self.data.shape[1])
        return sum(max(0, min(rows + k, ends) - max(k, 0)) for k in self.offsets.get().tolist())


def _concrete(format: str, base: type, root: type, dimensions: tuple[int, ...]) -> Any:
    """The class of one format, of matrices or of arrays."""
    kind = root._kind  # type: ignore[attr-defined]
    body = {"__doc__": base.__doc__ or f"A sparse {kind}: {format}.", "_allow_nd": dimensions}
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
