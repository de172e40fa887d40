"""The four formats: how a matrix is made from its parts, and what only a compressed one can do."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from rgpu.client.remote import Remote
from rgpu.cupyx.scipy.sparse import _call
from rgpu.cupyx.scipy.sparse._base import SparseEfficiencyWarning, spmatrix
from rgpu.functions import creation

_DTYPES = "?fdFD"


def _checked(data: Any, dtype: Any = None) -> Any:
    """The value array in a dtype that sparse matrices have."""
    if dtype is not None:
        data = data.astype(dtype, copy=False)
    if data.dtype.char not in _DTYPES:
        raise ValueError("Only bool, float32, float64, complex64 and complex128 are supported")
    return data


def _is_host_sparse(x: Any) -> bool:
    return type(x).__module__.startswith("scipy.sparse") and hasattr(x, "asformat")


def _is_shape(x: Any) -> bool:
    return isinstance(x, tuple) and len(x) == 2 and all(isinstance(n, int | np.integer) for n in x)


def _shape(shape: Any) -> tuple[int, int]:
    if not isinstance(shape, tuple | list) or len(shape) != 2:
        raise ValueError("invalid dimensions, must be a 2-tuple")
    rows, columns = (int(n) for n in shape)
    if rows < 0 or columns < 0:
        raise ValueError("'shape' elements cannot be negative")
    return rows, columns


def _array(x: Any, copy: bool, integer: bool = False) -> Any:
    if not isinstance(x, Remote | np.ndarray | list | tuple):
        raise ValueError(f"cannot make a sparse matrix of {type(x)}")
    result = creation.array(x, copy=copy)
    if integer and result.dtype.char not in "il":
        result = result.astype(np.int32)
    return result


class _Format(spmatrix):
    """Construction that the formats share."""

    def __init__(self, arg1: Any, shape: Any = None, dtype: Any = None, copy: bool = False) -> None:
        if isinstance(arg1, spmatrix):
            made = arg1.asformat(self.format)
            made = made.copy() if copy and made is arg1 else made
            self._take(made, dtype)
        elif _is_host_sparse(arg1):
            self._take_host(arg1.asformat(self.format), dtype)
        elif _is_shape(arg1):
            self._shape = _shape(arg1)
            self._set_arrays(self._empty(np.dtype(float if dtype is None else dtype)))
        elif isinstance(arg1, tuple):
            self._from_parts(arg1, shape, dtype, copy)
        else:
            dense = creation.array(arg1, dtype=dtype, copy=False)
            if dense.ndim > 2:
                raise ValueError("expected dimension <= 2 array or matrix")
            _checked(dense)
            self._take(_call.ask("from_dense", dense, self.format), None)
        if shape is not None and not isinstance(arg1, tuple) and _shape(shape) != self._shape:
            raise ValueError(f"inconsistent shapes: {self._shape} != {shape}")

    def _take(self, other: Any, dtype: Any) -> None:
        self._shape = other._shape
        arrays = other._arrays()
        self._set_arrays((_checked(arrays[0], dtype), *arrays[1:]))

    def _take_host(self, host: Any, dtype: Any) -> None:
        names = {"coo": ("row", "col"), "dia": ("offsets",)}.get(self.format, ("indices", "indptr"))
        arrays = [creation.array(getattr(host, name)) for name in ("data", *names)]
        self._shape = _shape(host.shape)
        self._set_arrays((_checked(arrays[0], dtype), *arrays[1:]))

    def _empty(self, dtype: np.dtype) -> tuple:
        raise NotImplementedError

    def _from_parts(self, parts: tuple, shape: Any, dtype: Any, copy: bool) -> None:
        raise NotImplementedError


class coo_matrix(_Format):  # noqa: N801 - CuPy's name
    """Coordinates: ``data``, ``row`` and ``col``."""

    format = "coo"

    def _arrays(self) -> tuple:
        return self.data, self.row, self.col

    def _set_arrays(self, arrays: tuple) -> None:
        self.data, self.row, self.col = arrays
        self.has_canonical_format = False

    def _empty(self, dtype: np.dtype) -> tuple:
        return creation.zeros(0, dtype), creation.zeros(0, np.int32), creation.zeros(0, np.int32)

    def _from_parts(self, parts: tuple, shape: Any, dtype: Any, copy: bool) -> None:
        if len(parts) != 2 or not isinstance(parts[1], tuple | list) or len(parts[1]) != 2:
            raise TypeError("invalid input format")
        data = _checked(_array(parts[0], copy), dtype)
        row, col = (_array(x, copy, integer=True) for x in parts[1])
        if not data.ndim == row.ndim == col.ndim == 1 or not data.size == row.size == col.size:
            raise ValueError("row, column, and data array must all be the same length")
        if shape is None:
            if not data.size:
                raise ValueError("cannot infer dimensions from zero sized index arrays")
            shape = (int(row.max()) + 1, int(col.max()) + 1)
        self._shape = _shape(shape)
        self._set_arrays((data, row, col))

    def transpose(self, axes: Any = None, copy: bool = False) -> Any:
        if axes is not None:
            raise ValueError("Sparse matrices do not support an 'axes' parameter")
        made = coo_matrix._of((self.data, self.col, self.row), self._shape[::-1])
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
        count = self._shape[self._major] + 1
        return creation.zeros(0, dtype), creation.zeros(0, np.int32), creation.zeros(count, np.int32)

    def _from_parts(self, parts: tuple, shape: Any, dtype: Any, copy: bool) -> None:
        if len(parts) == 2 and isinstance(parts[1], tuple | list):
            self._take(coo_matrix(parts, shape, dtype, copy).asformat(self.format), None)
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
        self._shape = _shape(shape)
        if indptr.size != self._shape[self._major] + 1:
            raise ValueError(f"index pointer size ({indptr.size}) should be ({self._shape[self._major] + 1})")
        self._set_arrays((data, indices, indptr))

    def transpose(self, axes: Any = None, copy: bool = False) -> Any:
        if axes is not None:
            raise ValueError("Sparse matrices do not support an 'axes' parameter")
        made = _call.classes["csr" if self._major else "csc"]._of(self._arrays(), self._shape[::-1])
        return made.copy() if copy else made

    def _rewritten(self, name: str) -> None:
        self._set_arrays(_call.ask(name, self)._arrays())

    def sum_duplicates(self) -> None:
        """Add up equal entries; indices are sorted afterwards."""
        self._rewritten("sum_duplicates")

    def sort_indices(self) -> None:
        """Sort the indices within each row or column."""
        self._rewritten("sort_indices")

    def sorted_indices(self) -> Any:
        made = self.copy()
        made.sort_indices()
        return made

    def eliminate_zeros(self) -> None:
        """Drop stored zeros."""
        self._rewritten("eliminate_zeros")

    def __getitem__(self, key: Any) -> Any:
        return _call.ask("getitem", self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._become(_call.ask("setitem", self, key, value))

    def getrow(self, i: int) -> Any:
        return self[i, :]

    def getcol(self, j: int) -> Any:
        return self[:, j]

    def _compared(self, name: str, other: Any) -> Any:
        if isinstance(other, spmatrix):
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


class csr_matrix(_Compressed):  # noqa: N801 - CuPy's name
    """Compressed rows."""

    format = "csr"
    _major = 0


class csc_matrix(_Compressed):  # noqa: N801 - CuPy's name
    """Compressed columns."""

    format = "csc"
    _major = 1


class dia_matrix(_Format):  # noqa: N801 - CuPy's name
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
        offsets = creation.array(parts[1], copy=copy).astype(np.int32).reshape(-1)
        if data.ndim != 2:
            raise ValueError("data array must have rank 2")
        if data.shape[0] != offsets.size:
            raise ValueError(f"number of diagonals ({data.shape[0]}) does not match offsets ({offsets.size})")
        self._shape = _shape(shape)
        self._set_arrays((data, offsets))

    def getnnz(self, axis: Any = None) -> int:
        if axis is not None:
            raise NotImplementedError("getnnz over an axis is not implemented for DIA format")
        rows, columns = self._shape
        ends = min(columns, self.data.shape[1])
        return sum(max(0, min(rows + k, ends) - max(k, 0)) for k in self.offsets.get().tolist())


_call.classes.update(csr=csr_matrix, csc=csc_matrix, coo=coo_matrix, dia=dia_matrix)
