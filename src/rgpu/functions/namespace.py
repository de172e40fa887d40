"""Fills a namespace of the face from the declared functions and CuPy's list of names."""

from __future__ import annotations

from typing import Any

from rgpu.functions import creation, dispatch
from rgpu.functions.ufunc import UFUNCS
from rgpu.wire.functions import BY_NAME

_CREATION = """array asarray asanyarray ascontiguousarray asfortranarray empty zeros ones full empty_like zeros_like
ones_like full_like arange linspace eye identity asnumpy""".split()


def function(name: str) -> Any:
    """The user's callable of a declared function."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return dispatch.call(name, *args, **kwargs)

    call.__name__ = call.__qualname__ = name.rpartition(".")[2]
    call.__module__ = ".".join(["cupy", *name.split(".")[:-1]])
    call.__doc__ = f"CuPy's ``{name}``, on the current device."
    return call


def fill(names: dict, namespace: str) -> None:
    prefix = namespace.removeprefix("cupy").lstrip(".")
    for name, declared in BY_NAME.items():
        head, _, tail = name.rpartition(".")
        if head == prefix and declared.kind not in ("internal", "object"):
            names[tail] = UFUNCS.get(name) or function(name)
    if namespace == "cupy":
        for name in _CREATION:
            names[name] = getattr(creation, name)
