"""From a Python function to CUDA C++: statements, variables and the translation unit.

A variable's type is that of its first assignment, for the whole function, as in CuPy. Names that the function
does not assign are constants: they are read when the kernel is translated. Expressions are ``_expressions``.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from rgpu.functions.kernels import formulas
from rgpu.functions.kernels.jit.builtins import Builtin
from rgpu.functions.kernels.jit.expressions import OPERATORS, Expressions
from rgpu.functions.kernels.jit.source import parse
from rgpu.functions.kernels.jit.types import Array, Constant, Iterator, Struct, Value, c_name, c_type, scalar_dtype

_PREAMBLE = """
template <typename T, int N> struct rgpu_array {
    T* data;
    long long shape[N ? N : 1], strides[N ? N : 1];
};
template <int K, typename T, int N>  // the array at K indices
__device__ inline rgpu_array<T, N - K> rgpu_rest(rgpu_array<T, N> a, long long offset) {
    rgpu_array<T, N - K> rest;
    rest.data = (T*)((char*)a.data + offset);
    for (int i = 0; i < N - K; ++i) rest.shape[i] = a.shape[K + i], rest.strides[i] = a.strides[K + i];
    return rest;
}
"""
# Places in an array of one dimension, for Thrust.
_ITERATORS = """
#include <iterator>
template <typename T> struct rgpu_iterator {
    using value_type = T;
    using reference = T&;
    using pointer = T*;
    using difference_type = ptrdiff_t;
    using iterator_category = std::random_access_iterator_tag;
    T* p;
    ptrdiff_t stride;

    __host__ __device__ rgpu_iterator moved(ptrdiff_t n) const { return {(T*)((char*)p + n * stride), stride}; }
    __host__ __device__ T& operator*() const { return *p; }
    __host__ __device__ T& operator[](ptrdiff_t n) const { return *moved(n); }
    __host__ __device__ rgpu_iterator operator+(ptrdiff_t n) const { return moved(n); }
    __host__ __device__ rgpu_iterator operator-(ptrdiff_t n) const { return moved(-n); }
    __host__ __device__ rgpu_iterator& operator+=(ptrdiff_t n) { return *this = moved(n); }
    __host__ __device__ rgpu_iterator& operator-=(ptrdiff_t n) { return *this = moved(-n); }
    __host__ __device__ rgpu_iterator& operator++() { return *this = moved(1); }
    __host__ __device__ rgpu_iterator& operator--() { return *this = moved(-1); }
    __host__ __device__ rgpu_iterator operator++(int) { rgpu_iterator old = *this; ++*this; return old; }
    __host__ __device__ rgpu_iterator operator--(int) { rgpu_iterator old = *this; --*this; return old; }
    __host__ __device__ ptrdiff_t operator-(rgpu_iterator o) const {
        return stride ? ((char*)p - (char*)o.p) / stride : 0;
    }
    __host__ __device__ bool operator==(rgpu_iterator o) const { return p == o.p; }
    __host__ __device__ bool operator!=(rgpu_iterator o) const { return p != o.p; }
    __host__ __device__ bool operator<(rgpu_iterator o) const { return *this - o < 0; }
    __host__ __device__ bool operator>(rgpu_iterator o) const { return *this - o > 0; }
    __host__ __device__ bool operator<=(rgpu_iterator o) const { return *this - o <= 0; }
    __host__ __device__ bool operator>=(rgpu_iterator o) const { return *this - o >= 0; }
};
template <typename T> __device__ inline rgpu_iterator<T> rgpu_at(rgpu_array<T, 1> a, ptrdiff_t n) {
    return rgpu_iterator<T>{a.data, (ptrdiff_t)a.strides[0]}.moved(n);
}
"""


def c_function(function: Callable[..., Any]) -> str:
    """The name of a function in C."""
    return "jit_" + "".join(x if x.isascii() and x.isalnum() else "_" for x in function.__name__)


class Translation(NamedTuple):
    """The C++ text of a kernel; whether NVIDIA's run-time compiler is enough, and whether its blocks meet."""

    code: str
    backend: str
    cooperative: bool


