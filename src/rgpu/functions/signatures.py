"""CuPy's signatures, enforced where the call is made: a wrong keyword is a TypeError on the user's line.

The manifest is read at the first such call, never at import. Parameters without a default become
positional, because CuPy and NumPy do not always name them alike; nothing else is changed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from rgpu import surface

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Lazy(inspect.Signature):
    """What ``inspect.signature`` and ``help`` show of a function: CuPy's signature, read when somebody looks."""

    __slots__ = ("_of",)
    _return_annotation = inspect.Signature.empty  # type: ignore[assignment]

    def __init__(self, namespace: str, name: str) -> None:
        self._of = namespace, name

    @property
    def _parameters(self) -> Any:  # type: ignore[override]
        found = surface.signature(*self._of)
        return inspect.signature(_anything).parameters if found is None else found.parameters

    def __reduce__(self) -> Any:
        return Lazy, self._of


def _anything(*args: Any, **kwargs: Any) -> Any: ...


def show(names: dict, namespace: str) -> None:
    """Give functions of a namespace that take anything, and check it themselves, CuPy's signatures to show."""
    anything = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
    for name, value in names.items():
        code = getattr(inspect.unwrap(value), "__code__", None) if inspect.isroutine(value) else None
        if code is not None and code.co_flags & anything == anything and not hasattr(value, "__signature__"):
            value.__signature__ = Lazy(namespace, name)


class _Shape:
    """What of a signature matters for checking a call quickly."""

    def __init__(self, signature: inspect.Signature) -> None:
        parameters = signature.parameters.values()
        kinds = {p.kind for p in parameters}
        self.positional = [p.name for p in parameters if p.kind in _POSITIONAL]
        self.required = [p.name for p in parameters if p.kind in _POSITIONAL and p.default is p.empty]
        self.keywords = {
            p.name
            for p in parameters
            if p.kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        }
        self.many = inspect.Parameter.VAR_POSITIONAL in kinds
        self.any_keyword = inspect.Parameter.VAR_KEYWORD in kinds


def binder(name: str) -> Callable[[tuple, dict], tuple[tuple, dict]]:
    """A function that checks the arguments of a call of the declared function ``name``."""
    shape: _Shape | None = None
    known = False
    prefix, _, tail = name.rpartition(".")

    def bind(args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        nonlocal shape, known
        if not known:
            signature = surface.signature(f"cupy.{prefix}".rstrip("."), tail)
            shape, known = _Shape(signature) if signature is not None else None, True
        return (args, kwargs) if shape is None else _bound(tail, shape, args, kwargs)

    return bind


def _bound(name: str, shape: _Shape, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    count = len(args)
    if count > len(shape.positional) and not shape.many:
        raise TypeError(f"{name}() takes {len(shape.positional)} positional arguments but {count} were given")
    if not kwargs:
        if count < len(shape.required):
            missing = ", ".join(repr(x) for x in shape.required[count:])
            raise TypeError(f"{name}() missing required arguments: {missing}")
        return args, kwargs
    for key in kwargs:
        if key not in shape.keywords and not shape.any_keyword:
            raise TypeError(f"{name}() got an unexpected keyword argument {key!r}")
        if key in shape.positional[:count]:
            raise TypeError(f"{name}() got multiple values for argument {key!r}")
    rest = dict(kwargs)
    try:
        more = [rest.pop(key) for key in shape.required[count:]]
    except KeyError as error:
        raise TypeError(f"{name}() missing required argument: {error}") from None
    return (*args, *more), rest
