"""``cupyx.scipy.sparse.linalg``: solvers and factors of sparse matrices, run whole on the worker.

Operators of Python callables, and callbacks, make an iteration run here (``_iterative``); where that is not
there they are refused by name.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rgpu import surface
from rgpu.client.remote import Remote
from rgpu.cupyx.scipy import _objects
from rgpu.cupyx.scipy.sparse import _call, _iterative
from rgpu.cupyx.scipy.sparse._base import _spbase
from rgpu.cupyx.scipy.sparse._indices import int32_only
from rgpu.cupyx.scipy.sparse._operators import LinearOperator as LinearOperator
from rgpu.cupyx.scipy.sparse._operators import aslinearoperator as aslinearoperator
from rgpu.wire.functions import TABLE

_PREFIX = "cupyx.scipy.sparse.linalg."


#: solvers that are cuSOLVER's, and take indices of 32 bits only
_INT32 = {"spsolve", "lsqr"}


def _function(name: str) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        if name in _INT32 and args and isinstance(args[0], _spbase):
            int32_only(args[0], name)
        made = _call.ask(f"linalg.{name}", *args, **kwargs)
        return made.copy(order="F") if name == "spsolve" and isinstance(made, Remote) and made.ndim == 2 else made

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
globals().update({name: _iterative.solver(name) for name in ("cg", "cgs", "bicgstab")})
globals().update(gmres=_iterative.gmres, minres=_iterative.minres)


def _checked_spectrum(a: Any, k: int, which: str, known: str, square: bool) -> None:
    """What CuPy refuses before it looks for k eigenvalues or singular values."""
    if a.ndim != 2 or (square and a.shape[0] != a.shape[1]):
        raise ValueError(f"expected {'square matrix' if square else '2D'} (shape: {a.shape})")
    if np.dtype(a.dtype).char not in "fdFD":
        raise TypeError(f"unsupported dtype (actual: {a.dtype})")
    if not 0 < k < min(a.shape):
        raise ValueError(f"k must be greater than 0 and smaller than {min(a.shape)} (actual: {k})")
    if which not in known.split():
        raise ValueError(f"which must be one of {known} (actual: {which})")


def eigsh(
    a: Any, k: int = 6, *, which: str = "LM", v0: Any = None, ncv: Any = None, maxiter: Any = None, tol: float = 0,
    return_eigenvectors: bool = True,
) -> Any:  # fmt: skip
    """k eigenvalues (and eigenvectors) of a symmetric or Hermitian matrix, dense or sparse."""
    _checked_spectrum(a, k, which, "LM LA SA", True)
    options = {"v0": v0, "maxiter": maxiter, "ncv": ncv if ncv is None else min(max(ncv, k + 2), a.shape[0])}
    options = {key: x for key, x in options.items() if x is not None}
    vectors = {"return_eigenvectors": return_eigenvectors}
    return _call.ask("linalg.eigsh", a, k, which=which, tol=tol, **vectors, **options)


def svds(
    a: Any, k: int = 6, *, ncv: Any = None, tol: float = 0, which: str = "LM", maxiter: Any = None,
    return_singular_vectors: bool = True,
) -> Any:  # fmt: skip
    """k singular values (and vectors) of a matrix, dense or sparse."""
    _checked_spectrum(a, k, which, "LM", False)
    options = {key: x for key, x in (("ncv", ncv), ("maxiter", maxiter)) if x is not None}
    vectors = {"return_singular_vectors": return_singular_vectors}
    return _call.ask("linalg.svds", a, k, which=which, tol=tol, **vectors, **options)


def factorized(A: Any) -> Any:  # noqa: N803 - CuPy's name
    """A function that solves ``A x = b`` for each ``b``, with A factored once."""
    return globals()["splu"](A).solve


_objects.fill(globals(), "sparse.linalg")
__getattr__, __dir__ = surface.face(__name__)
