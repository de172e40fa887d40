"""The parameter lists of custom kernels (``"T x, raw float32 y"``), as both sides read them.

One letter is a type that the arguments decide, everything else names a dtype. This room knows no
arrays; errors are CuPy's, raised on the client when the kernel is constructed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Parameter(NamedTuple):
    """``dtype`` is None for a letter; ``const`` inputs cannot be written."""

    name: str
    type: str
    dtype: np.dtype | None
    raw: bool
    const: bool


def parse(text: str, const: bool) -> tuple[Parameter, ...]:
    """The parameters of one list."""
    return tuple(_parameter(part, const) for part in text.strip().split(",")) if text else ()


def _parameter(text: str, const: bool) -> Parameter:
    words = text.split()
    if len(words) < 2:
        raise Exception(f"Syntax error: {text}")  # the class CuPy raises
    *flags, kind, name = words
    raw = False
    for flag in flags:
        if flag == "raw":
            raw = True
        elif flag == "_non_const":
            const = False
        else:
            raise Exception(f'Unknown keyword "{flag}"')
    return Parameter(name, kind, None if len(kind) == 1 else np.dtype(kind), raw, const)


#: dtype -> the type's name in a kernel's source
C_TYPES: dict[str, str] = {
    "bool": "bool", "int8": "signed char", "uint8": "unsigned char", "int16": "short",
    "uint16": "unsigned short", "int32": "int", "uint32": "unsigned int", "int64": "long long",
    "uint64": "unsigned long long",
    "float16": "float16", "bfloat16": "bfloat16", "float32": "float", "float64": "double",
    "complex64": "thrust::complex<float>", "complex128": "thrust::complex<double>",
}  # fmt: skip


def c_type(dtype: np.dtype) -> str:
    """The name of a dtype in CUDA C++; TypeError where it has none."""
    found = C_TYPES.get(dtype.name)
    if found is None:
        raise TypeError(f"dtype {dtype} has no type in a kernel")
    return found
