"""Calls of jit kernels into libraries of C++: Thrust, cooperative groups, CUB; and methods of what they return.

What such a call includes is noted in the unit; its result has the type that the library's table names.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rgpu.functions.kernels.jit import cg, cub, thrust
from rgpu.functions.kernels.jit.builtins import Builtin
from rgpu.functions.kernels.jit.types import Array, Constant, Iterator, Struct, Value, c_type, literal, scalar_dtype

_INT32, _BOOL = np.dtype(np.int32), np.dtype(bool)


class Bound:
    """A method of a value of a kernel, before it is called."""

    def __init__(self, value: Value, name: str) -> None:
        self.value, self.name = value, name


class Libraries:
    """The part of a function's translation that calls C++ templates."""

    unit: Any
    mode: str

    def temporary(self, kind: Any) -> str:
        raise NotImplementedError

    def emit(self, line: str) -> None:
        raise NotImplementedError

    def cast(self, x: Any, dtype: np.dtype, checked: bool = False) -> str:
        raise NotImplementedError

    def given(self, x: Any) -> Value:
        """An argument for a template: constants get the type that a variable would have."""
        if isinstance(x, Constant):
            dtype = scalar_dtype(self.mode, x.value)
            return Value(literal(x.value, dtype), dtype)
        return self.pointer(x) if isinstance(x.type, Array) else x

    def pointer(self, x: Value) -> Value:
        """An array of shared memory as a pointer."""
        if isinstance(x.type, Iterator):
            return x
        if not isinstance(x.type, Array) or x.type.extent is None:
            raise TypeError("an array is no pointer: use its begin() and end()")
        return Value(x.code, Iterator(x.type.dtype, f"{c_type(x.type.dtype)}*"))

    def arithmetic(self, symbol: str, values: list[Any]) -> Value | None:
        """``pointer + n``, ``pointer - pointer`` and comparisons; None where no pointer takes part."""
        if not any(isinstance(x, Value) and _pointing(x.type) for x in values):
            return None
        left, right = (self.given(x) for x in values)
        if symbol in ("==", "!=", "<", "<=", ">", ">="):
            return Value(f"({left.code} {symbol} {right.code})", _BOOL)
        if symbol == "-" and isinstance(right.type, Iterator):
            if left.type != right.type:
                raise TypeError("the difference of pointers of two types")
            return Value(f"((long long)({left.code} - {right.code}))", np.dtype(np.int64))
        if symbol not in "+-":
            raise TypeError(f"pointers have no operator {symbol}")
        kind = left.type if isinstance(left.type, Iterator) else right.type
        return Value(f"({left.code} {symbol} {right.code})", kind)

    def method(self, bound: Bound, args: list[Any]) -> Any:
        """``array.begin()``, ``group.sync()``, ``reducer.Sum(x)``."""
        value, kind = bound.value, bound.value.type
        if isinstance(kind, Array):
            if kind.ndim != 1:
                raise NotImplementedError(f"{bound.name}() of an array of {kind.ndim} dimensions")
            self.unit.iterators = True
            kind = Iterator(kind.dtype, f"rgpu_iterator<{c_type(kind.dtype)}>")
            at = "0" if bound.name == "begin" else f"{value.code}.shape[0]"
            return Value(f"rgpu_at({value.code}, {at})", kind)
        if kind is cg.GRID and bound.name == "sync":
            self.unit.cooperative = True
        texts = ", ".join(self.given(x).code for x in args)
        return self._struct(Value(f"{value.code}.{bound.name}({texts})", kind.methods[bound.name]))

    def _struct(self, value: Value) -> Value:
        """A structure is kept in a variable: its members may be asked for several times."""
        if not isinstance(value.type, Struct):
            return value
        name = self.temporary(value.type)
        self.emit(f"auto {name} = {value.code};")
        return Value(name, value.type)

    # ---- Thrust -------------------------------------------------------------------------------------

    def call_policy(self, target: Builtin, args: list[Any]) -> Any:
        raise TypeError(f"{target.__name__} is not a function")

    def call_thrust(self, target: thrust.Algorithm, args: list[Any]) -> Any:
        policy = args[0].value if args and isinstance(args[0], Constant) else None
        if not isinstance(policy, thrust.Policy):
            raise TypeError(
                f"the first argument of {target.__name__} is an execution policy: thrust.device or thrust.seq"
            )
        given = [self.given(x) for x in args[1:]]
        if not target.least <= len(given) <= target.most:
            raise TypeError(f"{target.__name__} takes {target.least} to {target.most} arguments after the policy")
        self._include(target.header)
        code = f"{target.target}({', '.join([policy.target, *(x.code for x in given)])})"
        return self._result(target, code, [x.type for x in given])

    def _include(self, header: str) -> None:
        self.unit.headers |= {header, "thrust/execution_policy.h", "thrust/functional.h"}

    def _result(self, target: thrust.Algorithm, code: str, types: list[Any]) -> Any:
        rule = target.result
        if isinstance(rule, tuple):
            pair = Struct(f"thrust::pair<{', '.join(c_type(types[k]) for k in rule)}>")
            name = self.temporary(pair)
            self.emit(f"auto {name} = {code};")
            return tuple(Value(f"{name}.{part}", types[k]) for part, k in zip(("first", "second"), rule))
        if len(types) == 5 and target.__name__.removeprefix("thrust.") in (
            "binary_search",
            "lower_bound",
            "upper_bound",
        ):
            return Value(code, types[4])  # a range of values: where the results end
        if rule == thrust.VALUE:
            return Value(code, types[2] if len(types) > 2 else types[0].dtype)
        words = {thrust.VOID: None, thrust.BOOL: _BOOL, thrust.INT: _INT32}
        kind = types[rule] if isinstance(rule, int) else words[rule]  # type: ignore[index]
        return Value(code if kind is None or not isinstance(kind, np.dtype) else f"(({c_type(kind)})({code}))", kind)

    def call_iterator(self, target: Builtin, args: list[Any]) -> Value:
        value = self.given(args[0])
        name = target.target.removeprefix("thrust::")
        self._include(f"thrust/iterator/{name}.h")
        return Value(
            f"thrust::make_{name}({value.code})", Iterator(value.type, f"{target.target}<{c_type(value.type)}>")
        )

    # ---- cooperative groups -------------------------------------------------------------------------

    def call_group(self, target: Builtin, args: list[Any]) -> Value:
        self.unit.headers.add("cooperative_groups.h")
        return Value(f"{target.target}()", cg.GRID if target is cg.this_grid else cg.BLOCK)

    def call_group_sync(self, target: Builtin, args: list[Any]) -> Value:
        group, *stages = args
        if target is cg.sync:
            self.unit.cooperative |= group.type is cg.GRID
        else:
            self.unit.headers.add("cooperative_groups/memcpy_async.h")
        prior = f"<{int(stages[0].value)}>" if stages else ""
        return Value(f"{target.target}{prior}({group.code})", None)

    def call_group_copy(self, target: Builtin, args: list[Any], aligned_size: Any = None) -> Value:
        """(group, to, index, from, index, bytes)."""
        group, to, to_index, source, source_index, size = args
        self.unit.headers |= {"cooperative_groups/memcpy_async.h", "cuda/barrier"}
        places = [f"&{self.element(x, i).code}" for x, i in ((to, to_index), (source, source_index))]  # type: ignore[attr-defined]
        length = self.given(size).code
        if aligned_size is not None:
            length = f"cuda::aligned_size_t<{int(aligned_size.value)}>({length})"
        return Value(f"{target.target}({group.code}, {', '.join(places)}, {length})", None)

    # ---- CUB ----------------------------------------------------------------------------------------

    def call_operator(self, target: Builtin, args: list[Any]) -> Value:
        return Value(target.target, None)

    def reducer(self, target: cub.Reducer, args: list[Any]) -> Value:
        self.unit.headers.add("cub/block/block_reduce.cuh")
        storage = args[0]
        if not isinstance(storage, Value) or storage.type is not target.TempStorage:
            raise TypeError(f"the storage of {target.type.c} is shared memory of its TempStorage")
        return Value(f"{target.type.c}({storage.code})", target.type)


def _pointing(kind: Any) -> bool:
    return isinstance(kind, Iterator) or isinstance(kind, Array) and kind.extent is not None
