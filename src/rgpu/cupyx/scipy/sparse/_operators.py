"""``LinearOperator``: something with a shape that multiplies vectors, made of a matrix or of Python callables.

The callables run here, on the client, with device arrays. Nothing here waits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rgpu.client.remote import Remote
from rgpu.cupyx.scipy.sparse._base import _spbase, is_scalar
from rgpu.functions import creation, dispatch


class LinearOperator:
    """``LinearOperator(shape, matvec, rmatvec, matmat, dtype, rmatmat)``, or of a subclass with ``_matvec``."""

    ndim = 2
    shape: tuple[int, int]
    dtype: Any

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return super().__new__(_Custom if cls is LinearOperator else cls)

    def __init__(self, dtype: Any, shape: Any) -> None:
        shape = tuple(shape)
        if len(shape) != 2 or not all(isinstance(n, int | np.integer) for n in shape):
            raise ValueError(f"invalid shape {shape!r} (must be 2-d)")
        self.dtype, self.shape = None if dtype is None else np.dtype(dtype), (int(shape[0]), int(shape[1]))

    def _init_dtype(self) -> None:
        """A dtype that nobody named is that of a product."""
        if self.dtype is None:
            self.dtype = self.matvec(creation.zeros(self.shape[1])).dtype

    # ---- what a subclass may give ----

    def _matvec(self, x: Any) -> Any:
        return self.matmat(x.reshape(-1, 1))

    def _matmat(self, X: Any) -> Any:  # noqa: N803 - CuPy's name
        return dispatch.call("hstack", [self.matvec(column).reshape(-1, 1) for column in X.T])

    def _rmatvec(self, x: Any) -> Any:
        if type(self)._adjoint is LinearOperator._adjoint:
            raise NotImplementedError("rmatvec is not defined")
        return self.H.matvec(x)

    def _rmatmat(self, X: Any) -> Any:  # noqa: N803
        if type(self)._adjoint is LinearOperator._adjoint:
            return dispatch.call("hstack", [self.rmatvec(column).reshape(-1, 1) for column in X.T])
        return self.H.matmat(X)

    def _adjoint(self) -> Any:
        return _Turned(self, True)

    # ---- products ----

    def _vector(self, multiply: Callable[[Any], Any], x: Any, rows: int, columns: int) -> Any:
        if x.shape not in ((columns,), (columns, 1)):
            raise ValueError("dimension mismatch")
        y = multiply(x)
        return y.reshape(rows) if x.ndim == 1 else y.reshape(rows, 1)

    def matvec(self, x: Any) -> Any:
        """The product with a vector (N,) or a column (N, 1)."""
        return self._vector(self._matvec, x, *self.shape)

    def rmatvec(self, x: Any) -> Any:
        """The adjoint's product with a vector."""
        return self._vector(self._rmatvec, x, *self.shape[::-1])

    def matmat(self, X: Any) -> Any:  # noqa: N803
        """The product with a matrix (N, K)."""
        if X.ndim != 2 or X.shape[0] != self.shape[1]:
            raise ValueError(f"dimension mismatch: {self.shape}, {X.shape}")
        return self._matmat(X)

    def rmatmat(self, X: Any) -> Any:  # noqa: N803
        """The adjoint's product with a matrix."""
        if X.ndim != 2 or X.shape[0] != self.shape[0]:
            raise ValueError(f"dimension mismatch: {self.shape}, {X.shape}")
        return self._rmatmat(X)

    def dot(self, x: Any) -> Any:
        """A product with a scalar, a vector, a matrix or another operator."""
        if isinstance(x, LinearOperator):
            return _Product(self, x)
        if is_scalar(x):
            return _Scaled(self, x)
        if x.ndim not in (1, 2):
            raise ValueError("expected 1-d or 2-d array, matrix or LinearOperator")
        return self.matvec(x) if x.ndim == 1 or x.shape[1] == 1 else self.matmat(x)

    def __call__(self, x: Any) -> Any:
        return self * x

    def __mul__(self, x: Any) -> Any:
        return self.dot(x)

    def __matmul__(self, x: Any) -> Any:
        if is_scalar(x):
            raise ValueError("Scalar operands are not allowed, use '*' instead")
        return self.dot(x)

    def __rmul__(self, x: Any) -> Any:
        return _Scaled(self, x) if is_scalar(x) else NotImplemented

    def __add__(self, x: Any) -> Any:
        return _Sum(self, x) if isinstance(x, LinearOperator) else NotImplemented

    def __sub__(self, x: Any) -> Any:
        return self + (-x)

    def __neg__(self) -> Any:
        return _Scaled(self, -1)

    def __pow__(self, p: int) -> Any:
        result = self
        for _ in range(p - 1):
            result = _Product(result, self)
        return result

    def adjoint(self) -> Any:
        """The Hermitian adjoint."""
        return self._adjoint()

    def transpose(self) -> Any:
        return _Turned(self, False)

    H = property(lambda self: self.adjoint())
    T = property(lambda self: self.transpose())

    def __repr__(self) -> str:
        return f"<{self.shape[0]}x{self.shape[1]} {type(self).__name__} with dtype={self.dtype}>"


