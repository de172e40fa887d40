"""``cupyx.cutensor``: sums of permuted tensors, contractions and reductions, with the axes named by modes.

A mode is a sequence of names (or integers), one for each axis. Each function is a few of rgpu's own: what cuTENSOR's
plans, algorithms and compute types choose is accepted and changes nothing. Must not compute anything here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

import rgpu as cp
from rgpu import surface
from rgpu.cuda import cutensor as ct

__getattr__, __dir__ = surface.face(__name__)

_UNARY: dict[int, Callable[[Any], Any]] = {
    ct.OP_IDENTITY: lambda x: x,
    ct.OP_SQRT: cp.sqrt, ct.OP_CONJ: cp.conj, ct.OP_RCP: cp.reciprocal, ct.OP_TANH: cp.tanh, ct.OP_EXP: cp.exp,
    ct.OP_LOG: cp.log, ct.OP_ABS: cp.abs, ct.OP_NEG: cp.negative, ct.OP_SIN: cp.sin, ct.OP_COS: cp.cos,
    ct.OP_TAN: cp.tan, ct.OP_SINH: cp.sinh, ct.OP_COSH: cp.cosh, ct.OP_ASIN: cp.arcsin, ct.OP_ACOS: cp.arccos,
    ct.OP_ATAN: cp.arctan, ct.OP_ASINH: cp.arcsinh, ct.OP_ACOSH: cp.arccosh, ct.OP_ATANH: cp.arctanh,
    ct.OP_CEIL: cp.ceil, ct.OP_FLOOR: cp.floor,
    ct.OP_RELU: lambda x: cp.maximum(x, 0),
    ct.OP_SIGMOID: lambda x: 1 / (1 + cp.exp(-x)),
}  # fmt: skip
_BINARY = {ct.OP_ADD: cp.add, ct.OP_MUL: cp.multiply, ct.OP_MAX: cp.maximum, ct.OP_MIN: cp.minimum}
_REDUCTION = {ct.OP_ADD: cp.sum, ct.OP_MUL: cp.prod, ct.OP_MAX: cp.amax, ct.OP_MIN: cp.amin}
_DTYPES = "efdFD"


class Mode:
    """The names of a tensor's axes, as integers. Made by ``create_mode``, which returns one object for each list."""

    def __init__(self, mode: tuple[int, ...]):
        self._names = np.array(mode, np.int32)

    @property
    def ndim(self) -> int:
        return int(self._names.size)

    @property
    def data(self) -> int:
        """Where the integers are in this process."""
        return int(self._names.ctypes.data)

    def __iter__(self) -> Any:
        return iter(self._names.tolist())

    def __repr__(self) -> str:
        return f"mode({', '.join(map(str, self))})"


_mode = functools.lru_cache(1 << 10)(Mode)


def create_mode(*mode: Any) -> Mode:
    """The mode of axes named by integers or by single characters."""
    return _mode(tuple(name if isinstance(name, int) else ord(name) for name in mode))


def _names(mode: Any, array: Any) -> list[int]:
    """The axes' names, checked to be as many as ``array`` has axes."""
    if array.dtype.char not in _DTYPES:
        raise TypeError(f"Unsupported dtype: {array.dtype}")
    names = list(mode if isinstance(mode, Mode) else create_mode(*mode))
    if len(names) != array.ndim:
        raise ValueError(f"ndim mismatch: {len(names)} != {array.ndim}")
    return names


def _aligned(array: Any, names: list[int], target: list[int]) -> Any:
    """A view of ``array`` with its axes where ``target`` has them, broadcast along the others."""
    if not set(names) <= set(target):
        raise ValueError(f"modes {sorted(set(names) - set(target))} are not the result's")
    view = array.transpose([names.index(name) for name in target if name in names])
    return view[tuple(slice(None) if name in names else None for name in target)]


def _wide(array: Any) -> Any:
    """float16 is added up in float32."""
    return array.astype(np.float32) if array.dtype == np.float16 else array


def _into(result: Any, accumulated: Any, beta: Any, op_c: int) -> Any:
    """``result = accumulated + beta * op_c(result)``; a ``beta`` of zero does not read it."""
    result[...] = accumulated + beta * _UNARY[op_c](result) if beta else accumulated
    return result


