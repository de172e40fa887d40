"""What a function of ``cupy.fuse`` does with its arguments: it is called once with stand-ins, which note every step.

The notes are a graph of values, each assigned once; what the function stored into its arguments is kept beside
it. Nothing is computed here. What cannot be noted raises ``Unfusable``, and the function then runs as it is
written; what CuPy refuses in a fused function raises ``Refused``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rgpu.client import predict
from rgpu.client.meta import broadcast, fresh
from rgpu.functions.recording import StandIn, recording
from rgpu.wire.functions import BY_NAME

_FULL = {(None, None, step) for step in (None, 1, -1)}
_SCALARS = (bool, int, float, complex, np.generic)
_WEAK = {"b": bool, "i": int, "u": int, "f": float, "c": complex}
_REDUCTIONS = {"amax": "max", "amin": "min"} | {name: name for name in ("sum", "prod", "max", "min", "any", "all")}


class Unfusable(Exception):
    """This function cannot become kernels here; it can still be run."""


class Refused(Exception):
    """CuPy refuses this in a fused function: ``error`` is what the program gets."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class Node:
    """A value: an argument (``array``, ``scalar``), a ``constant``, or what an ``op``, ``reduce`` or ``view`` makes
    of others. ``weak``: the Python type of a number that takes the dtype of what it meets."""

    __slots__ = ("detail", "dtype", "inputs", "kind", "shape", "weak")

    def __init__(self, kind: str, dtype: np.dtype, shape: tuple, inputs: tuple = (), detail: Any = None,
                 weak: Any = None) -> None:  # fmt: skip
        self.kind, self.dtype, self.shape, self.inputs = kind, dtype, shape, inputs
        self.detail, self.weak = detail, weak

    @property
    def known(self) -> Any:
        """What the rules of promotion need of it."""
        if self.weak is not None:
            return self.weak(1)
        return self.dtype.type(1) if self.kind in ("scalar", "constant") else fresh(self.shape, self.dtype)


def _refuse(kind: type[Exception], message: str) -> Callable[..., Any]:
    def method(self: Any, *_: Any) -> Any:
        raise Refused(kind(message))

    return method


