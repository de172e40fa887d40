"""Expressions of jit kernels: operators and calls, with the types CuPy gives them.

An expression is a ``Value`` (C text and its type), a ``Constant`` (Python knows it) or a tuple of them. What
Python knows is computed by Python.
"""

from __future__ import annotations

import ast
import math
import operator
import warnings
from typing import Any

import numpy as np

from rgpu.functions.kernels.formulas import formula
from rgpu.functions.kernels.jit import cub
from rgpu.functions.kernels.jit.builtins import Builtin, Dim3
from rgpu.functions.kernels.jit.library import Bound, Libraries
from rgpu.functions.kernels.jit.types import (
    Array,
    Constant,
    Iterator,
    Struct,
    Value,
    c_name,
    literal,
    loop,
    scalar_dtype,
)
from rgpu.functions.ufunc import UFUNCS

_UINT32, _INT32, _INT64 = np.dtype(np.uint32), np.dtype(np.int32), np.dtype(np.int64)

OPERATORS: dict[type, tuple[np.ufunc, Any]] = {
    ast.Add: (np.add, operator.add), ast.Sub: (np.subtract, operator.sub),
    ast.Mult: (np.multiply, operator.mul),
    ast.Div: (np.true_divide, operator.truediv), ast.FloorDiv: (np.floor_divide, operator.floordiv),
    ast.Mod: (np.remainder, operator.mod), ast.Pow: (np.power, operator.pow),
    ast.LShift: (np.left_shift, operator.lshift), ast.RShift: (np.right_shift, operator.rshift),
    ast.BitAnd: (np.bitwise_and, operator.and_), ast.BitOr: (np.bitwise_or, operator.or_),
    ast.BitXor: (np.bitwise_xor, operator.xor), ast.Eq: (np.equal, operator.eq),
    ast.NotEq: (np.not_equal, operator.ne), ast.Lt: (np.less, operator.lt),
    ast.LtE: (np.less_equal, operator.le),
    ast.Gt: (np.greater, operator.gt), ast.GtE: (np.greater_equal, operator.ge),
    ast.USub: (np.negative, operator.neg), ast.UAdd: (np.positive, operator.pos),
    ast.Invert: (np.invert, operator.invert), ast.Not: (np.logical_not, operator.not_),
}  # fmt: skip

# operators of pointers
_POINTER = {"add": "+", "subtract": "-", "equal": "==", "not_equal": "!=", "less": "<", "less_equal": "<=",
            "greater": ">", "greater_equal": ">="}  # fmt: skip
_PYTHON = {abs: np.absolute, pow: np.power, math.pow: np.power, math.fabs: np.fabs}
_MATH = {getattr(math, name): getattr(np, name) for name in (
    "sin cos tan sinh cosh tanh exp expm1 log log2 log10 log1p sqrt floor ceil trunc hypot copysign isnan "
    "isinf"
).split()}  # fmt: skip


def _is_plain(x: Any) -> bool:
    """Whether it is a number of Python's, which takes the type of what it meets."""
    return isinstance(x, Constant) and not isinstance(x.value, np.generic)