class _Custom(LinearOperator):
    """An operator of callables."""

    def __init__(
        self, shape: Any, matvec: Any, rmatvec: Any = None, matmat: Any = None, dtype: Any = None, rmatmat: Any = None
    ) -> None:
        super().__init__(dtype, shape)
        self._given = {"matvec": matvec, "rmatvec": rmatvec, "matmat": matmat, "rmatmat": rmatmat}
        self._init_dtype()

    def _matvec(self, x: Any) -> Any:
        return self._given["matvec"](x)

    def _matmat(self, X: Any) -> Any:  # noqa: N803
        return self._given["matmat"](X) if self._given["matmat"] is not None else super()._matmat(X)

    def _rmatvec(self, x: Any) -> Any:
        if self._given["rmatvec"] is None:
            raise NotImplementedError("rmatvec is not defined")
        return self._given["rmatvec"](x)

    def _rmatmat(self, X: Any) -> Any:  # noqa: N803
        if self._given["rmatmat"] is not None:
            return self._given["rmatmat"](X)
        return dispatch.call("hstack", [self.rmatvec(column).reshape(-1, 1) for column in X.T])

    def _adjoint(self) -> Any:
        given = self._given
        turned = given["rmatvec"], given["matvec"], given["rmatmat"], self.dtype, given["matmat"]
        return _Custom(self.shape[::-1], *turned)


class _Matrix(LinearOperator):
    """An operator that is a matrix; ``A`` is what solvers send to the worker."""

    def __init__(self, A: Any) -> None:  # noqa: N803
        super().__init__(A.dtype, A.shape)
        self.A = self._whole = A

    def _matmat(self, X: Any) -> Any:  # noqa: N803
        return self._whole.dot(X)

    def _matvec(self, x: Any) -> Any:
        return self._whole.dot(x)

    def _adjoint(self) -> Any:
        return _Matrix(self._whole.T.conj())


class _Turned(LinearOperator):
    """The adjoint, or the transpose."""

    def __init__(self, A: LinearOperator, conjugated: bool) -> None:  # noqa: N803
        super().__init__(A.dtype, A.shape[::-1])
        self.A, self._conjugated = A, conjugated

    def _through(self, name: str, x: Any) -> Any:
        multiply = getattr(self.A, name)
        return multiply(x) if self._conjugated else multiply(x.conj()).conj()

    def _matvec(self, x: Any) -> Any:
        return self._through("rmatvec", x)

    def _matmat(self, X: Any) -> Any:  # noqa: N803
        return self._through("rmatmat", X)

    def _rmatvec(self, x: Any) -> Any:
        return self._through("matvec", x)

    def _rmatmat(self, X: Any) -> Any:  # noqa: N803
        return self._through("matmat", X)

    def _adjoint(self) -> Any:
        return self.A if self._conjugated else _Turned(self.A.H, False)


class _Composed(LinearOperator):
    """An operator made of others. ``_through`` multiplies by name."""

    def _through(self, name: str, x: Any) -> Any:
        raise NotImplementedError

    def _matvec(self, x: Any) -> Any:
        return self._through("matvec", x)

    def _matmat(self, X: Any) -> Any:  # noqa: N803
        return self._through("matmat", X)

    def _rmatvec(self, x: Any) -> Any:
        return self._through("rmatvec", x)

    def _rmatmat(self, X: Any) -> Any:  # noqa: N803
        return self._through("rmatmat", X)


class _Product(_Composed):
    def __init__(self, A: LinearOperator, B: LinearOperator) -> None:  # noqa: N803
        if A.shape[1] != B.shape[0]:
            raise ValueError(f"cannot multiply {A!r} and {B!r}: shape mismatch")
        super().__init__(np.result_type(A.dtype, B.dtype), (A.shape[0], B.shape[1]))
        self.args = (A, B)

    def _through(self, name: str, x: Any) -> Any:
        first, second = self.args if name.startswith("r") else self.args[::-1]
        return getattr(second, name)(getattr(first, name)(x))


class _Sum(_Composed):
    def __init__(self, A: LinearOperator, B: LinearOperator) -> None:  # noqa: N803
        if A.shape != B.shape:
            raise ValueError(f"cannot add {A!r} and {B!r}: shape mismatch")
        super().__init__(np.result_type(A.dtype, B.dtype), A.shape)
        self.args = (A, B)

    def _through(self, name: str, x: Any) -> Any:
        return getattr(self.args[0], name)(x) + getattr(self.args[1], name)(x)


class _Scaled(_Composed):
    def __init__(self, A: LinearOperator, alpha: Any) -> None:  # noqa: N803
        super().__init__(np.result_type(A.dtype, type(alpha)), A.shape)
        self.args = (A, alpha)

    def _through(self, name: str, x: Any) -> Any:
        alpha = np.conj(self.args[1]) if name.startswith("r") else self.args[1]
        return alpha * getattr(self.args[0], name)(x)


def aslinearoperator(A: Any) -> LinearOperator:  # noqa: N803
    """An operator for a matrix (dense, sparse), an operator, or something with ``shape`` and ``matvec``."""
    if isinstance(A, LinearOperator):
        return A
    if isinstance(A, Remote):
        if A._metadata.ndim > 2:
            raise ValueError("array must have ndim <= 2")
        return _Matrix(A if A._metadata.ndim == 2 else A.reshape(1, -1))  # type: ignore[attr-defined]
    if isinstance(A, _spbase):
        return _Matrix(A)
    if hasattr(A, "shape") and hasattr(A, "matvec"):
        options = {name: getattr(A, name, None) for name in ("rmatvec", "matmat", "rmatmat", "dtype")}
        return _Custom(A.shape, A.matvec, **options)
    raise TypeError("type not understood")
