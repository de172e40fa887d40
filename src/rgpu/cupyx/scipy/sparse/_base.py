"""What all sparse matrices of the client have in common: arithmetic, reductions, conversions.

A matrix is its format, its shape and device arrays; it holds no data here. What acts on the values
alone is done on the value array; everything else is a declared operation of the worker.
"""

from __future__ import annotations

import operator
import types
import warnings
from typing import Any

import numpy as np

from rgpu.client.remote import Remote
from rgpu.cupyx.scipy.sparse import _call
from rgpu.functions import creation, dispatch

_VALUES = """sin tan arcsin arctan sinh tanh arcsinh arctanh expm1 log1p deg2rad rad2deg sqrt floor ceil trunc
rint sign"""
_NAMES = {"csr": "Compressed Sparse Row", "csc": "Compressed Sparse Column", "coo": "COOrdinate", "dia": "DIAgonal"}
_SCALARS = (bool, int, float, complex, np.generic)


class SparseWarning(Warning):
    """Base of the warnings about sparse matrices."""


class SparseEfficiencyWarning(SparseWarning):
    """An operation that is slow on sparse matrices."""


def is_scalar(x: Any) -> bool:
    return isinstance(x, _SCALARS) or (isinstance(x, Remote | np.ndarray) and x.ndim == 0)  # type: ignore[union-attr]


