"""``cupyx.scipy.sparse.linalg``: solvers and factors of sparse matrices, run whole on the worker.

Operators of Python callables, and callbacks, make an iteration run here (``_iterative``); where that is not
there they are refused by name.
"""

from __future__ import annotations

from typing import Any

from rgpu import surface
from rgpu.cupyx.scipy import _objects
from rgpu.cupyx.scipy.sparse import _call, _iterative
from rgpu.cupyx.scipy.sparse._operators import LinearOperator as LinearOperator
from rgpu.cupyx.scipy.sparse._operators import aslinearoperator as aslinearoperator
from rgpu.wire.functions import TABLE

_PREFIX = "cupyx.scipy.sparse.linalg."


def _function(name: str) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        return _call.ask(f"linalg.{name}", *args, **kwargs)

    call.__name__ = call.__qualname__ = name
    call.__module__ = _PREFIX[:-1]
    call.__doc__ = f"CuPy's ``{_PREFIX}{name}``, on the current device."
    return call


globals().update(
    {
        function.name.removeprefix(_PREFIX): _function(function.name.removeprefix(_PREFIX))
        for function in TABLE
        if function.kind == "sparse" and function.name.startswith(_PREFIX)
    }
)
globals().update({name: _iterative.solver(name) for name in ("cg", "cgs", "bicgstab")}, gmres=_iterative.gmres)


def factorized(A: Any) -> Any:  # noqa: N803 - CuPy's name
    """A function that solves ``A x = b`` for each ``b``, with A factored once."""
    return globals()["splu"](A).solve


_objects.fill(globals(), "sparse.linalg")
__getattr__, __dir__ = surface.face(__name__)
