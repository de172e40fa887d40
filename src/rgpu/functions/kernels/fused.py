"""The kernels of a fused function: which values are computed together, their C++, and the order of the launches.

Values of one shape that wait for the same reductions are one element-wise kernel; a reduction takes with it what
leads to it, and what follows from it alone. Stores into arguments come last. Knows graphs, not tracing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rgpu.client.remote import Remote
from rgpu.functions import creation
from rgpu.functions.kernels import formulas
from rgpu.functions.kernels.jit.types import literal
from rgpu.functions.kernels.loops import ElementwiseKernel, ReductionKernel
from rgpu.functions.kernels.trace import Node, Unfusable
from rgpu.wire.kernels import c_type

_HEADERS = '#include "cupy/float16.cuh"\n#include "cupy/complex.cuh"\n' + formulas.PREAMBLE
# sums are kept wider, to be as exact as NumPy's, which are made in pairs
_ACCUMULATED = {"e": np.dtype("f4"), "f": np.dtype("f8"), "F": np.dtype("c16")}


def _convert(text: str, source: np.dtype, target: np.dtype) -> str:
    if source == target:
        return text
    if source.kind == "c" and target.kind != "c":
        real = f"({text}).real()"
        return f"({real} != 0 || ({text}).imag() != 0)" if target.kind == "b" else f"(({c_type(target)})({real}))"
    return f"(({c_type(target)})({text}))"


class _Text:
    """C++ statements for values; what they read are ``leaves``, by name."""

    def __init__(self, ready: Callable[[Node], bool], prefix: str) -> None:
        self.ready, self.prefix = ready, prefix
        self.leaves: dict[Node, str] = {}
        self.names: dict[Node, str] = {}
        self.lines: list[str] = []

    def value(self, node: Node, dtype: np.dtype) -> str:
        if node.kind == "constant":
            return literal(node.detail, dtype)
        return _convert(self._name(node), node.dtype, dtype)

    def _name(self, node: Node) -> str:
        found = self.names.get(node)
        if found is None:
            if node.kind != "op" or self.ready(node):
                found = self.leaves[node] = f"{self.prefix}a{len(self.leaves)}"
            else:
                name, loop = node.detail
                texts = [self.value(x, kind) for x, kind in zip(node.inputs, loop)]
                code = formulas.formula(name, texts, list(loop), node.dtype, c_type(node.dtype))
                found = f"{self.prefix}v{len(self.names)}"
                self.lines.append(f"const {c_type(node.dtype)} {found} = {code};")
            self.names[node] = found
        return found


class _Loop:
    """An element-wise kernel: values of one shape, each into a new array or an argument."""

    def __init__(self, level: int, shape: tuple) -> None:
        self.level, self.shape = level, shape
        self.nodes: list[Node] = []
        self.stores: list[tuple[Node, int]] = []

    def finish(self, ready: Callable[[Node], bool], name: str) -> None:
        self.text = text = _Text(ready, "")
        wanted = [*self.nodes, *[node for node, _ in self.stores]]
        values = [text.value(node, node.dtype) for node in wanted]
        self.inputs = list(text.leaves)
        ins, outs = _parameters(text.leaves), ", ".join(f"{node.dtype.name} o{i}" for i, node in enumerate(wanted))
        ends = [f"o{i} = {value};" for i, value in enumerate(values)]
        self.kernel = ElementwiseKernel(
            ins, outs, " ".join([*text.lines, *ends]), name, preamble=_HEADERS, return_tuple=True
        )

    def run(self, values: Callable[[Node], Any], args: tuple, results: dict) -> None:
        given = [values(x) for x in self.inputs]
        targets = [args[i] for _, i in self.stores]
        if targets or not any(isinstance(x, Remote) for x in given):  # of numbers alone a kernel has no size
            shape = targets[0].shape if targets else ()
            made = [creation.empty(shape, node.dtype) for node in self.nodes]
            self.kernel(*given, *made, *targets)
        else:
            made = self.kernel(*given)
        results.update(zip(self.nodes, made))


class _Fold:
    """A reduction, with the element-wise values before it and those after it."""

    def __init__(self, node: Node, level: int) -> None:
        self.node, self.level = node, level
        self.after: _Loop | None = None
        self.alone = True  # whether others need the reduced values themselves
        self.stores: list[tuple[Node, int]] = []

    def finish(self, ready: Callable[[Node], bool], name: str) -> None:
        source, (kind, self.axis) = self.node.inputs[0], self.node.detail
        dtype = self.node.dtype
        reduced = dtype if kind in ("max", "min") else _ACCUMULATED.get(dtype.char, dtype)
        expression, identity = _rule(kind, dtype)
        before = _Text(ready, "")
        value = before.value(source, np.dtype(bool) if kind in ("any", "all") else dtype)
        mapped = _convert(value, np.dtype(bool) if kind in ("any", "all") else dtype, reduced)
        if not any(x.shape for x in before.leaves) and source.shape:
            raise Unfusable("a reduction of numbers")
        nodes = [] if self.after is None else self.after.nodes
        self.nodes = ([self.node] if self.alone else []) + nodes
        end = _Text(lambda node: node is not self.node and ready(node), "e")
        end.names[self.node] = "rgpu_total"
        stores = [f"o{i} = {end.value(node, node.dtype)};" for i, node in enumerate(self.nodes)]
        leaves = before.leaves | end.leaves
        self.inputs = list(leaves)
        mapping = _function("rgpu_map", reduced, before.leaves, "", [*before.lines, f"return {mapped};"])
        outs = "".join(f", {c_type(node.dtype)} &o{i}" for i, node in enumerate(self.nodes))
        total = f"const {c_type(dtype)} rgpu_total = {_convert('rgpu_s', reduced, dtype)};"
        finishing = _function(
            "rgpu_after", None, end.leaves, f"{c_type(reduced)} rgpu_s{outs}", [total, *end.lines, *stores]
        )
        arguments = ", ".join(["a", *(f"o{i}" for i in range(len(self.nodes))), *end.leaves.values()])
        self.kernel = ReductionKernel(
            _parameters(leaves), ", ".join(f"{node.dtype.name} o{i}" for i, node in enumerate(self.nodes)),
            f"rgpu_map({', '.join(before.leaves.values())})", expression, f"rgpu_after({arguments})", identity, name,
            reduce_type=c_type(reduced), preamble=_HEADERS + mapping + finishing,
        )  # fmt: skip

    def run(self, values: Callable[[Node], Any], args: tuple, results: dict) -> None:
        made = self.kernel(*[values(x) for x in self.inputs], axis=self.axis)
        results.update(zip(self.nodes, made if isinstance(made, tuple) else (made,)))


def _parameters(leaves: dict[Node, str]) -> str:
    return ", ".join(f"{node.dtype.name} {name}" for node, name in leaves.items())


def _function(name: str, result: Any, leaves: dict[Node, str], first: str, lines: list[str]) -> str:
    given = [first] * bool(first) + [f"{c_type(node.dtype)} {x}" for node, x in leaves.items()]
    head = f"__device__ inline {'void' if result is None else c_type(result)} {name}({', '.join(given)})"
    return f"{head} {{ {' '.join(lines)} }}\n"


def _rule(kind: str, dtype: np.dtype) -> tuple[str, str]:
    """How two values become one, and the value that changes nothing."""
    simple = {"sum": ("a + b", "0"), "prod": ("a * b", "1"), "any": ("a || b", "false"), "all": ("a && b", "true")}
    if kind in simple:
        return simple[kind]
    if dtype.kind == "c" or dtype.char == "e":
        raise Unfusable(f"{kind} of {dtype}")
    sign, text = (">", "(a != a || a > b) ? a : b") if kind == "max" else ("<", "(a != a || a < b) ? a : b")
    if dtype.kind == "b":
        return text, "false" if sign == ">" else "true"
    if dtype.kind == "f":
        return text, "-INFINITY" if sign == ">" else "INFINITY"
    limits = np.iinfo(dtype)
    return text, literal(limits.min if sign == ">" else limits.max, dtype)


class Plan:
    """What calls of one kind do. ``outputs``: the values returned, in order."""

    def __init__(self, name: str, outputs: list[Node], stores: dict[int, Node]) -> None:
        self.outputs, self.stores = outputs, stores
        self._levels: dict[Node, int] = {}
        for node in (*outputs, *stores.values()):
            if node.kind in ("scalar", "constant") or node.weak is not None:
                raise Unfusable("a fused function returns arrays")
        self._bases: dict[Node, None] = {}  # of views, computed for them
        self._loops: dict[tuple, _Loop] = {}
        self._folds: dict[Node, _Fold] = {}
        self._seen: set[Node] = set()
        for node in (*outputs, *stores.values()):
            self._visit(node)
        for node in dict.fromkeys((*outputs, *self._bases)):
            if node.kind != "reduce":
                self._loop(self._level(node), node.shape).nodes.append(node)
        if stores:
            top = max([self._level(x) for x in (*outputs, *self._bases, *stores.values())])
            for i, node in stores.items():
                self._loop(top, node.shape).stores.append((node, i))
        self._finish(name)

    def run(self, args: tuple) -> list:
        """Launch; the arrays of ``outputs``."""
        results: dict[Node, Any] = {}

        def value(node: Node) -> Any:
            found = results.get(node)
            if found is None:
                if node.kind in ("array", "scalar"):
                    return args[node.detail]
                found = results[node] = value(node.inputs[0])[node.detail]  # a view
            return found

        for step in self._steps:
            step.run(value, args, results)
        return [results[node] for node in self.outputs]

    # ---- scheduling -----------------------------------------------------------------------------------

    def _visit(self, node: Node) -> None:
        if node in self._seen:
            return
        self._seen.add(node)
        for x in node.inputs:
            self._visit(x)
        if node.kind == "reduce":
            self._folds[node] = _Fold(node, self._level(node.inputs[0]))
        elif node.kind == "view" and node.inputs[0].kind == "op":
            self._bases[node.inputs[0]] = None

    def _level(self, node: Node) -> int:
        """How many launches must come before one that reads this."""
        found = self._levels.get(node)
        if found is None:
            found = max([self._level(x) for x in node.inputs], default=0)
            if node.kind == "reduce" or node.kind == "view" and node.inputs[0].kind == "op":
                found += 1
            self._levels[node] = found
        return found

    def _loop(self, level: int, shape: tuple) -> _Loop:
        return self._loops.setdefault((level, shape), _Loop(level, shape))

    def _finish(self, name: str) -> None:
        def never(node: Node) -> bool:
            return False

        loops = list(self._loops.values())
        leaves: dict[Any, set] = {}
        for loop in loops:
            text = _Text(never, "")
            for node in (*loop.nodes, *[x for x, _ in loop.stores]):
                text.value(node, node.dtype)
            leaves[loop] = set(text.leaves)
        for loop in list(loops):  # what follows from one reduction alone
            folds = [self._folds[x] for x in leaves[loop] if x.kind == "reduce"]
            others = [x for x in leaves[loop] if x.kind not in ("reduce", "scalar")]
            if len(folds) == 1 and not others and not loop.stores and folds[0].node.shape == loop.shape:
                folds[0].after = loop
                loops.remove(loop)
        needed = {*self.outputs, *[x for loop in loops for x in leaves[loop]]}
        for fold in self._folds.values():
            text = _Text(never, "")
            text.value(fold.node.inputs[0], fold.node.inputs[0].dtype)
            leaves[fold] = set(text.leaves)
            needed |= leaves[fold]
        needed |= {x.inputs[0] for x in self._seen if x.kind == "view"}
        for fold in self._folds.values():
            fold.alone = fold.after is None or fold.node in needed
        storing = [loop for loop in loops if loop.stores]
        for i, later in enumerate(storing):
            written = {n for loop in storing[:i] for _, n in loop.stores}
            if any(x.kind == "array" and x.detail in written for x in leaves[later]):
                raise Unfusable("an argument is read after it is stored to")
        steps: list[Any] = [*loops, *self._folds.values()]
        self._steps = sorted(steps, key=lambda step: (step.level, bool(step.stores)))
        for k, step in enumerate(self._steps):
            step.finish(never, name if len(self._steps) == 1 else f"{name}_{k}")