class _spbase:  # noqa: N801 - CuPy's name
    """What sparse matrices and sparse arrays share."""

    __module__ = "cupyx.scipy.sparse"
    __array_priority__ = 101
    _kind = "matrix"
    __array_ufunc__ = None
    _rgpu_on_device = True
    format = ""
    maxprint = 50
    data: Any
    _shape: tuple[int, ...]

    def __init__(self, maxprint: int = 50) -> None:
        self.maxprint = maxprint

    # ---- parts ------------------------------------------------------------------------------------

    def _arrays(self) -> tuple:
        raise NotImplementedError

    def _set_arrays(self, arrays: tuple) -> None:
        raise NotImplementedError

    @classmethod
    def _of(cls, arrays: Any, shape: Any) -> Any:
        """A matrix over these arrays, without checks or copies."""
        matrix = object.__new__(cls)
        matrix._set_arrays(tuple(arrays))
        matrix._shape = tuple(int(n) for n in shape)
        return matrix

    def __class_getitem__(cls, item: Any) -> types.GenericAlias:
        return types.GenericAlias(cls, item)

    def _inherit(self, other: Any) -> None:
        """Take over what is known of another matrix's index arrays, which are this one's too."""

    @classmethod
    def _class(cls, format: str) -> Any:
        """The class of another format, of matrices or arrays as this one."""
        return _call.classes[f"{format}_{cls._kind}"]

    def _parts(self) -> tuple:
        return (f"sparse:{self.format}_{self._kind}", self._shape, *self._arrays())

    def _with_values(self, values: Any) -> Any:
        """The same pattern with other values."""
        made = type(self)._of((values, *self._arrays()[1:]), self._shape)
        made._inherit(self)
        return made

    def _become(self, other: Any) -> None:
        """Take over another matrix's content, for operations in place."""
        self._set_arrays(other.asformat(self.format)._arrays())

    shape = property(lambda self: self._shape)
    ndim = property(lambda self: len(self._shape))
    mT = property(lambda self: self.transpose())
    dtype = property(lambda self: self.data.dtype)
    nnz = property(lambda self: self._getnnz())
    size = property(lambda self: self._getnnz())
    device = property(lambda self: self.data.device)
    T = property(lambda self: self.transpose())
    real = property(lambda self: self._with_values(self.data.real.copy()))
    imag = property(lambda self: self._with_values(self.data.imag.copy()))

    def __len__(self) -> int:
        raise TypeError("sparse matrix length is ambiguous; use getnnz()")

    def __bool__(self) -> bool:
        if self._shape == (1, 1):
            return self.nnz != 0
        raise ValueError(
            "The truth value of an array with more than one element is ambiguous. Use a.any() or a.all()."
        )

    def __iter__(self) -> Any:
        rows = range(self._shape[0])
        return (self[i] if self.ndim == 1 or self._kind == "array" else self[i, :] for i in rows)  # type: ignore[index]

    def __repr__(self) -> str:
        return (
            f"<{_NAMES[self.format]} sparse {self._kind} of dtype '{self.dtype}'\n"
            f"\twith {self.data.size} stored elements and shape {self._shape}>"
        )

    def __str__(self) -> str:
        return str(self.get())

    def __reduce__(self) -> Any:
        return _unpickle, (f"{self.format}_{self._kind}", [x.get() for x in self._arrays()], self._shape)

    # ---- conversions --------------------------------------------------------------------------------

    def asformat(self, format: str | None) -> Any:
        """This matrix in another format; itself if it has it already."""
        if format is None or format == self.format:
            return self
        if format not in _NAMES or format == "dia":
            raise NotImplementedError(f"the conversion to {format!r} is not available, as in CuPy")
        return _call.ask("convert", self, format)

    def _converted(self, format: str, copy: bool) -> Any:
        return self.asformat(format) if format != self.format else self.copy() if copy else self

    def tocsr(self, copy: bool = False) -> Any:
        return self._converted("csr", copy)

    def tocsc(self, copy: bool = False) -> Any:
        return self._converted("csc", copy)

    def tocoo(self, copy: bool = False) -> Any:
        return self._converted("coo", copy)

    def todia(self, copy: bool = False) -> Any:
        return self._converted("dia", copy)

    def toarray(self, order: Any = None, out: Any = None) -> Any:
        """The matrix as a dense array."""
        if order not in (None, "C", "F"):
            raise ValueError("order not understood")
        result = _call.dense("toarray", self)
        if order == "F":
            result = creation.array(result, order="F")
        if out is not None:
            out[...] = result
            return out
        return result

    todense = toarray

    def get(self, stream: Any = None) -> Any:
        """SciPy's matrix with a copy of the content (needs SciPy on this machine)."""
        import scipy.sparse

        arrays = [x.get() for x in self._arrays()]
        content = (arrays[0], tuple(arrays[1:])) if self.format == "coo" else tuple(arrays)
        return getattr(scipy.sparse, f"{self.format}_{self._kind}")(content, shape=self._shape)

    def copy(self) -> Any:
        made = type(self)._of([x.copy() for x in self._arrays()], self._shape)
        made._inherit(self)
        return made

    def astype(self, dtype: Any, copy: bool = True) -> Any:
        if not copy and self.dtype == np.dtype(dtype):
            return self
        return self._with_values(self.data.astype(dtype, copy=copy))

    def conj(self, copy: bool = True) -> Any:
        return (
            self._with_values(self.data.conj()) if self.dtype.kind == "c" else self.copy() if copy else self
        )

    conjugate = conj

    def transpose(self, axes: Any = None, copy: bool = False) -> Any:
        if axes is not None:
            raise ValueError("Sparse matrices do not support an 'axes' parameter")
        return _call.ask("transpose", self)

    def reshape(self, *shape: Any, order: str = "C") -> Any:
        extents = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape
        return _call.ask("reshape", self, tuple(extents), order=order)

    # ---- arithmetic ---------------------------------------------------------------------------------

    def __matmul__(self, other: Any) -> Any:
        if is_scalar(other):
            raise ValueError("Scalar operands are not allowed, use '*' instead")
        return self._product(other)

    def __mul__(self, other: Any) -> Any:
        return self._with_values(self.data * other) if is_scalar(other) else self._product(other)

    def dot(self, other: Any) -> Any:
        """Product with a scalar, a dense vector or matrix, or a sparse matrix. ValueError for arrays without axes."""
        if isinstance(other, _SCALARS):
            return self._with_values(self.data * other)
        return self @ other

    def _product(self, other: Any) -> Any:
        if not isinstance(other, _spbase | Remote):
            return NotImplemented
        if not other.shape or other.shape[0] != self._shape[-1]:
            raise ValueError("dimension mismatch")
        return (_call.ask if isinstance(other, _spbase) else _call.dense)("matmul", self, other)

    def __rmul__(self, other: Any) -> Any:
        return self._with_values(other * self.data) if is_scalar(other) else self.__rmatmul__(other)

    def __rmatmul__(self, other: Any) -> Any:
        if is_scalar(other):
            raise ValueError("Scalar operands are not allowed, use '*' instead")
        if not isinstance(other, Remote):
            return NotImplemented
        if other.shape[-1] != self._shape[0]:  # type: ignore[attr-defined]
            raise ValueError("dimension mismatch")
        return _call.dense("rmatmul", self, other)

    def _sum_with(self, name: str, other: Any) -> Any:
        if is_scalar(other):
            if not isinstance(other, Remote) and other == 0:
                return self.copy()
            raise NotImplementedError("adding a nonzero scalar to a sparse matrix is not supported")
        if isinstance(other, _spbase):
            a, b = (x.reshape((1, x.shape[0])) if x.ndim < max(self.ndim, other.ndim) else x for x in (self, other))
            if a.shape != b.shape:
                raise ValueError("inconsistent shapes")
            return _call.ask(name, a, b)
        return getattr(operator, {"add": "add", "subtract": "sub"}[name])(self.toarray(), other)

    def __add__(self, other: Any) -> Any:
        return self._sum_with("add", other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return self._sum_with("subtract", other)

    def __rsub__(self, other: Any) -> Any:
        return other - self.toarray() if isinstance(other, Remote) else -(self - other)

    def __neg__(self) -> Any:
        if self.dtype.kind == "b":
            raise NotImplementedError("negating a boolean sparse array is not supported.")
        return self._with_values(-self.data)

    def __abs__(self) -> Any:
        return self._with_values(abs(self.data))

    def __truediv__(self, other: Any) -> Any:
        if is_scalar(other):  # in double precision, as SciPy's
            values = self.data.astype(np.float64, copy=False) if self.dtype.kind != "c" else self.data
            return self._with_values(values * (1.0 / other))
        if isinstance(other, _spbase):
            return _call.dense("divide", self, other)
        return self.multiply(1.0 / other).asformat("coo")

    def __pow__(self, n: int) -> Any:
        """The product of n factors: ValueError for an n that is no count, TypeError for a matrix that is not square."""
        if len(self._shape) != 2 or self._shape[0] != self._shape[1]:
            raise TypeError("matrix is not square")
        if not isinstance(n, int | np.integer):
            raise ValueError("exponent must be an integer")
        if n < 0:
            raise ValueError("exponent must be >= 0")
        if n == 0:
            identity = "eye" if self._kind == "matrix" else "eye_array"
            return _call.ask(identity, *self._shape, dtype=self.dtype, format="csr")
        return self.copy() if n == 1 else _call.ask("linalg.matrix_power", self, int(n))

    def power(self, n: Any, dtype: Any = None) -> Any:
        """Element by element. NotImplementedError for 0, which would leave no zeros, and for arrays."""
        if not is_scalar(n) or n == 0:
            raise NotImplementedError(f"sparse power takes a scalar that is not zero, not {n!r}")
        values = self.data if dtype is None else self.data.astype(dtype)
        return self._with_values(values**n)

    def multiply(self, other: Any) -> Any:
        """Element-wise product."""
        if is_scalar(other):
            return self._with_values(self.data * other)
        return _call.ask("multiply", self, other).asformat("csr")

    def maximum(self, other: Any) -> Any:
        return _call.ask("maximum", self, other)

    def minimum(self, other: Any) -> Any:
        return _call.ask("minimum", self, other)

    # ---- reductions -----------------------------------------------------------------------------------

    def _reduced(self, name: str, axis: Any, out: Any = None, **options: Any) -> Any:
        if isinstance(axis, tuple):
            axes = [operator.index(n) % 2 for n in axis]
            if len(set(axes)) != len(axes):
                raise ValueError(f"an axis appears more than once in {axis}")
            axis = None if len(axes) == 2 else axis[0]
        if axis is not None and not -2 <= operator.index(axis) < 2:
            raise ValueError("axis out of range")
        options = {key: value for key, value in options.items() if value is not None and value is not False}
        result = _call.dense(name, self, axis=axis, **options)
        if out is not None:
            if out.shape != result.shape:
                raise ValueError(f"out has the shape {out.shape}, the result {result.shape}")
            out[...] = result
            return out
        return result

    def sum(self, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
        return self._reduced("sum", axis, out, dtype=dtype)

    def mean(self, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
        return self._reduced("mean", axis, out, dtype=dtype)

    def _extreme(self, name: str, axis: Any, out: Any, explicit: bool) -> Any:
        if out is not None:
            raise ValueError("Sparse matrices do not support an 'out' parameter")
        options = {"explicit": True} if explicit else {}
        return (
            _call.dense(name, self, **options)
            if axis is None
            else _call.ask(name, self, axis=axis, **options)
        )

    def max(self, axis: Any = None, out: Any = None, *, explicit: bool = False) -> Any:
        return self._extreme("max", axis, out, explicit)

    def min(self, axis: Any = None, out: Any = None, *, explicit: bool = False) -> Any:
        return self._extreme("min", axis, out, explicit)

    def argmax(self, axis: Any = None, out: Any = None) -> Any:
        return _call.ask("argmax", self, axis=axis)

    def argmin(self, axis: Any = None, out: Any = None) -> Any:
        return _call.ask("argmin", self, axis=axis)

    def diagonal(self, k: int = 0) -> Any:
        return _call.dense("diagonal", self, k)

    def trace(self, offset: int = 0) -> Any:
        return self.diagonal(offset).sum()

    def _getnnz(self, axis: Any = None) -> Any:
        return self.data.size if axis is None else _call.dense("getnnz", self, axis=axis)

    def count_nonzero(self, axis: Any = None) -> Any:
        if len(self._shape) == 1:
            if axis not in (None, 0, -1, (0,), (-1,)):
                raise ValueError(f"axis {axis} is out of range")
            axis = None
        if self.format == "dia":
            if axis is not None:
                raise NotImplementedError("count_nonzero over an axis is not implemented for DIA format")
            return self.tocsc().count_nonzero()  # not of what lies outside
        if axis is None:
            return dispatch.call("count_nonzero", self.data)
        return _call.dense("count_nonzero", self, axis=axis)

    def nonzero(self) -> Any:
        return _call.ask("nonzero", self)

    def setdiag(self, values: Any, k: int = 0) -> None:
        """Assign to a diagonal: a scalar, or a vector of which the first elements are taken."""
        if (values.ndim if hasattr(values, "ndim") else np.ndim(values)) > 1:
            raise ValueError("values of a diagonal must be 0-d or 1-d")
        self._become(_call.ask("setdiag", self, values, k))


class spmatrix(_spbase):  # noqa: N801 - CuPy's name
    """Base of the sparse matrices: ``*`` is the matrix product, results have two dimensions."""

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape

    @shape.setter
    def shape(self, shape: Any) -> None:
        self.set_shape(shape)

    @property
    def A(self) -> Any:  # noqa: N802 - CuPy's name
        _removed("A", "toarray()")
        return self.toarray()

    @property
    def H(self) -> Any:  # noqa: N802 - CuPy's name
        _removed("H", "T.conj()")
        return self.getH()

    def getH(self) -> Any:  # noqa: N802 - CuPy's name
        return self.transpose().conj()

    def get_shape(self) -> tuple[int, ...]:
        return self._shape

    def set_shape(self, shape: Any) -> None:
        """Reshape in place."""
        made = self.reshape(shape).asformat(self.format)
        self._shape = made._shape
        self._set_arrays(made._arrays())

    def getformat(self) -> str:
        return self.format

    def getmaxprint(self) -> int:
        return self.maxprint

    def asfptype(self) -> Any:
        return self if self.dtype.kind in "fc" else self.astype(np.float64)

    def getnnz(self, axis: Any = None) -> Any:
        """The number of stored elements, explicit zeros among them."""
        return self._getnnz(axis)

    def getrow(self, i: int) -> Any:
        return self.tocsr()[i, :]

    def getcol(self, j: int) -> Any:
        compressed: Any = self if self.format == "csc" else self.tocsr()
        return compressed[:, j]


class sparray(_spbase):  # noqa: N801 - CuPy's name
    """Base of the sparse arrays: operators are element-wise, reductions drop a dimension."""

    _kind = "array"

    def __mul__(self, other: Any) -> Any:
        return self.multiply(other)

    def __rmul__(self, other: Any) -> Any:
        return self.multiply(other)

    def __imul__(self, other: Any) -> Any:
        return self._scaled_in_place(operator.imul, other)

    def __itruediv__(self, other: Any) -> Any:
        return self._scaled_in_place(operator.itruediv, other)

    def _scaled_in_place(self, operation: Any, other: Any) -> Any:
        if not is_scalar(other):
            return NotImplemented
        values = self.data.astype(np.float64) if self.dtype.kind == "b" else self.data  # CuPy's way with truth values
        self.data = operation(values, other)
        return self

    def __pow__(self, n: Any) -> Any:
        return self.power(n)

    def __round__(self, ndigits: int = 0) -> Any:
        return self._with_values(dispatch.call("around", self.data, ndigits))


def _removed(name: str, instead: str) -> None:
    message = f"`spmatrix.{name}` is deprecated and will be removed: use `.{instead}` instead"
    warnings.warn(message, DeprecationWarning, stacklevel=3)


def _values_method(name: str) -> Any:
    def method(self: Any) -> Any:
        return self._with_values(dispatch.call(name, self.data))

    method.__name__ = name
    method.__doc__ = f"``{name}`` of the stored values."
    return method


for _name in _VALUES.split():
    setattr(_spbase, _name, _values_method(_name))


def _unpickle(kind: str, arrays: list, shape: tuple) -> Any:
    return _call.classes[kind]._of([creation.array(x) for x in arrays], shape)
