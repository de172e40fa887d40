"""Polynomials by coefficients, highest power first: ``poly1d`` and the functions that know it.

Coefficients stay on the device; the arithmetic is the table's functions on coefficient arrays.
Only what the values decide (leading zeros, the rank of a fit) waits, as it does in CuPy.
"""

from __future__ import annotations

import numbers
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from rgpu.client.remote import Remote
from rgpu.functions import creation, dispatch

RankWarning = getattr(np.exceptions, "RankWarning", None) or np.RankWarning


def trim_zeros(filt: Any, trim: str = "fb") -> Any:
    """A view without leading ('f') and trailing ('b') zeros of a 1-d array (waits for their number)."""
    trim = trim.upper()
    if not trim.isalpha() or set(trim) - set("FB"):
        raise ValueError("trim must be a combination of 'f' and 'b'")
    if not isinstance(filt, Remote):
        raise TypeError(f"Unsupported type {type(filt)}")
    if not filt._metadata.ndim:
        return filt
    if filt._metadata.ndim != 1:
        raise ValueError("Multi-dimensional trim is not supported")
    found = dispatch.call("flatnonzero", filt)
    if not found.size:
        return filt[:0]
    first, last = found[[0, -1]].tolist()
    return filt[first if "F" in trim else 0 : last + 1 if "B" in trim else filt.size]  # type: ignore[attr-defined]


def _coefficients(x: Any) -> Any:
    if isinstance(x, poly1d):
        return x._coeffs
    if isinstance(x, numbers.Number | np.generic):
        return creation.array(x, ndmin=1)
    if isinstance(x, Remote):
        x = x.reshape(1) if not x._metadata.ndim else x  # type: ignore[attr-defined]
        if x._metadata.ndim == 1:
            return x
        raise ValueError("Multidimensional inputs are not supported")
    raise TypeError("Unsupported type")


def _arithmetic(name: str) -> Callable[[Any, Any], Any]:
    def call(a1: Any, a2: Any) -> Any:
        result = dispatch.call(name, _coefficients(a1), _coefficients(a2))
        return poly1d(result) if isinstance(a1, poly1d) or isinstance(a2, poly1d) else result

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"CuPy's ``{name}``: of scalars, coefficient arrays or ``poly1d``."
    return call


polyadd, polysub, polymul = (_arithmetic(name) for name in ("polyadd", "polysub", "polymul"))


def poly(seq_of_zeros: Any) -> Any:
    """The coefficients of the polynomial with these roots, or of a Hermitian matrix's eigenvalues."""
    x = seq_of_zeros
    if x.ndim not in (1, 2) or (x.ndim == 2 and (x.shape[0] != x.shape[1] or not x.size)):
        raise ValueError("Input must be 1d or non-empty square 2d array.")
    return dispatch.call("poly", x) if x.size else 1.0


def roots(p: Any) -> Any:
    """The roots; only of polynomials whose companion matrix is Hermitian, as CuPy has it."""
    if isinstance(p, poly1d):
        p = p.coeffs
    if p.dtype.kind == "b":
        raise NotImplementedError("boolean inputs are not supported")
    if p.ndim == 0:
        raise TypeError("0-dimensional input is not allowed")
    if p.ndim > 1:
        raise ValueError("Input must be a rank-1 array.")
    return dispatch.call("roots", p)


def polyval(p: Any, x: Any) -> Any:
    """The polynomial's values at ``x``; of another polynomial, their composition."""
    if isinstance(p, poly1d):
        p = p.coeffs
    if not isinstance(p, Remote) or p._metadata.ndim == 0:
        raise TypeError("p must be 1d ndarray or poly1d object")
    if p._metadata.ndim > 1:
        raise ValueError("p must be 1d array")
    if isinstance(x, poly1d):
        kind = np.result_type(x.coeffs.dtype, 1)
        result, power = poly1d(creation.zeros(1, kind)), poly1d(creation.ones(1, kind))
        for coefficient in p[::-1]:  # type: ignore[index]
            result = result + power * coefficient
            power = power * x
        return result
    return dispatch.call("polyval", p, x if isinstance(x, Remote) else creation.array(x))


def polyfit(
    x: Any, y: Any, deg: Any, rcond: Any = None, full: bool = False, w: Any = None, cov: Any = False
) -> Any:
    """Least squares fit; warns (RankWarning) when the points do not determine the coefficients (waits)."""
    if x.dtype.char == "e" and y.dtype.kind == "b":
        raise NotImplementedError("float16 x and bool y are not currently supported")
    if y.dtype == np.float16:
        raise TypeError("float16 y are not supported")
    result = dispatch.call("polyfit", x, y, int(deg), rcond, True, w)
    if full:
        return result
    if int(result[2]) != int(deg) + 1:
        warnings.warn("Polyfit may be poorly conditioned", RankWarning, stacklevel=2)
    return dispatch.call("polyfit", x, y, int(deg), rcond, False, w, cov) if cov else result[0]