class Traced(StandIn):
    """A stand-in for an array or a number; stores replace its node."""

    __array_ufunc__ = None
    __hash__ = object.__hash__

    def __init__(self, recorder: Recorder, node: Node) -> None:
        self._recorder, self._node = recorder, node
        self._shared = False  # with a view: a store would have to show in both

    dtype = property(lambda self: self._node.dtype)
    ndim = property(lambda self: len(self._node.shape))
    shape = property(_refuse(NotImplementedError, "`shape` is not supported, currently."))
    __bool__ = __int__ = __float__ = __complex__ = __index__ = _refuse(
        TypeError, "Cannot convert to Python scalar in cupy.fuse"
    )

    def __repr__(self) -> str:
        return f"<an array of a fused function: {self.dtype}, {self.ndim} dimensions>"

    def copy(self) -> Any:
        return self._recorder.ufunc("copy", (self,), {})

    def astype(self, dtype: Any, order: Any = None, casting: Any = None, subok: Any = None, copy: bool = True) -> Any:
        for name, given in (("order", order), ("casting", casting), ("subok", subok)):
            if given is not None:
                raise Refused(TypeError(f"{name} is not supported yet"))
        dtype = np.dtype(dtype)
        if not copy and dtype == self.dtype:
            return self
        return Traced(self._recorder, Node("op", dtype, self._node.shape, (self._node,), ("copy", (self._node.dtype,))))

    def __getitem__(self, index: Any) -> Any:
        return self._recorder.view(self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        if index is not Ellipsis and not (isinstance(index, slice) and index == slice(None)):
            raise Refused(ValueError("The fusion supports `[...]` or `[:]`."))
        self._recorder.copyto(self, value)


def _method(name: str) -> Callable[..., Any]:
    return lambda self, *args, **kwargs: self._recorder.call(name, (self, *args), kwargs)


def _operators() -> None:
    binary = {
        "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "true_divide", "floordiv": "floor_divide",
        "mod": "remainder", "pow": "power", "lshift": "left_shift", "rshift": "right_shift", "and": "bitwise_and",
        "or": "bitwise_or", "xor": "bitwise_xor",
    }  # fmt: skip
    compare = {"lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal", "eq": "equal"}
    compare["ne"] = "not_equal"
    for short, name in (binary | compare).items():
        setattr(Traced, f"__{short}__", lambda a, b, name=name: a._recorder.ufunc(name, (a, b), {}))
    for short, name in binary.items():
        setattr(Traced, f"__r{short}__", lambda a, b, name=name: a._recorder.ufunc(name, (b, a), {}))
        setattr(Traced, f"__i{short}__", lambda a, b, name=name: a._recorder.inplace(name, a, b))
    for short, name in (("neg", "negative"), ("pos", "positive"), ("invert", "invert"), ("abs", "absolute")):
        setattr(Traced, f"__{short}__", lambda a, name=name: a._recorder.ufunc(name, (a,), {}))
    for name in ("sum", "prod", "max", "min", "any", "all"):
        setattr(Traced, name, _method(name))


_operators()


class Recorder:
    """One look at a function. ``stores``: argument -> the value it holds in the end."""

    def __init__(self) -> None:
        self.stores: dict[int, Node] = {}

    def trace(self, function: Callable[..., Any], args: list) -> Any:
        """The function's result, of stand-ins. ``args`` are nodes or None; the same node is the same array."""
        made: dict[Node, Traced] = {}
        given = [x if x is None else made.setdefault(x, Traced(self, x)) for x in args]
        with recording(self):
            return function(*given)

    def node(self, x: Any) -> Node:
        if isinstance(x, Traced):
            return x._node
        if not isinstance(x, _SCALARS):
            raise Unfusable(f"{type(x)} is not supported in a fused function")
        weak = None if isinstance(x, np.generic) else type(x)
        return Node("constant", x.dtype if weak is None else np.dtype(weak), (), (), x, weak)  # type: ignore[union-attr]

    # ---- what the rooms of functions call -------------------------------------------------------------

    def ufunc(self, name: str, args: tuple, options: dict, out: Any = None) -> Any:
        """An element-wise function; ``out`` is one stand-in or None."""
        inputs = tuple([self.node(x) for x in args])
        dtype = options.pop("dtype", None)
        if options or predict.OLD_NUMPY:
            raise Unfusable(f"{sorted(options)} in a fused function")
        if name == "copy":
            result = Node("op", inputs[0].dtype, inputs[0].shape, inputs, ("copy", (inputs[0].dtype,)))
        else:
            result = self._element(name, inputs, dtype)
        if out is None:
            return Traced(self, result)
        return self._store(out, result, "same_kind")

    def inplace(self, name: str, a: Traced, b: Any) -> Any:
        if not a._node.shape and a._node.kind in ("scalar", "constant"):  # a number, which is bound anew
            return self.ufunc(name, (a, b), {})
        return self.ufunc(name, (a, b), {}, a)

    def call(self, name: str, args: tuple, kwargs: dict) -> Any:
        """A declared function."""
        if name in _REDUCTIONS:
            return self._reduce(_REDUCTIONS[name], *args, **kwargs)
        if name == "where" and len(args) == 3 and not kwargs:
            return self._where(args)
        if name == "clip":
            return self._clip(*args, **kwargs)
        if BY_NAME[name].kind in ("unary", "binary", "ufunc") and not kwargs:
            return self.ufunc(name, args, {})
        raise Unfusable(f"{name} in a fused function")

    def copyto(self, target: Any, value: Any, where: Any = None, casting: str = "unsafe") -> None:
        node = self.node(value)
        if node.weak is None and not np.can_cast(node.dtype, target.dtype, casting):
            raise Unfusable("the dtypes do not match")  # said when the function runs as it is
        if where is not None:
            node = self._where((where, value, target))._node
        self._store(target, node, "unsafe")

    def view(self, source: Traced, index: Any) -> Traced:
        parts = index if isinstance(index, tuple) else (index,)
        for x in parts:
            if isinstance(x, slice) and (x.start, x.stop, x.step) not in _FULL:
                raise Refused(NotImplementedError(
                    "Only full range ``x[::]`` or reverse ``x[::-1]`` is supported for basic slicing in CuPy fusion."
                ))  # fmt: skip
            if not (x is None or x is Ellipsis or isinstance(x, int | slice)):
                raise Refused(NotImplementedError("Advanced indexing is not supported, currently."))
        base = source._node
        shape = np.broadcast_to(np.empty((), bool), base.shape)[index].shape
        view = Traced(self, Node("view", base.dtype, shape, (base,), index))
        source._shared = view._shared = True
        return view

    # ---- rules ----------------------------------------------------------------------------------------

    def _element(self, name: str, inputs: tuple, dtype: Any) -> Node:
        limits = {} if dtype is None else {"dtype": np.dtype(dtype)}
        tree = predict.elementwise(name, tuple([x.known for x in inputs]), **limits)
        function = predict.numpy_function(name)
        if isinstance(tree, tuple) or not isinstance(function, np.ufunc):
            raise Unfusable(f"{name} in a fused function")
        limit = {} if dtype is None else {"signature": (*[None] * len(inputs), np.dtype(dtype))}
        kinds = tuple([x.dtype if x.weak is None else x.weak for x in inputs])
        loop = function.resolve_dtypes((*[np.dtype(x) if x is bool else x for x in kinds], None), **limit)[:-1]
        weak = _WEAK.get(tree.dtype.kind) if all(x.weak is not None for x in inputs) else None
        return Node("op", tree.dtype, tree.shape, inputs, (function.__name__, loop), weak)

    def _where(self, args: tuple) -> Traced:
        condition, *values = [self.node(x) for x in args]
        dtype = np.result_type(*[x.dtype if x.weak is None else x.weak(1) for x in values])
        shape = broadcast(*[x.shape for x in (condition, *values)])
        inputs = (condition, *values)
        return Traced(self, Node("op", dtype, shape, inputs, ("where", (np.dtype(bool), dtype, dtype))))

    def _clip(self, a: Any, a_min: Any = None, a_max: Any = None, out: Any = None) -> Any:
        found = a
        for name, limit in (("maximum", a_min), ("minimum", a_max)):
            if limit is not None:
                found = self.ufunc(name, (found, limit), {})
        return found if out is None else self._store(out, found._node, "same_kind")

    def _reduce(self, name: str, a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False,
                **rest: Any) -> Any:  # fmt: skip
        if keepdims:
            raise Refused(NotImplementedError("keepdims is not supported."))
        node = self.node(a)
        kwargs = {"axis": axis} | ({} if dtype is None else {"dtype": np.dtype(dtype)})
        tree = predict.predict(name, "reduce", (fresh(node.shape, node.dtype),), kwargs)
        if rest or node.kind in ("scalar", "constant") or type(tree) is not type(fresh((), node.dtype)):
            raise Unfusable(f"this {name} in a fused function")
        result = Node("reduce", tree.dtype, tree.shape, (node,), (name, axis))
        return Traced(self, result) if out is None else self._store(out, result, "unsafe")

    def _store(self, target: Any, value: Node, casting: Any) -> Any:
        if not isinstance(target, Traced):
            raise Unfusable("the output of a fused function is an array of its own")
        place = target._node
        if broadcast(value.shape, place.shape) != place.shape:
            raise Unfusable("the shapes do not match")  # said when the function runs as it is
        if value.weak is None and not np.can_cast(value.dtype, place.dtype, casting):
            raise Unfusable("the dtypes do not match")
        if target._shared:
            raise Unfusable("a store into an array that has views")
        target._node = Node("op", place.dtype, place.shape, (value,), ("copy", (place.dtype,)))
        argument = self._argument(place)
        if argument is not None:
            self.stores[argument] = target._node
        return target

    def _argument(self, node: Node) -> int | None:
        """The argument whose memory this value is in."""
        if node.kind == "array":
            return int(node.detail)
        return next((i for i, stored in self.stores.items() if stored is node), None)