def translate(function: Callable[..., Any], mode: str, types: tuple) -> Translation:
    """A kernel for these types of its arguments."""
    unit = Unit(mode)
    kernel = Function(unit, function, types, None)
    kernel.body()
    text = kernel.as_kernel(c_function(function))
    header = [f"#include <{name}>" for name in sorted(unit.includes() | unit.headers)]
    iterators = [_ITERATORS] if unit.iterators else []
    code = "\n".join([*header, _PREAMBLE, formulas.PREAMBLE, *iterators, *unit.functions, *text]) + "\n"
    thrust = unit.iterators or any(name.startswith("thrust/") for name in unit.headers)
    return Translation(code, "nvcc" if thrust else "nvrtc", unit.cooperative)


class DeviceFunction(NamedTuple):
    """C++ text with a device function in it: its name, and its result, a dtype or a structure of several."""

    code: str
    name: str
    result: Any


def translate_device(function: Callable[..., Any], types: tuple) -> DeviceFunction:
    """A function of numbers, by NumPy's rules of promotion, for these dtypes of its arguments."""
    unit = Unit("numpy")
    name, result = unit.device_function(function, types)
    header = [f"#include <{name}>" for name in sorted(unit.includes() | unit.headers)]
    return DeviceFunction("\n".join([*header, formulas.PREAMBLE, *unit.functions]) + "\n", name, result)


