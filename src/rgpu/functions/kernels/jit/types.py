"""What the values of a jit kernel are: scalars of a dtype, arrays, constants of Python, and their names in C.

Two rules of promotion, as in CuPy: C's order of types (``cuda``) and NumPy's (``numpy``). Knows nothing of
syntax trees and of devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

_C_NAMES = {
    "?": "bool", "b": "signed char", "B": "unsigned char", "h": "short", "H": "unsigned short", "i": "int",
    "I": "unsigned int", "l": "long long", "L": "unsigned long long",
    "q": "long long", "Q": "unsigned long long",
    "e": "float16", "f": "float", "d": "double", "F": "complex<float>", "D": "complex<double>",
}  # fmt: skip
_ORDER = "?bBhHiIlLqQefdFD"  # what C converts to what


@dataclass(frozen=True, slots=True)
class Array:
    """An array in the device's memory (``rgpu_array``), or in a block's shared memory (``extent`` set), whose
    elements may be structures of C++ too."""

    dtype: Any
    ndim: int
    extent: int | None = None

    @property
    def c(self) -> str:
        return f"{c_type(self.dtype)}*" if self.extent is not None else f"rgpu_array<{c_name(self.dtype)}, {self.ndim}>"


@dataclass(frozen=True, slots=True)
class Iterator:
    """A place in a range of elements, as Thrust takes it: a pointer, or one that walks with a stride."""

    dtype: np.dtype
    c: str


class Struct:
    """A class of C++: members by name, and methods by name with the types of their results (None: void)."""

    def __init__(self, c: str, fields: dict | None = None, methods: dict | None = None) -> None:
        self.c, self.fields, self.methods = c, fields or {}, methods or {}

    def __repr__(self) -> str:
        return self.c


DIM3 = Struct("dim3", {name: np.dtype(np.uint32) for name in "xyz"})


@dataclass(frozen=True, slots=True)
class Value:
    """An expression: its C text and its type (None: it has no value)."""

    code: str
    type: Any


@dataclass(frozen=True, slots=True)
class Constant:
    """Something Python knows when the kernel is compiled."""

    value: Any


def c_name(dtype: np.dtype) -> str:
    try:
        return _C_NAMES[dtype.char]
    except KeyError:
        raise TypeError(f"a jit kernel has no type for {dtype}") from None


def c_type(kind: Any) -> str:
    return "void" if kind is None else c_name(kind) if isinstance(kind, np.dtype) else kind.c


def scalar_dtype(mode: str, x: Any) -> np.dtype:
    """The type that a Python number or NumPy scalar gets as an argument or a variable."""
    if isinstance(x, np.generic):
        return x.dtype
    wide = mode == "numpy"
    if isinstance(x, bool):
        return np.dtype(bool)
    if isinstance(x, int):
        return np.dtype(np.int32 if not wide and -(2**31) <= x < 2**31 else np.int64)
    if isinstance(x, float):
        return np.dtype(np.float64 if wide else np.float32)
    if isinstance(x, complex):
        return np.dtype(np.complex128 if wide else np.complex64)
    raise TypeError(f"{type(x)} is not supported for RawKernel")


def loop(ufunc: np.ufunc, inputs: list[Any], mode: str, dtype: np.dtype | None = None) -> tuple[np.dtype, ...]:
    """The types of a ufunc's loop for inputs: dtypes, or Python's own numbers, which are weak. ``dtype``: of the
    results."""
    if mode == "numpy":
        known = tuple(type(x.value) if _weak(x) else _dtype(x, mode) for x in inputs)
        limit = {} if dtype is None else {"signature": (*[None] * ufunc.nin, *[dtype] * ufunc.nout)}
        return ufunc.resolve_dtypes((*known, *[None] * ufunc.nout), **limit)
    chars = [_dtype(x, mode).char for x in inputs]
    for types in ufunc.types:
        sources, _, results = types.partition("->")
        if dtype is not None and set(results) != {dtype.char}:
            continue
        if all(wanted in _ORDER and _ORDER.index(char) <= _ORDER.index(wanted) for char, wanted in zip(chars, sources)):
            return tuple(np.dtype(char) for char in sources + results)
    raise TypeError(f"{ufunc.__name__} has no loop for {', '.join(chars)}")


def _weak(x: Any) -> bool:
    return isinstance(x, Constant) and type(x.value) in (int, float, complex)


def _dtype(x: Any, mode: str) -> np.dtype:
    if isinstance(x, Constant):
        return scalar_dtype(mode, x.value)
    if not isinstance(x.type, np.dtype):
        raise TypeError("an array is not a number: index it")
    return x.type


def literal(x: Any, dtype: np.dtype) -> str:
    """A constant as C text of a type."""
    name = c_name(dtype)
    if dtype.kind == "c":
        part = np.dtype(dtype.char.lower())
        return f"{name}({literal(complex(x).real, part)}, {literal(complex(x).imag, part)})"
    if dtype.kind == "f":
        number = float(x)
        text = "NAN" if number != number else "INFINITY" if number in (np.inf, -np.inf) else repr(abs(number))
        return f"({name})({'-' if number < 0 else ''}{text})"
    if dtype.kind == "b":
        return "true" if x else "false"
    number = int(x)
    if not np.iinfo(dtype).min <= number <= np.iinfo(dtype).max:
        raise OverflowError(f"{number} does not fit {dtype}")
    text = "(-9223372036854775807LL - 1)" if number == -(2**63) else f"{number}{'U' if dtype.kind == 'u' else ''}LL"
    return f"({name})({text})"