def elementwise_binary(
    alpha: Any, A: Any, mode_A: Any, gamma: Any, C: Any, mode_C: Any, out: Any = None,
    op_A: int = ct.OP_IDENTITY, op_C: int = ct.OP_IDENTITY, op_AC: int = ct.OP_ADD, compute_desc: int = 0,
) -> Any:  # fmt: skip
    """``op_AC(alpha op_A(A), gamma op_C(C))`` with the axes of ``C``, in ``out`` or a new array of C's shape and dtype.

    The modes of A are some or all of C's. TypeError for dtypes that are not floating; ValueError where a mode does
    not fit its array.
    """
    target = _names(mode_C, C)
    a = alpha * _UNARY[op_A](_aligned(A, _names(mode_A, A), target))
    out = cp.empty_like(C) if out is None else out
    out[...] = _BINARY[op_AC](a, gamma * _UNARY[op_C](C))
    return out


def elementwise_trinary(
    alpha: Any, A: Any, mode_A: Any, beta: Any, B: Any, mode_B: Any, gamma: Any, C: Any, mode_C: Any, out: Any = None,
    op_A: int = ct.OP_IDENTITY, op_B: int = ct.OP_IDENTITY, op_C: int = ct.OP_IDENTITY,
    op_AB: int = ct.OP_ADD, op_ABC: int = ct.OP_ADD, compute_desc: int = 0,
) -> Any:  # fmt: skip
    """``op_ABC(op_AB(alpha op_A(A), beta op_B(B)), gamma op_C(C))``; otherwise as ``elementwise_binary``."""
    target = _names(mode_C, C)
    a = alpha * _UNARY[op_A](_aligned(A, _names(mode_A, A), target))
    b = beta * _UNARY[op_B](_aligned(B, _names(mode_B, B), target))
    out = cp.empty_like(C) if out is None else out
    out[...] = _BINARY[op_ABC](_BINARY[op_AB](a, b), gamma * _UNARY[op_C](C))
    return out


def contraction(
    alpha: Any, A: Any, mode_A: Any, B: Any, mode_B: Any, beta: Any, C: Any, mode_C: Any,
    op_A: int = ct.OP_IDENTITY, op_B: int = ct.OP_IDENTITY, op_C: int = ct.OP_IDENTITY,
    algo: int = ct.ALGO_DEFAULT, jit_mode: int = ct.JIT_MODE_NONE, compute_desc: int = 0,
    ws_pref: int = ct.WORKSPACE_RECOMMENDED,
) -> Any:  # fmt: skip
    """``C = alpha op_A(A) op_B(B) + beta op_C(C)``, summed over the modes that C does not have. Returns C."""
    a, b, c = _names(mode_A, A), _names(mode_B, B), _names(mode_C, C)
    number = {name: i for i, name in enumerate(dict.fromkeys(a + b))}  # einsum wants small integers
    if not set(c) <= set(number):
        raise ValueError(f"modes {sorted(set(c) - set(number))} are neither A's nor B's")
    a, b, c = ([number[name] for name in names] for names in (a, b, c))
    product = cp.einsum(_wide(_UNARY[op_A](A)), a, _wide(_UNARY[op_B](B)), b, c, optimize=True)
    return _into(C, alpha * product, beta, op_C)


def reduction(
    alpha: Any, A: Any, mode_A: Any, beta: Any, C: Any, mode_C: Any,
    op_A: int = ct.OP_IDENTITY, op_C: int = ct.OP_IDENTITY, op_reduce: int = ct.OP_ADD, compute_desc: int = 0,
) -> Any:  # fmt: skip
    """``C = alpha reduce(op_A(A)) + beta op_C(C)``, over the modes of A that C does not have. Returns C."""
    a, c = _names(mode_A, A), _names(mode_C, C)
    over = tuple(i for i, name in enumerate(a) if name not in c)
    reduced = _REDUCTION[op_reduce](_wide(_UNARY[op_A](A)), axis=over)
    return _into(C, alpha * _aligned(reduced, [name for name in a if name in c], c), beta, op_C)