class Unit:
    """What the functions of one translation share."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.functions: list[str] = []
        self.known: dict[tuple, tuple[str, Any]] = {}
        self.dtypes: set[str] = set()
        self.headers: set[str] = set()  # of libraries that are called
        self.iterators = self.cooperative = False
        self.being: list[Any] = []  # functions whose bodies are being translated

    def includes(self) -> set[str]:
        headers = {"e": "cupy/float16.cuh", "F": "cupy/complex.cuh", "D": "cupy/complex.cuh"}
        return {headers[char] for char in self.dtypes & set(headers)}

    def device_function(self, function: Callable[..., Any], types: tuple) -> tuple[str, Any]:
        """A device function for these types: its name in C and the type of its result."""
        key = (function, types)
        if key in self.being:
            raise ValueError(f"Recursive function is not supported: {function.__name__}")
        if key not in self.known:
            self.being.append(key)
            name = f"{c_function(function)}_{len(self.known) + len(self.being)}"
            device = Function(self, function, types, name)
            device.body()
            self.known[key] = name, device.result
            self.functions += device.as_device(name)
            self.being.pop()
        return self.known[key]


class Function(Expressions):
    """One function being translated."""

    def __init__(self, unit: Unit, function: Callable[..., Any], types: tuple, device: str | None) -> None:
        self.unit, self.mode, self.device = unit, unit.mode, device
        self.name = function.__name__
        self.tree = tree = parse(function)
        names = [x.arg for x in tree.args.args]
        if len(names) != len(types) or tree.args.vararg or tree.args.kwarg or tree.args.kwonlyargs:
            raise TypeError(f"{self.name}() takes {len(names)} positional arguments, {len(types)} were given")
        self.parameters = dict(zip(names, types))
        self.variables: dict[str, Any] = dict(self.parameters)
        outer = inspect.getclosurevars(function)
        self.outer = {**outer.builtins, **outer.globals, **outer.nonlocals}
        self.declarations: list[str] = []
        self.lines: list[str] = []
        self.depth, self.temporaries = 1, 0
        self.result: Any = None
        self.returned = False

    # ---- text ---------------------------------------------------------------------------------------

    def body(self) -> None:
        self.block(self.tree.body)

    def emit(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    def _text(self, head: str, opening: list[str]) -> list[str]:
        for kind in self.variables.values():
            for part in kind if isinstance(kind, tuple) else (kind,):
                dtype = getattr(part, "dtype", part)  # of an array, or the type itself
                if isinstance(dtype, np.dtype):
                    self.unit.dtypes.add(dtype.char)
        local = [
            f"    {c_type(part)} v_{name}{suffix};"
            for name, kind in self.variables.items()
            if name not in self.parameters and not isinstance(kind, Constant | Struct)
            for suffix, part in (
                [(f"_{i}", x) for i, x in enumerate(kind)] if isinstance(kind, tuple) else [("", kind)]
            )
        ]
        return [
            f"{head} {{",
            *opening,
            *local,
            *(f"    {line}" for line in self.declarations),
            *self.lines,
            "}",
        ]

    def as_device(self, name: str) -> list[str]:
        given = ", ".join(f"{c_type(kind)} v_{x}" for x, kind in self.parameters.items())
        return self._text(f"__device__ {c_type(self.result)} {name}({given})", [])

    def as_kernel(self, name: str) -> list[str]:
        """Arrays come as a pointer, their extents and their strides."""
        given, opening = [], []
        for x, kind in self.parameters.items():
            if not isinstance(kind, Array):
                given.append(f"{c_type(kind)} v_{x}")
                continue
            sizes = [[f"{x}_{part}{i}" for i in range(kind.ndim)] for part in ("shape", "stride")]
            given += [f"{c_name(kind.dtype)}* {x}_data", *(f"long long {y}" for part in sizes for y in part)]
            filled = ", ".join("{" + (", ".join(part) or "0") + "}" for part in sizes)
            opening.append(f"    {kind.c} v_{x} = {{{x}_data, {filled}}};")
        return self._text(f'extern "C" __global__ void {name}({", ".join(given)})', opening)

    # ---- statements ---------------------------------------------------------------------------------

    def block(self, statements: list[ast.stmt]) -> None:
        for statement in statements:
            visit = getattr(self, f"do_{type(statement).__name__}", None)
            if visit is None:
                raise NotImplementedError(f"{self.where(statement)}: {type(statement).__name__} in a kernel")
            visit(statement)

    def where(self, node: Any) -> str:
        return f"{self.name}, line {node.lineno}"

    def _inside(self, head: str, statements: list[ast.stmt], first: str | None = None) -> None:
        self.emit(f"{head} {{")
        self.depth += 1
        if first:
            self.emit(first)
        self.block(statements)
        self.depth -= 1
        self.emit("}")

    def do_Pass(self, node: ast.Pass) -> None:  # noqa: N802 (the names of ast's classes)
        pass

    def do_Break(self, node: ast.Break) -> None:  # noqa: N802
        self.emit("break;")

    def do_Continue(self, node: ast.Continue) -> None:  # noqa: N802
        self.emit("continue;")

    def do_Expr(self, node: ast.Expr) -> None:  # noqa: N802
        value = self.expression(node.value)
        if isinstance(value, Value):  # a docstring is a constant
            self.emit(f"{value.code};")

    def do_If(self, node: ast.If) -> None:  # noqa: N802
        test = self.expression(node.test)
        if isinstance(test, Constant):
            self.block(node.body if test.value else node.orelse)
            return
        self._inside(f"if ({self.truth(test)})", node.body)
        if node.orelse:
            self._inside("else", node.orelse)

    def do_While(self, node: ast.While) -> None:  # noqa: N802
        if node.orelse:
            raise NotImplementedError(f"{self.where(node)}: else of a loop in a kernel")
        self._inside(f"while ({self.truth(self.expression(node.test))})", node.body)

    def do_For(self, node: ast.For) -> None:  # noqa: N802
        call = node.iter
        function = self.expression(call.func) if isinstance(call, ast.Call) else None
        of_range = isinstance(function, Constant) and (
            function.value is range or isinstance(function.value, Builtin) and function.value.kind == "range"
        )
        if not of_range or node.orelse or not isinstance(node.target, ast.Name) or not isinstance(call, ast.Call):
            raise NotImplementedError(f"{self.where(node)}: kernels loop over range() with one variable, without else")
        bounds = [self.expression(x) for x in call.args]
        unroll = self._unroll({str(x.arg): self.expression(x.value) for x in call.keywords})
        if not 1 <= len(bounds) <= 3:
            raise TypeError(f"{self.where(node)}: range expected 1 to 3 arguments, got {len(bounds)}")
        start, stop, step = (Constant(0), bounds[0], Constant(1)) if len(bounds) == 1 else (*bounds, Constant(1))[:3]
        kind = self.common([start, stop, step])
        if self.mode == "numpy" and kind.kind == "u":
            kind = np.dtype(np.int64)  # a Python integer
        if kind.kind not in "iu":
            raise TypeError(f"{self.where(node)}: range() of {kind}")
        # Counted in 64 bits with a sign: what is left of a range of unsigned numbers may be negative.
        wide = np.dtype(np.int64)
        i, end, by = (self.temporary(wide) for _ in range(3))
        self.emit("".join(f"{x} = {self.cast(bound, wide)}; " for x, bound in ((i, start), (end, stop), (by, step))))
        name = self.variable(node.target.id, kind, node)
        target = self.variables[node.target.id]
        head = f"for (; {by} > 0 ? {i} < {end} : {i} > {end}; {i} += {by})"
        if unroll:
            self.lines.append(unroll)
        self._inside(head, node.body, f"{name} = ({c_name(target)}){i};")

    def _unroll(self, options: dict[str, Any]) -> str:
        """``range(..., unroll=True)`` or a number of rounds: a remark for the compiler."""
        unroll = options.pop("unroll", Constant(None))
        if options or not isinstance(unroll, Constant) or not isinstance(unroll.value, int | None):
            raise TypeError("range() in a kernel takes unroll=, a constant")
        if unroll.value is None:
            return ""
        return "#pragma unroll" if unroll.value is True else f"#pragma unroll({max(1, int(unroll.value))})"

    def do_Return(self, node: ast.Return) -> None:  # noqa: N802
        value = Constant(None) if node.value is None else self.expression(node.value)
        if isinstance(value, Constant) and value.value is None:
            self.emit("return;")
            return
        if self.device is None:
            raise TypeError(f"{self.where(node)}: a kernel returns nothing")
        if isinstance(value, tuple):
            self._return_tuple([self.given(x) for x in value], node)
            return
        kind = value.type if isinstance(value, Value) else scalar_dtype(self.mode, value.value)
        if not self.returned:
            self.result, self.returned = kind, True
        if isinstance(kind, Array):
            raise NotImplementedError(f"{self.where(node)}: returning an array")
        self.emit(f"return {self.cast(value, self.result)};")

    def _return_tuple(self, values: list[Value], node: ast.Return) -> None:
        """Several results, as a structure with members ``_0``, ``_1``, ..."""
        if any(not isinstance(x.type, np.dtype) for x in values):
            raise TypeError(f"{self.where(node)}: a tuple of numbers is expected")
        if not self.returned:
            fields = {f"_{i}": x.type for i, x in enumerate(values)}
            self.result, self.returned = Struct(f"{self.device}_result", fields), True
            members = " ".join(f"{c_name(dtype)} {name};" for name, dtype in fields.items())
            self.unit.functions.append(f"struct {self.result.c} {{ {members} }};")
        if not isinstance(self.result, Struct) or len(self.result.fields) != len(values):
            raise TypeError(f"{self.where(node)}: the results differ from those returned before")
        texts = [self.cast(x, dtype) for x, dtype in zip(values, self.result.fields.values())]
        self.emit(f"return {self.result.c}{{{', '.join(texts)}}};")

    def do_Assign(self, node: ast.Assign) -> None:  # noqa: N802
        value = self.expression(node.value)
        for target in node.targets:
            # All are evaluated before the first is stored.
            self.assign(target, self.kept(value) if isinstance(target, ast.Tuple) else value)

    def do_AugAssign(self, node: ast.AugAssign) -> None:  # noqa: N802
        place = self.expression(node.target)
        if not isinstance(place, Value) or not isinstance(place.type, np.dtype):
            raise TypeError(f"{self.where(node)}: this cannot be changed in place")
        if not isinstance(node.target, ast.Name):  # its index is evaluated once
            pointer = self.temporary(Iterator(place.type, f"{c_name(place.type)}*"))
            self.emit(f"{pointer} = &{place.code};")
            place = Value(f"*{pointer}", place.type)
        value = self.ufunc(OPERATORS[type(node.op)][0], [place, self.expression(node.value)])
        self.emit(f"{place.code} = {self.cast(value, place.type, checked=True)};")

    def assign(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Tuple):
            if not isinstance(value, tuple) or len(value) != len(target.elts):
                raise ValueError(f"{self.where(target)}: the values do not match the targets")
            for part, stored in zip(target.elts, value):
                self.assign(part, stored)
            return
        if isinstance(target, ast.Subscript):
            place = self.expression(target)
            self.emit(f"{place.code} = {self.cast(value, place.type, checked=True)};")
            return
        if not isinstance(target, ast.Name):
            raise NotImplementedError(f"{self.where(target)}: assignment to {type(target).__name__}")
        if isinstance(value, Constant) and not isinstance(value.value, np.generic | bool | int | float | complex):
            if self.depth > 1:
                raise TypeError(f"{self.where(target)}: Cannot assign constant value not at top-level.")
            known = self.variables.setdefault(target.id, value)  # a type or a module by another name
            if known != value:
                raise TypeError(f"{self.where(target)}: {target.id} cannot change")
            return
        if isinstance(value, tuple):
            stored = [self.given(x) for x in value]
            self.variable(target.id, tuple(x.type for x in stored), target)
            for i, x in enumerate(stored):
                self.emit(f"v_{target.id}_{i} = {x.code};")
            return
        if isinstance(value, Constant) and isinstance(self.variables.get(target.id), np.dtype):
            kind = self.variables[target.id]
        else:
            kind = scalar_dtype(self.mode, value.value) if isinstance(value, Constant) else value.type
        new = target.id not in self.variables
        name = self.variable(target.id, kind, target)
        if isinstance(kind, Struct):  # which may have no empty state to declare it in
            self.emit(f"{'auto ' if new else ''}{name} = {value.code};")
            return
        self.emit(f"{name} = {self.cast(value, kind, checked=True) if isinstance(kind, np.dtype) else value.code};")

    # ---- variables ----------------------------------------------------------------------------------

    def variable(self, name: str, kind: Any, node: Any) -> str:
        """The C name of a variable that is given a value of this type."""
        known = self.variables.setdefault(name, kind)
        if isinstance(known, tuple) is not isinstance(kind, tuple) or known != kind:
            raise TypeError(f"{self.where(node)}: Data type mismatch of variable: `{name}`: {known} != {kind}")
        return f"v_{name}"

    def temporary(self, kind: Any) -> str:
        self.temporaries += 1
        if isinstance(kind, Struct):  # declared where it is made
            return f"t_{self.temporaries}"
        self.declarations.append(f"{c_type(kind)} t_{self.temporaries};")
        return f"t_{self.temporaries}"

    def kept(self, value: Any) -> Any:
        """The value in a variable of its own."""
        if isinstance(value, tuple):
            return tuple(self.kept(x) for x in value)
        if not isinstance(value, Value):
            return value
        name = self.temporary(value.type)
        self.emit(f"{name} = {value.code};")
        return Value(name, value.type)

    def shared(self, dtype: Any, extent: int | None, alignment: int | None = None) -> Value:
        """An array of the block; ``extent`` None: as much as the launch says."""
        self.temporaries += 1
        name = f"shared_{self.temporaries}"
        head = ("extern " if extent is None else "") + "__shared__" + (f" __align__({alignment})" if alignment else "")
        self.declarations.append(f"{head} {c_type(dtype)} {name}[{'' if extent is None else extent}];")
        if isinstance(dtype, np.dtype):
            self.unit.dtypes.add(dtype.char)
        return Value(name, Array(dtype, 1, extent or 0))
