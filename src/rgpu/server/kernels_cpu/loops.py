"""Element-wise kernels as C++ loops: the text of a loop, the numbers it is called with, and the call.

The C++ is specialised by types, number of axes and how each operand moves along the innermost axis, so that
contiguous loops vectorize. Axes that every operand can join are joined first. Reductions build on this.
"""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from rgpu.server.kernels_cpu import build
from rgpu.wire.kernels import Parameter, c_type, parse

_POINTER, _LONG = ctypes.POINTER(ctypes.c_int64), ctypes.c_longlong
GRAIN = 1 << 15  # elements that are worth a thread
_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[^\n]*$", re.MULTILINE)
_LIBRARY = re.compile(r"<(thrust|cub)/(?!complex\.h)[\w/.]*>")  # of many files each; here of one
#: what a client adds to a library's namespace: a specialization by its full name, or the namespace opened
_FOREIGN = re.compile(
    r"\btemplate\s*<[^;{}]*>\s*(?:struct|class)\s+(?:std|thrust|cub)::[^;{}]*|\bnamespace\s+(?:std|thrust|cub)\b[^;{}]*"
)


def mentions(text: str, word: str) -> bool:
    return re.search(rf"\b{word}\b", text) is not None


def namespaced(*parts: str) -> str:
    """Source of a client inside ``rgpu_user``, its includes before that."""
    text = "\n".join(parts)
    includes = _LIBRARY.sub(r"<rgpu_\1.h>", "\n".join(_INCLUDE.findall(text)))
    return f'#include "rgpu_cuda.h"\n{includes}\nnamespace rgpu_user {{\n{outside(_INCLUDE.sub("", text))}\n}}\n'


def outside(text: str) -> str:
    """The same with ``rgpu_user`` closed around what belongs to the namespace of a library."""
    parts, done = [], 0
    for found in _FOREIGN.finditer(text):
        if found.start() < done or "{" not in text[found.end() : found.end() + 1]:
            continue
        end, depth = found.end() + 1, 1
        while depth and end < len(text):
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        end += text[end : end + 1] == ";"
        parts += [
            text[done : found.start()],
            "} using namespace rgpu_user; ",
            text[found.start() : end],
            " namespace rgpu_user {",
        ]
        done = end
    return "".join((*parts, text[done:]))


def join_axes(shape: tuple, strides: list[tuple]) -> tuple[tuple, list[tuple]]:
    """The same loop with fewer axes: extents of 1 dropped, neighbours joined that all operands walk as one."""
    axes: list[tuple[int, list[int]]] = []
    for d, extent in enumerate(shape):
        steps = [s[d] for s in strides]
        if extent == 1:
            continue
        if axes and all(outer == step * extent for outer, step in zip(axes[-1][1], steps)):
            axes[-1] = (axes[-1][0] * extent, steps)
        else:
            axes.append((extent, steps))
    if not axes:
        axes.append((1, [0] * len(strides)))
    return tuple(n for n, _ in axes), [tuple(steps[k] for _, steps in axes) for k in range(len(strides))]


class Numbers:
    """What a loop is told at run time: 64-bit numbers and the bytes of scalars. Keeps the layout of both."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.scalars = bytearray()
        self.arrays: list[tuple[int, int]] = []  # where the address of which argument stands
        self.values: list[tuple[int, int]] = []  # and the bytes of which scalar

    def add(self, values: Sequence[int]) -> int:
        """Append numbers; the place of the first."""
        place = len(self.numbers)
        self.numbers.extend(values)
        return place

    def pointer(self, operand: Operand) -> int:
        """Append an array's address."""
        self.arrays.append((len(self.numbers), operand.position))
        return self.add((operand.value.ctypes.data,))

    def scalar(self, operand: Operand) -> int:
        self.scalars.extend(b"\0" * (-len(self.scalars) % 16))
        place = len(self.scalars)
        self.values.append((place, operand.position))
        self.scalars.extend(operand.value.tobytes())
        return place

    def arguments(self) -> tuple[Any, bytes]:
        return np.array(self.numbers, np.int64), bytes(self.scalars)

    def template(self) -> Template:
        """The same for other arguments of the same layout."""
        return Template(*self.arguments(), self.arrays, self.values)


class Template(NamedTuple):
    """The numbers of a loop, with the places that change from launch to launch."""

    table: np.ndarray
    scalar_bytes: bytes
    arrays: list[tuple[int, int]]
    scalars: list[tuple[int, int]]

    def arguments(self, given: tuple) -> tuple[np.ndarray, bytes]:
        table = self.table.copy()
        for place, k in self.arrays:
            table[place] = given[k].ctypes.data
        if not self.scalars:
            return table, self.scalar_bytes
        scalars = bytearray(self.scalar_bytes)
        for place, k in self.scalars:
            data = given[k].tobytes()
            scalars[place : place + len(data)] = data
        return table, bytes(scalars)


