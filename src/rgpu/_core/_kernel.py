"""``cupy._core._kernel``: `create_ufunc`, with which CuPy and libraries make functions of their own from CUDA C++.

One ElementwiseKernel for each loop that was used. Must not compute anything itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rgpu._util import memoize
from rgpu.client.remote import Remote
from rgpu.cuda import runtime
from rgpu.functions import creation
from rgpu.functions.kernels import ElementwiseKernel as ElementwiseKernel
from rgpu.functions.ufunc import ufunc as ufunc
from rgpu.wire.kernels import c_type

#: what a loop's input must be able to hold for a Python number, which has no dtype of its own
_WEAK = {bool: "?biufc", int: "iufc", float: "fc", complex: "c"}


@memoize(for_each_device=True)
def _get_warpsize() -> int:
    """How many threads a warp of the current device has."""
    return runtime.getDeviceProperties(runtime.getDevice())["warpSize"]


def _full_mask() -> int:
    """All lanes of a warp, for the functions of CUDA that take a mask of lanes."""
    return (1 << _get_warpsize()) - 1


def _full_mask_hex() -> str:
    """`_full_mask` as CUDA C++ writes it."""
    return hex(_full_mask())


def read_loops(ops: tuple, routine: Any) -> list[tuple[list[np.dtype], list[np.dtype], Any]]:
    """``("ff->f", ("d->d", "out0 = ..."))`` as inputs, outputs and what to do."""
    loops = []
    for op in ops:
        types, todo = (op, routine) if isinstance(op, str) else (op[0], routine if op[1] is None else op[1])
        ins, _, outs = types.partition("->")
        loops.append(([np.dtype(c) for c in ins], [np.dtype(c) for c in outs or ins], todo))
    return loops


def typedefs(ins: list[np.dtype], outs: list[np.dtype]) -> str:
    """The names that a routine may use for the types of its arguments."""
    names = [f"typedef {c_type(t)} in{i}_type;" for i, t in enumerate(ins)]
    return "\n".join((*names, *(f"typedef {c_type(t)} out{i}_type;" for i, t in enumerate(outs))))


class CreatedUfunc:
    """An element-wise function: its loops by types, tried in order, the first that can hold its inputs."""

    def __init__(
        self, name: str, ops: tuple, routine: Any, preamble: str, doc: str, casting: str, loop_prep: str
    ) -> None:
        self.name = self.__name__ = name
        self.__doc__ = doc
        self._loops = read_loops(ops, routine)
        self.nin, self.nout = len(self._loops[0][0]), len(self._loops[0][1])
        self.nargs = self.nin + self.nout
        self._preamble, self._casting, self._loop_prep = preamble, casting, loop_prep
        self._kernels: dict[int, ElementwiseKernel] = {}

    def __repr__(self) -> str:
        return f"<ufunc '{self.name}'>"

    @property
    def types(self) -> list[str]:
        return ["".join(t.char for t in ins) + "->" + "".join(t.char for t in outs) for ins, outs, _ in self._loops]

    def __call__(self, *args: Any, out: Any = None, dtype: Any = None, casting: str | None = None) -> Any:
        """Of ``nin`` arrays or numbers (and their outputs, or ``out=``); ``dtype`` names the loop by its output."""
        if len(args) not in (self.nin, self.nargs):
            raise TypeError(f"{self.name}() takes from {self.nin} to {self.nargs} arguments but {len(args)} were given")
        inputs = [creation.cupy_like(x) for x in args[: self.nin]]
        if out is not None and len(args) > self.nin:
            raise ValueError("cannot specify 'out' as both a positional and keyword argument")
        given = args[self.nin :] if out is None else out if isinstance(out, tuple) else (out,)
        for x in inputs:
            if not isinstance(x, Remote | np.generic | bool | int | float | complex):
                raise TypeError(f"Unsupported type {type(x)}")
        number = self._loop(inputs, dtype)
        ins = self._loops[number][0]
        pairs = zip(inputs, ins, strict=True)
        typed = [x.astype(t, copy=False) if isinstance(x, Remote) else t.type(x) for x, t in pairs]
        if not any(isinstance(x, Remote) for x in typed):
            typed[0] = creation.array(typed[0])
        if not given:
            return self._kernel(number)(*typed)
        return self._written(number, typed, given, casting or self._casting)

    def _loop(self, inputs: list, dtype: Any) -> int:
        if dtype is not None:
            wanted = np.dtype(dtype)
            fits = (i for i, (_, outs, _) in enumerate(self._loops) if outs[0] == wanted)
        else:
            fits = (i for i, (ins, _, _) in enumerate(self._loops) if all(map(_holds, ins, inputs)))
        found = next(fits, None)
        if found is None:
            given = ", ".join(str(getattr(x, "dtype", type(x))) for x in inputs)
            raise TypeError(f"Wrong type ({given}) of arguments for {self.name}")
        return found

    def _kernel(self, number: int) -> ElementwiseKernel:
        if number not in self._kernels:
            ins, outs, todo = self._loops[number]
            self._kernels[number] = ElementwiseKernel(
                ", ".join(f"{t.name} in{i}" for i, t in enumerate(ins)),
                ", ".join(f"{t.name} out{i}" for i, t in enumerate(outs)),
                todo,
                self.name,
                preamble=f"{typedefs(ins, outs)}\n{self._preamble}",
                loop_prep=self._loop_prep,
            )
        return self._kernels[number]

    def _written(self, number: int, typed: list, given: tuple, casting: str) -> Any:
        """Into arrays of the caller, by way of the loop's own types where theirs differ."""
        outs = self._loops[number][1]
        for x, t in zip(given, outs, strict=True):
            if not np.can_cast(t, x.dtype, casting):
                raise TypeError(f"output (typecode '{t.char}') could not be coerced to provided output parameter "
                                f"(typecode '{x.dtype.char}') according to the casting rule '{casting}'")  # fmt: skip
        if all(x.dtype == t for x, t in zip(given, outs, strict=True)):
            self._kernel(number)(*typed, *given)
        else:
            made = self._kernel(number)(*typed)
            for x, result in zip(given, made if self.nout > 1 else (made,), strict=True):
                x[...] = result
        return given[0] if self.nout == 1 else given


def _holds(wanted: np.dtype, x: Any) -> bool:
    if isinstance(x, Remote | np.generic):
        return np.can_cast(x.dtype, wanted)
    return wanted.kind in _WEAK[type(x)] + "?" * isinstance(x, bool)


def create_ufunc(
    name: str, ops: tuple, routine: Any = None, preamble: str = "", doc: str = "", default_casting: str | None = None,
    loop_prep: str = "", out_ops: Any = None, cutensor_op: Any = None, scatter_op: Any = None,
) -> CreatedUfunc:  # fmt: skip
    """An element-wise function from loops (``"ff->f"``, or a pair with its own routine) and a routine in CUDA C++ that
    computes ``out0`` from ``in0``, ``in1``. ``out_ops``, ``cutensor_op`` and ``scatter_op`` are hints that change no
    result."""
    return CreatedUfunc(name, ops, routine, preamble, doc, default_casting or "same_kind", loop_prep)