class poly1d:  # noqa: N801 - CuPy's name
    """A polynomial: ``poly1d([1, 2])`` is x + 2; with ``r`` the roots are given instead."""

    __module__ = "cupy"
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, c_or_r: Any, r: bool = False, variable: str | None = None) -> None:
        if isinstance(c_or_r, poly1d | np.poly1d):
            self._coeffs, self._trimmed = creation.array(c_or_r.coeffs, copy=False), True
            self._variable = variable or c_or_r.variable
            return
        if r:
            c_or_r = poly(c_or_r)
        coefficients = creation.array(c_or_r, copy=False, ndmin=1)
        if coefficients.ndim > 1:
            raise ValueError("Polynomial must be 1d only.")
        self._coeffs, self._trimmed = coefficients, False
        self._variable = "x" if variable is None else variable

    @property
    def coeffs(self) -> Any:
        """The coefficients without leading zeros (the first question waits)."""
        if not self._trimmed:
            trimmed = trim_zeros(self._coeffs, "f")
            self._coeffs = trimmed if trimmed.size else creation.zeros(1, self._coeffs.dtype)
            self._trimmed = True
        return self._coeffs

    @coeffs.setter
    def coeffs(self, value: Any) -> None:
        if value is not self._coeffs:
            raise AttributeError("Cannot set attribute")

    c = coef = coefficients = coeffs
    variable = property(lambda self: self._variable)
    order = o = property(lambda self: self.coeffs.size - 1)
    roots = r = property(lambda self: roots(self._coeffs))

    def __cupy_get_ndarray__(self) -> Any:
        return self.coeffs

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise TypeError(
            "Implicit conversion to a NumPy array is not allowed. "
            "Please use `.get()` to construct a NumPy array explicitly."
        )

    def __repr__(self) -> str:
        return repr(self.get())

    def __str__(self) -> str:
        return str(self.get())

    def __len__(self) -> int:
        return self.order

    def __iter__(self) -> Any:
        return iter(self.coeffs)

    def __call__(self, val: Any) -> Any:
        return polyval(self.coeffs, val)

    def __neg__(self) -> poly1d:
        return poly1d(-self.coeffs)

    def __pos__(self) -> poly1d:
        return self

    def __add__(self, other: Any) -> Any:
        return polyadd(self, other)

    def __radd__(self, other: Any) -> Any:
        return polyadd(_python_scalar(other, "addition"), self)

    def __sub__(self, other: Any) -> Any:
        return polysub(self, other)

    def __rsub__(self, other: Any) -> Any:
        return polysub(_python_scalar(other, "subtraction"), self)

    def __mul__(self, other: Any) -> Any:
        return poly1d(self.coeffs * other) if np.isscalar(other) else polymul(self, other)

    def __rmul__(self, other: Any) -> Any:
        other = _python_scalar(other, "multiplication")
        return polymul(self._coeffs.dtype.type(other) if np.isscalar(other) else other, self)

    def __truediv__(self, other: Any) -> Any:
        if np.isscalar(other):
            return poly1d(self.coeffs / other)
        raise NotImplementedError("division of polynomials is not supported")

    def __pow__(self, val: Any, modulo: Any = None) -> Any:
        if not np.isscalar(val) or int(val) != val or val < 0:  # type: ignore[arg-type,operator]
            raise ValueError("Power to non-negative integers only.")
        if not isinstance(val, numbers.Integral):
            raise TypeError("float object cannot be interpreted as an integer")
        kind = self.coeffs.dtype
        if kind.kind == "c":
            kind = np.dtype(np.complex128)
        elif kind.kind == "f" or kind == np.uint64:
            kind = np.dtype(np.float64)
        else:
            kind = np.promote_types(kind, int)
        base, exponent = self.coeffs.astype(kind), int(val)
        result = None
        while exponent:
            if exponent & 1:
                result = base if result is None else dispatch.call("convolve", result, base)
            exponent >>= 1
            if exponent:
                base = dispatch.call("convolve", base, base)
        return poly1d(1 if result is None else result)

    def __eq__(self, other: object) -> Any:
        if not isinstance(other, poly1d):
            raise NotImplementedError("a polynomial compares only with a polynomial")
        if self.coeffs.shape != other.coeffs.shape:
            return False
        return (self.coeffs == other.coeffs).all().get()[()]

    def __ne__(self, other: object) -> Any:
        return not self == other

    def __getitem__(self, val: int) -> Any:
        return self._coeffs[-val - 1] if 0 <= val < self._coeffs.size else 0

    def __setitem__(self, key: int, val: Any) -> None:
        if key < 0:
            raise ValueError("Negative powers are not supported.")
        missing = key - (self._coeffs.size - 1)
        if missing > 0:
            self._coeffs = dispatch.call("pad", self._coeffs, (missing, 0))
        self._coeffs[-key - 1] = val

    def integ(self, m: int = 1, k: Any = 0) -> Any:
        raise NotImplementedError("cupy.poly1d.integ is not implemented by CuPy")

    def deriv(self, m: int = 1) -> Any:
        raise NotImplementedError("cupy.poly1d.deriv is not implemented by CuPy")

    def get(self, stream: Any = None) -> np.poly1d:
        """A copy in host memory."""
        return np.poly1d(self.coeffs.get(stream=stream), variable=self.variable)

    def set(self, polyin: Any, stream: Any = None) -> None:
        """Take over a host polynomial's coefficients, of the same number and dtype."""
        if not isinstance(polyin, np.poly1d):
            raise TypeError("Only numpy.poly1d can be set to cupy.poly1d")
        self._variable = polyin.variable
        self.coeffs.set(polyin.coeffs, stream)


def _python_scalar(x: Any, operation: str) -> Any:
    if isinstance(x, np.generic):
        raise TypeError(f"Numpy scalar and poly1d {operation} is not supported")
    return x


NAMES: dict[str, Any] = {
    "trim_zeros": trim_zeros, "polyadd": polyadd, "polysub": polysub, "polymul": polymul, "poly": poly,
    "roots": roots, "polyval": polyval, "polyfit": polyfit, "poly1d": poly1d,
}  # fmt: skip