class Operand:
    """One parameter of a launch: a walked array, a raw array, or a scalar."""

    def __init__(self, parameter: Parameter, value: Any, position: int = 0) -> None:
        self.parameter, self.value, self.position = parameter, value, position
        self.array = isinstance(value, np.ndarray)
        self.walked = self.array and not parameter.raw
        self.type = parameter.type if parameter.dtype is None else c_type(parameter.dtype)

    def whole(self, numbers: Numbers, shape: tuple, strides: tuple) -> tuple[str, Any]:
        """C++ that makes a walked array, as it was broadcast, out of the numbers: CuPy calls it ``_raw_NAME``."""
        const = "const " if self.parameter.const else ""
        place = numbers.pointer(self)
        numbers.add((*shape, *strides))
        text = (
            f"{const}CArray<{self.type}, {len(shape)}, false> _raw_{self.parameter.name}(({self.type}*)rgpu_m[{place}], "
            f"(const ptrdiff_t*)rgpu_m + {place + 1}, (const ptrdiff_t*)rgpu_m + {place + 1 + len(shape)});"
        )
        return text, ("whole", place, len(shape))

    def declare(self, numbers: Numbers) -> tuple[str, Any]:
        """C++ that makes a raw array or scalar out of the numbers, and what of it is compiled in."""
        name, kind, value = self.parameter.name, self.type, self.value
        const = "const " if self.parameter.const else ""
        if not self.array:
            place = numbers.scalar(self)
            return f"const {kind} {name} = rgpu::read<{kind}>(rgpu_s + {place});", ("scalar", place)
        contiguous = value.flags.c_contiguous
        place = numbers.pointer(self)
        numbers.add((*value.shape, *value.strides))
        text = (
            f"{const}CArray<{kind}, {value.ndim}, {str(contiguous).lower()}> {name}(({kind}*)rgpu_m[{place}], "
            f"(const ptrdiff_t*)rgpu_m + {place + 1}, (const ptrdiff_t*)rgpu_m + {place + 1 + value.ndim});"
        )
        return text, ("raw", place, value.ndim, contiguous)


def element(operand: Operand, move: str, position: str = "rgpu_k", as_value: bool = False) -> str:
    """C++ that names the current element of a walked operand."""
    name, kind = operand.parameter.name, operand.type
    const = "const " if operand.parameter.const else ""
    if move == "c":
        place = f"(({const}{kind}*)rgpu_p_{name})[{position}]"
    elif move == "0":
        place = f"*({const}{kind}*)rgpu_p_{name}"
    else:
        place = f"*({const}{kind}*)(rgpu_p_{name} + ({position}) * rgpu_d_{name})"
    return f"{const}{kind} {'' if as_value else '&'}{name} = {place};"


def movement(stride: int, itemsize: int) -> str:
    return "c" if stride == itemsize else "0" if stride == 0 else "s"


def typedefs(operands: list[Operand], extra: tuple[tuple[str, str], ...] = ()) -> str:
    """The letters of a kernel as types."""
    letters = {o.parameter.type: c_type(o.value.dtype) for o in operands if o.parameter.dtype is None}
    return "\n".join(f"typedef {kind} {letter};" for letter, kind in (*sorted(letters.items()), *extra))


