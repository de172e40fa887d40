"""Fills a namespace of the face from the declared functions and the rooms that make names."""

from __future__ import annotations

from typing import Any

import numpy as np

from rgpu.client.quick import quick
from rgpu.client.remote import Remote
from rgpu.functions import (
    callables,
    cautions,
    creation,
    dispatch,
    files,
    grids,
    host,
    indexing,
    iterate,
    mutate,
    padding,
    polynomials,
    products,
    shapes,
    signatures,
)
from rgpu.functions.ufunc import UFUNCS, ufunc
from rgpu.wire.functions import BY_NAME

_CREATION = """array asarray asanyarray ascontiguousarray asfortranarray empty zeros ones full empty_like zeros_like
ones_like full_like arange linspace eye identity from_dlpack fromDlpack""".split()

#: CuPy's second names for functions of the table
_ALIASES = {"alltrue": "all", "sometrue": "any", "product": "prod", "cumproduct": "cumprod",
            "round_": "around", "trapz": "trapezoid"}  # fmt: skip


#: CuPy calls the method of this name of whatever it is given: what is NumPy's or distributed stays so
_BY_METHOD = {"sum": "sum", "prod": "prod", "mean": "mean", "var": "var", "std": "std",
              "max": "max", "min": "min", "amax": "max", "amin": "min"}  # fmt: skip


def _reduces_itself(a: Any) -> bool:
    return isinstance(a, np.ndarray) or hasattr(type(a), "__cupy_override_reduction_kernel__")


def function(name: str) -> Any:
    """The user's callable of a declared function."""

    bind, may_fail, method = signatures.binder(name), name in cautions.MAY_FAIL, _BY_METHOD.get(name)

    def call(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = bind(args, kwargs)
        if method is not None and not isinstance(args[0], Remote) and _reduces_itself(args[0]):
            return getattr(args[0], method)(*args[1:], **kwargs)
        if may_fail and getattr(cautions.error_states, "linalg", "ignore") == "raise":
            return cautions.strictly(name, args, kwargs)
        return dispatch.call(name, *args, **kwargs)

    call.__name__ = call.__qualname__ = name.rpartition(".")[2]
    call.__module__ = ".".join(["cupy", *name.split(".")[:-1]])
    call.__doc__ = f"CuPy's ``{name}``, on the current device."
    return call if may_fail else quick()(call)


def fill(names: dict, namespace: str) -> None:
    prefix = namespace.removeprefix("cupy").lstrip(".")
    for name, declared in BY_NAME.items():
        head, _, tail = name.rpartition(".")
        if head == prefix and declared.kind not in ("internal", "object"):
            names[tail] = UFUNCS.get(name) or function(name)
    if namespace == "cupy":
        for alias, name in _ALIASES.items():
            if name in names:
                names.setdefault(alias, names[name])
        for name in _CREATION:
            if hasattr(creation, name):
                names[name] = getattr(creation, name)
        host.fill(names)
        files.fill(names)
        for room in (shapes, cautions, grids, callables, mutate, padding, polynomials, products):
            names.update(room.NAMES)
        names.update(ufunc=ufunc, flatiter=iterate.flatiter, broadcast=iterate.broadcast)
        names.update(copyto=indexing.copyto, newaxis=None, e=np.e, pi=np.pi)
    signatures.show(names, namespace)
