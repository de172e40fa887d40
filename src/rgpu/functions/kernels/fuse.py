"""``cupy.fuse``: the decorator. A function is looked at once for each kind of its arguments and runs as kernels.

A kernel costs its compilation, so that the first calls with few elements run step by step (RGPU_FUSE_AFTER).
What cannot be a kernel (a function without a formula, arrays that overlap and change, no element at all, a server
that runs no client code) runs as it is written, with the same results.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from rgpu.client.remote import Remote, root_of
from rgpu.functions import recording
from rgpu.functions.kernels import launch, stepwise
from rgpu.functions.kernels.fused import Plan
from rgpu.functions.kernels.trace import Node, Recorder, Refused, Traced, Unfusable

_ARGUMENTS = (Remote, np.ndarray, np.generic, int, float, complex, bool, type(None))
_KEPT = 1024  # layouts of arguments of one function
_LARGE = 1 << 16  # elements for which a kernel is made at once


class _Ready:
    """A plan, and how its values are returned: ``size`` None is one array, -1 nothing."""

    def __init__(self, plan: Plan, size: int | None) -> None:
        self.plan, self.size, self.calls = plan, size, 0

    def due(self, args: tuple, after: int) -> bool:
        """Whether the compiler's half second pays: many elements, or more than ``after`` calls."""
        self.calls += 1
        return self.calls > after or any(x._metadata.size >= _LARGE for x in args if isinstance(x, Remote))

    def __call__(self, args: tuple, after: int) -> Any:
        plan = self.plan
        found = plan.run(args) if self.due(args, after) else stepwise.run(plan.outputs, plan.stores, args)
        return found[0] if self.size is None else None if self.size < 0 else tuple(found)


class Fusion:
    """A fused function. ``name`` is its kernel's."""

    __module__ = "cupy._core.fusion"

    def __init__(self, func: Callable[..., Any], name: str | None = None) -> None:
        self.func, self.name = func, name or func.__name__
        self._known: dict[tuple, _Ready | None] = {}  # by layouts of arguments
        self._alike: dict[tuple, _Ready | None] = {}  # by what of them decides
        functools.update_wrapper(self, func)

    def __repr__(self) -> str:
        return f"<Fusion '{self.name}'>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if kwargs or recording.active() or not any(isinstance(x, Remote) for x in args):
            return self.func(*args, **kwargs)
        for x in args:
            if not isinstance(x, _ARGUMENTS):
                types = ", ".join(repr(type(x)) for x in args)
                raise TypeError(f"Invalid argument type for '{self.name}': ({types})")
        handles = [x._handle if isinstance(x, Remote) else None for x in args]
        key = tuple([
            (x._metadata, handles.index(x._handle)) if isinstance(x, Remote)
            else x.dtype if isinstance(x, np.generic) else type(x)
            for x in args
        ])  # fmt: skip
        if key in self._known:
            ready = self._known[key]
        else:
            if len(self._known) >= _KEPT:
                self.clear_cache()
            ready = self._known[key] = self._look(key, args)
        if ready is None or not launch.allowed() or ready.plan.stores and _overlap(args):
            return self.func(*args)
        return ready(args, launch.pool.current_stream().device.settings.fuse_after)

    def clear_cache(self) -> None:
        self._known.clear()
        self._alike.clear()

    def _look(self, key: tuple, args: tuple) -> _Ready | None:
        if any(isinstance(x, np.ndarray) or isinstance(x, Remote) and not x._metadata.size for x in args):
            return None
        classes: dict[int, int] = {1: -1}  # broadcasting asks which extents are equal, and which are 1
        alike = tuple([
            (x[0].dtype, tuple([classes.setdefault(n, len(classes)) for n in x[0].shape]), x[1])
            if isinstance(x, tuple) else x
            for x in key
        ])  # fmt: skip
        if alike not in self._alike:
            self._alike[alike] = self._traced(key, args)
        return self._alike[alike]

    def _traced(self, key: tuple, args: tuple) -> _Ready | None:
        nodes: list[Node | None] = []
        for i, (x, kind) in enumerate(zip(args, key)):
            if isinstance(x, Remote):
                first = kind[1]
                nodes.append(nodes[first] if first < i else Node("array", x._metadata.dtype, x._metadata.shape, (), i))
            elif x is None:
                nodes.append(None)
            else:
                dtype = kind if isinstance(kind, np.dtype) else np.dtype(kind)
                nodes.append(Node("scalar", dtype, (), (), i, None if isinstance(kind, np.dtype) else kind))
        recorder = Recorder()
        try:
            result = recorder.trace(self.func, nodes)
            found = result if isinstance(result, tuple) else () if result is None else (result,)
            if not all(isinstance(x, Traced) for x in found):
                raise Unfusable("a fused function returns arrays")
            size = len(found) if isinstance(result, tuple) else -1 if result is None else None
            name = re.sub(r"\W", "_", self.name)
            return _Ready(Plan(name, [x._node for x in found], recorder.stores), size)
        except Refused as refused:
            raise refused.error from None
        except Exception:  # whatever is wrong shows when the function runs as it is
            return None


def _overlap(args: tuple) -> bool:
    """Whether two different arrays share memory: a store into one would show in the other."""
    arrays = {x._handle: x for x in args if isinstance(x, Remote)}.values()
    roots = [root_of(x)._handle for x in arrays]
    return len(set(roots)) < len(roots)


def fuse(*args: Any, **kwargs: Any) -> Any:
    """Decorate a function of arrays: ``@fuse``, ``@fuse()`` or ``@fuse(kernel_name=...)``.

    Its element-wise functions and reductions become one kernel where their shapes allow it, else as few as possible.
    The function runs once for each kind of arguments (dtypes, which extents are equal) with stand-ins: it must not
    look at values. Raises TypeError where it does.
    """
    if len(args) == 1 and not kwargs and callable(args[0]):
        return Fusion(args[0])
    name = kwargs.pop("kernel_name", args[0] if args else None)
    if kwargs or len(args) > 1:
        raise TypeError(f"fuse() got unexpected arguments {sorted(kwargs)}")
    return lambda func: Fusion(func, name)