class Expressions(Libraries):
    """The half of a function's translation that has values."""

    unit: Any
    mode: str
    variables: dict[str, Any]
    outer: dict[str, Any]

    def where(self, node: Any) -> str:
        raise NotImplementedError

    def shared(self, dtype: Any, extent: int | None, alignment: int | None = None) -> Value:
        raise NotImplementedError

    def expression(self, node: ast.expr) -> Any:
        visit = getattr(self, f"of_{type(node).__name__}", None)
        if visit is None:
            raise NotImplementedError(f"{self.where(node)}: {type(node).__name__} in a kernel")
        found = visit(node)
        if isinstance(found, Constant) and isinstance(found.value, Builtin) and found.value.kind == "warpsize":
            return Value("warpSize", _INT32)
        return found

    # ---- conversions --------------------------------------------------------------------------------

    def cast(self, x: Any, dtype: np.dtype, checked: bool = False) -> str:
        """C text of a value as a type; ``checked``: only casts that NumPy calls of the same kind."""
        if isinstance(x, Constant):
            if checked and not isinstance(x.value, np.generic | bool | int | float | complex):
                raise TypeError(f"{x.value!r} cannot be a value of a kernel")
            if checked and not np.can_cast(np.min_scalar_type(x.value), dtype, "same_kind"):
                raise TypeError(f"cannot cast {x.value!r} to {dtype}")
            return literal(x.value, dtype)
        if not isinstance(x, Value) or not isinstance(x.type, np.dtype):
            raise TypeError("a number is expected")
        if x.type == dtype:
            return x.code
        if checked and not np.can_cast(x.type, dtype, "same_kind"):
            raise TypeError(f"cannot cast {x.type} to {dtype} by the rule 'same_kind'")
        if x.type.kind == "c" and dtype.kind not in "cb":
            message = "Casting complex values to real discards the imaginary part"
            warnings.warn(message, np.exceptions.ComplexWarning, stacklevel=2)
            return f"({c_name(dtype)})(({x.code}).real())"
        return f"({c_name(dtype)})({x.code})"

    def truth(self, x: Any) -> str:
        return self.cast(x, np.dtype(bool))

    def common(self, values: list[Any]) -> np.dtype:
        """The type all of them fit."""
        kind: Any = values[0]
        for x in values[1:]:
            if isinstance(kind, Constant) and isinstance(x, Constant):
                kind = Constant(kind.value + x.value)
            else:
                kind = Value("", loop(np.add, [kind, x], self.mode)[-1])
        return scalar_dtype(self.mode, kind.value) if isinstance(kind, Constant) else kind.type

    def ufunc(self, ufunc: np.ufunc, args: list[Any], dtype: Any = None) -> Value:
        *inputs, output = loop(ufunc, args, self.mode, None if dtype is None else np.dtype(dtype.value))
        texts = [self.cast(x, kind, checked=dtype is not None) for x, kind in zip(args, inputs)]
        self.unit.dtypes.add(output.char)
        return Value(formula(ufunc.__name__, texts, inputs, output, c_name(output)), output)

    # ---- operators ----------------------------------------------------------------------------------

    def of_Constant(self, node: ast.Constant) -> Any:  # noqa: N802 (the names of ast's classes)
        return Constant(node.value)

    def of_Name(self, node: ast.Name) -> Any:  # noqa: N802
        if node.id in self.variables:
            kind = self.variables[node.id]
            if isinstance(kind, tuple):
                return tuple(Value(f"v_{node.id}_{i}", part) for i, part in enumerate(kind))
            return kind if isinstance(kind, Constant) else Value(f"v_{node.id}", kind)
        if node.id not in self.outer:
            raise NameError(f"Unbound name: {node.id} (in {self.where(node)}, or not before this line)")
        return Constant(self.outer[node.id])

    def of_Tuple(self, node: ast.Tuple) -> Any:  # noqa: N802
        return tuple(self.expression(x) for x in node.elts)

    def of_BinOp(self, node: ast.BinOp) -> Any:  # noqa: N802
        if type(node.op) not in OPERATORS:
            raise NotImplementedError(f"{self.where(node)}: {type(node.op).__name__} in a kernel")
        return self._operate(node.op, [self.expression(node.left), self.expression(node.right)])

    def of_UnaryOp(self, node: ast.UnaryOp) -> Any:  # noqa: N802
        value = self.expression(node.operand)
        if isinstance(node.op, ast.Not) and isinstance(value, Value):
            return Value(f"(!{self.truth(value)})", np.dtype(bool))
        return self._operate(node.op, [value])

    def _operate(self, op: Any, values: list[Any]) -> Any:
        ufunc, function = OPERATORS[type(op)]
        if all(isinstance(x, Constant) for x in values):
            return Constant(function(*(x.value for x in values)))
        symbol = _POINTER.get(ufunc.__name__)
        moved = self.arithmetic(symbol, values) if symbol and len(values) == 2 else None
        return self.ufunc(ufunc, values) if moved is None else moved

    def of_Compare(self, node: ast.Compare) -> Any:  # noqa: N802
        values = [self.expression(x) for x in (node.left, *node.comparators)]
        found = []
        for op, *pair in zip(node.ops, values, values[1:]):
            if type(op) not in OPERATORS:
                raise NotImplementedError(f"{self.where(node)}: {type(op).__name__} in a kernel")
            found.append(self._operate(op, pair))
        return found[0] if len(found) == 1 else self._all(found, "&&")

    def of_BoolOp(self, node: ast.BoolOp) -> Any:  # noqa: N802
        return self._all([self.expression(x) for x in node.values], "&&" if isinstance(node.op, ast.And) else "||")

    def _all(self, values: list[Any], sign: str) -> Any:
        if all(isinstance(x, Constant) for x in values):
            return Constant((all if sign == "&&" else any)(x.value for x in values))
        return Value(f"({f' {sign} '.join(self.truth(x) for x in values)})", np.dtype(bool))

    def of_IfExp(self, node: ast.IfExp) -> Any:  # noqa: N802
        test = self.expression(node.test)
        if isinstance(test, Constant):
            return self.expression(node.body if test.value else node.orelse)
        values = [self.expression(node.body), self.expression(node.orelse)]
        kinds = {x.type if isinstance(x, Value) else x.value.dtype for x in values if not _is_plain(x)}
        if len(kinds) > 1:
            raise TypeError(f"Type mismatch in conditional expression.: {' != '.join(sorted(map(str, kinds)))}")
        kind = kinds.pop() if kinds else self.common(values)
        yes, no = (self.cast(x, kind) for x in values)
        return Value(f"({self.truth(test)} ? {yes} : {no})", kind)

    def of_Attribute(self, node: ast.Attribute) -> Any:  # noqa: N802
        base = self.expression(node.value)
        if isinstance(base, Constant):
            if isinstance(base.value, Dim3):
                return Value(f"{base.value.name}.{node.attr}", _UINT32)
            return Constant(getattr(base.value, node.attr))
        if isinstance(base, Value) and isinstance(base.type, Array):
            extents = tuple(Value(f"{base.code}.shape[{i}]", _INT64) for i in range(base.type.ndim))
            if node.attr == "ndim":
                return Constant(base.type.ndim)
            if node.attr == "shape":
                return extents
            if node.attr == "strides":
                return tuple(Value(f"{base.code}.strides[{i}]", _INT64) for i in range(base.type.ndim))
            if node.attr == "size":
                return Value(f"({' * '.join(x.code for x in extents) or '1LL'})", _INT64)
            if node.attr in ("begin", "end"):
                return Constant(Bound(base, node.attr))
        if isinstance(base, Value) and isinstance(base.type, Struct):
            if node.attr in base.type.fields:
                return Value(f"{base.code}.{node.attr}", base.type.fields[node.attr])
            if node.attr in base.type.methods:
                return Constant(Bound(base, node.attr))
        raise AttributeError(f"{self.where(node)}: no attribute {node.attr!r} in a kernel")

    def of_Subscript(self, node: ast.Subscript) -> Any:  # noqa: N802
        base, index = self.expression(node.value), self.expression(node.slice)
        if isinstance(base, tuple) and isinstance(index, Constant):
            return base[index.value]
        if isinstance(base, Constant) and isinstance(index, Constant):
            return Constant(base.value[index.value])
        if isinstance(base, Constant) and isinstance(index, tuple) and all(isinstance(x, Constant) for x in index):
            return Constant(base.value[tuple(x.value for x in index)])
        return self.element(base, index)

    def element(self, base: Any, index: Any) -> Value:
        """The place of an array's element."""
        kind = base.type if isinstance(base, Value) else None
        if isinstance(kind, Iterator):
            return Value(f"{base.code}[{self.cast(index, _INT64)}]", kind.dtype)
        if not isinstance(kind, Array):
            raise TypeError("only arrays have elements in a kernel")
        indices = index if isinstance(index, tuple) else (index,)
        if len(indices) > kind.ndim:
            raise IndexError(f"an array of {kind.ndim} dimensions has no {len(indices)} indices")
        if any(
            isinstance(x, Value) and (not isinstance(x.type, np.dtype) or x.type.kind not in "iub") for x in indices
        ):
            raise TypeError("indices are integers")
        texts = [self.cast(x, _INT64) for x in indices]
        if kind.extent is not None:
            return Value(f"{base.code}[{texts[0]}]", kind.dtype)
        offset = "".join(f" + ({x}) * {base.code}.strides[{i}]" for i, x in enumerate(texts))
        if len(indices) < kind.ndim:
            return Value(
                f"(rgpu_rest<{len(indices)}>({base.code}, 0LL{offset}))", Array(kind.dtype, kind.ndim - len(indices))
            )
        return Value(f"(*({c_name(kind.dtype)}*)((char*){base.code}.data{offset}))", kind.dtype)

    # ---- calls --------------------------------------------------------------------------------------

    def of_Call(self, node: ast.Call) -> Any:  # noqa: N802
        function = self.expression(node.func)
        if not isinstance(function, Constant):
            raise TypeError(f"{self.where(node)}: this cannot be called in a kernel")
        target = function.value
        args = [self.expression(x) for x in node.args]
        named = {str(x.arg): self.expression(x.value) for x in node.keywords}
        if isinstance(target, Builtin):
            return getattr(self, f"call_{target.kind}")(target, args, **named)
        if isinstance(target, Bound):
            return self.method(target, args)
        if isinstance(target, cub.Reducer):
            return self.reducer(target, args)
        if getattr(target, "device", None) is True and hasattr(target, "function"):
            return self._device_call(target.function, args)
        if target is len and isinstance(args[0], Value):
            return Value(f"{args[0].code}.shape[0]", _INT64)
        if all(isinstance(x, Constant) for x in (*args, *named.values())):
            return Constant(target(*(x.value for x in args), **{name: x.value for name, x in named.items()}))
        return self._call(node, target, args, named)

    def _call(self, node: ast.Call, target: Any, args: list[Any], named: dict[str, Any]) -> Value:
        if target in (min, max):
            found = args[0]
            for x in args[1:]:
                found = self.ufunc(np.minimum if target is min else np.maximum, [found, x])
            return found
        if target in (bool, int, float, complex):
            dtype = scalar_dtype(self.mode, target())
            return Value(f"({self.cast(args[0], dtype)})", dtype)
        if isinstance(target, type) and issubclass(target, np.generic):
            return Value(f"({self.cast(args[0], np.dtype(target))})", np.dtype(target))
        ufunc = _MATH.get(target) or _PYTHON.get(target)
        if ufunc is None and (isinstance(target, np.ufunc) or UFUNCS.get(target.__name__) is target):
            ufunc = getattr(np, target.__name__)
        if ufunc is None:
            raise NotImplementedError(f"{self.where(node)}: calling {target!r} in a kernel")
        return self.ufunc(ufunc, args, **named)

    def _device_call(self, function: Any, args: list[Any]) -> Value:
        types = tuple(x.type if isinstance(x, Value) else scalar_dtype(self.mode, x.value) for x in args)
        name, result = self.unit.device_function(function, types)
        texts = [x.code if isinstance(t, Array) else self.cast(x, t) for x, t in zip(args, types)]
        return Value(f"{name}({', '.join(texts)})", result)

    def call_barrier(self, target: Builtin, args: list[Any], mask: Any = None) -> Value:
        return Value(f"{target.target}({'' if mask is None else self.cast(mask, _UINT32)})", None)

    def call_grid(self, target: Builtin, args: list[Any]) -> Any:
        text = (
            "(threadIdx.{0} + blockIdx.{0} * blockDim.{0})"
            if target.__name__ == "grid"
            else "(blockDim.{0} * gridDim.{0})"
        )
        ndim = args[0].value if args and isinstance(args[0], Constant) else None
        if not isinstance(ndim, int):
            raise TypeError(f"the argument of {target.__name__} is 1, 2 or 3")
        if ndim not in (1, 2, 3):
            raise ValueError(f"the argument of {target.__name__} is 1, 2 or 3, not {ndim}")
        found = tuple(Value(text.format(axis), _UINT32) for axis in "xyz"[:ndim])
        return found[0] if len(found) == 1 else found

    def call_laneid(self, target: Builtin, args: list[Any]) -> Value:
        thread = "(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z))"
        return Value(f"({thread} % warpSize)", _UINT32)

    def call_shared(
        self, target: Builtin, args: list[Any], alignment: Any = None, dtype: Any = None, size: Any = None
    ) -> Value:
        dtype, size = [*args, *(x for x in (dtype, size) if x is not None)]
        kind = dtype.value if isinstance(dtype.value, Struct) else np.dtype(dtype.value)
        aligned = None if alignment is None else int(alignment.value)
        return self.shared(kind, None if size.value is None else int(size.value), aligned)

    def call_atomic(self, target: Builtin, args: list[Any], **named: Any) -> Value:
        array, index, *values = [*args, *named.values()]
        place = self.element(array, index)
        texts = [self.cast(x, place.type, checked=True) for x in values]
        pointer = f"&{place.code}"
        if place.type == _INT64 and target.target not in ("atomicMin", "atomicMax"):
            unsigned = "unsigned long long"  # CUDA has these operations without a sign, on the same bits
            pointer, texts = f"({unsigned}*){pointer}", [f"({unsigned})({x})" for x in texts]
        return Value(f"(({c_name(place.type)}){target.target}({', '.join([pointer, *texts])}))", place.type)

    def call_shuffle(self, target: Builtin, args: list[Any], width: Any = None) -> Value:
        mask, value, lane = args
        texts = [self.cast(mask, _UINT32), value.code, self.cast(lane, _INT32)]
        if width is not None:
            texts.append(self.cast(width, _INT32))
        return Value(f"{target.target}({', '.join(texts)})", value.type)