class Elementwise:
    """CuPy's ElementwiseKernel on this device."""

    def __init__(
        self, in_params: str, out_params: str, operation: str, name: str, reduce_dims: bool, preamble: str,
        loop_prep: str, after_loop: str, options: tuple,
    ) -> None:  # fmt: skip
        build.check_allowed()
        self.parameters = (*parse(in_params, True), *parse(out_params, False))
        self.operation, self.name = operation, name
        self.reduce_dims, self.preamble, self.options = reduce_dims, preamble, compiler_options(options)
        self.loop_prep, self.after_loop = loop_prep, after_loop
        self._compiled: dict[Any, Any] = {}
        self._plans: dict[Any, tuple] = {}

    def launch(self, inputs: list, outputs: list, size: int) -> None:
        """Run over the broadcast shape of what is not raw, or over ``size``."""
        arguments = (*inputs, *outputs)
        key = (
            size,
            *[(x.shape, x.strides, x.dtype) if isinstance(x, np.ndarray) else x.dtype for x in arguments],
        )
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) > 1024:  # a client of endless shapes must not fill this worker
                self._plans.clear()
            plan = self._plans[key] = self._plan(arguments, size)
        total, run, numbers = plan
        if not total:
            return
        table, scalars = numbers.arguments(arguments)
        pointer = table.ctypes.data_as(_POINTER)
        if total <= GRAIN:
            run(pointer, scalars, _LONG(0), _LONG(total))
        else:
            build.spread(lambda first, last: run(pointer, scalars, _LONG(first), _LONG(last)), total, GRAIN)

    def _plan(self, arguments: tuple, size: int) -> tuple[int, Any, Any]:
        """The loop for arguments of this layout: its length, the compiled function, and its numbers."""
        operands = [Operand(p, x, k) for k, (p, x) in enumerate(zip(self.parameters, arguments))]
        walked = [o for o in operands if o.walked]
        shape = (size,) if size >= 0 else np.broadcast_shapes(*[o.value.shape for o in walked])
        total = math.prod(shape)
        if not total:
            return 0, None, None
        views = [np.broadcast_to(o.value, shape) for o in walked]
        shape_given, strides = shape, [view.strides for view in views]
        shape, strides = join_axes(shape, strides)
        numbers = Numbers()
        numbers.add(shape)
        moves = []
        for o, steps in zip(walked, strides):
            numbers.pointer(o)
            numbers.add(steps)
            moves.append(movement(steps[-1], o.value.itemsize))
        # ``_ind`` shows the shape that the user knows
        given = not self.reduce_dims or size >= 0
        index = shape_given if given else shape
        place = numbers.add(index)
        declared = [o.declare(numbers) for o in operands if not o.walked]
        for k, o in enumerate(walked):
            if mentions(self.operation, f"_raw_{o.parameter.name}"):
                declared.append(o.whole(numbers, index, views[k].strides if given else strides[k]))
        key = (
            len(shape), len(index), place, tuple(moves), tuple(d[1] for d in declared),
            tuple((o.array, o.value.dtype) for o in operands),
        )  # fmt: skip
        run = self._compiled.get(key)
        if run is None:
            text = self._source(operands, walked, moves, len(shape), (place, len(index)), [d[0] for d in declared])
            run = build.load(text, self.options, shown=self.operation, name=self.name).rgpu_run
            run.restype = None
            self._compiled[key] = run
        return total, run, numbers.template()

    def _source(self, operands: list, walked: list, moves: list, ndim: int, index: tuple, declared: list) -> str:
        body = self.operation
        everything = "\n".join((body, self.loop_prep, self.after_loop, self.preamble))
        pointers, elements = [], []
        for k, (o, move) in enumerate(zip(walked, moves)):
            name, place = o.parameter.name, ndim + k * (ndim + 1)
            pointers.append(
                f"char* rgpu_p_{name} = (char*)rgpu_m[{place}] + rgpu_w.offset((const ptrdiff_t*)rgpu_m + {place + 1});"
            )
            if move == "s":
                declared = [*declared, f"const ptrdiff_t rgpu_d_{name} = rgpu_m[{place + ndim}];"]
            elements.append(element(o, move))
        loop = f"""
static inline void rgpu_loop(const int64_t* rgpu_m, const char* rgpu_s, ptrdiff_t rgpu_first, ptrdiff_t rgpu_last) {{
    CIndexer<{index[1]}> _ind((const ptrdiff_t*)rgpu_m + {index[0]});
    {"const ptrdiff_t n = _ind.size();" if all(o.parameter.name != "n" for o in operands) else ""}
    {" ".join(declared)}
    {self.loop_prep};
    rgpu::Walk<{ndim}> rgpu_w((const ptrdiff_t*)rgpu_m, rgpu_first);
    while (rgpu_first < rgpu_last) {{
        ptrdiff_t rgpu_n = rgpu_w.left();
        if (rgpu_n > rgpu_last - rgpu_first) rgpu_n = rgpu_last - rgpu_first;
        {" ".join(pointers)}
        {"" if mentions(body, "atomic[A-Z].*") else "_Pragma(RGPU_INDEPENDENT)"}
        for (ptrdiff_t rgpu_k = 0; rgpu_k < rgpu_n; ++rgpu_k) {{
            ptrdiff_t i = rgpu_first + rgpu_k;
            {"_ind.set(i);" if mentions(everything, "_ind") else ""}
            {" ".join(elements)}
            {body};
        }}
        rgpu_first += rgpu_n;
        rgpu_w.row();
    }}
    {self.after_loop};
}}"""
        each = mentions(body, "return")  # ends one element's thread, not the others'
        call = (
            "for (long long k = first; k < last; ++k) rgpu_user::rgpu_loop(m, s, k, k + 1);"
            if each
            else "rgpu_user::rgpu_loop(m, s, first, last);"
        )
        return f"""{namespaced(typedefs(operands), self.preamble, loop)}
extern "C" __attribute__((visibility("default"))) void rgpu_run(const int64_t* m, const char* s, long long first, long long last) {{ {call} }}
"""


def compiler_options(options: Any) -> tuple[str, ...]:
    """What of NVRTC's options means something here: definitions, and a newer language."""
    kept = []
    for option in options or ():
        option = "-" + option.lstrip("-")
        if option.startswith(("-D", "-U")) or option.startswith("-std=") and option[-2:] not in ("03", "11", "14"):
            kept.append(option)
        elif option == "-use_fast_math":
            kept.append("-ffast-math")
    return tuple(kept)
