"""What CuPy offers, by name: the manifest, and an honest answer for what rgpu does not have yet.

The manifest (``manifest.json``, made by ``scripts/gen manifest``) is read on the first question, never at
import. A public name of CuPy that rgpu lacks becomes an object that raises NotImplementedError with its name
when used; a name that CuPy lacks too is an AttributeError. This module must never make a function look
implemented.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

_BUILTIN_TYPES = {"float": float, "int": int, "bool": bool, "complex": complex, "str": str}


# --- the manifest --------------------------------------------------------------------------------


@functools.cache
def _manifest() -> dict[str, Any]:
    return json.loads(Path(__file__).with_name("manifest.json").read_text())


def cupy_version() -> str:
    """The CuPy whose names these are."""
    return _manifest()["cupy"]


def namespaces() -> list[str]:
    """Every public module of CuPy: 'cupy', 'cupy.linalg', 'cupyx.scipy.fft', ..."""
    return list(_manifest()["namespaces"])


def names(namespace: str) -> list[str]:
    """The public names of one namespace; empty for one that CuPy does not have."""
    return list(_manifest()["namespaces"].get(namespace, ()))


def members(qualified_class: str) -> dict[str, list[str]]:
    """Public members of a class ('cupy.ndarray'): name -> ['method', signature] or ['property']."""
    return _manifest()["classes"].get(qualified_class, {})


def _entry(namespace: str, name: str) -> list[Any] | None:
    return _manifest()["namespaces"].get(namespace, {}).get(name)


def kind(namespace: str, name: str) -> str | None:
    """module, function, ufunc, gufunc, class, exception, dtype, constant, float or object.

    None: CuPy has no such name.
    """
    entry = _entry(namespace, name)
    return entry[0] if entry else None


class _Opaque:
    """Stands for a default value that is not a literal, such as a singleton of CuPy's."""

    def __repr__(self) -> str:
        return "..."


OPAQUE = _Opaque()


def _default(node: ast.expr) -> Any:
    if isinstance(node, ast.Name):
        return _BUILTIN_TYPES[node.id]
    value = ast.literal_eval(node)
    return OPAQUE if value is ... else value


@functools.cache
def parse_signature(text: str) -> inspect.Signature:
    """The signature written in the manifest, parsed and never run."""
    function = ast.parse(f"def f{text}: ...").body[0]
    if not isinstance(function, ast.FunctionDef):
        raise ValueError(f"not a signature: {text!r}")
    spec, Parameter = function.args, inspect.Parameter
    positional: list[tuple[ast.arg, Any]] = [(a, Parameter.POSITIONAL_ONLY) for a in spec.posonlyargs]
    positional += [(a, Parameter.POSITIONAL_OR_KEYWORD) for a in spec.args]
    bare: list[ast.expr | None] = [None] * (len(positional) - len(spec.defaults))
    defaults = [*bare, *spec.defaults]
    rows: list[tuple[str, Any, ast.expr | None]] = [
        (a.arg, how, d) for (a, how), d in zip(positional, defaults, strict=True)
    ]
    if spec.vararg:
        rows.append((spec.vararg.arg, Parameter.VAR_POSITIONAL, None))
    rows += [
        (a.arg, Parameter.KEYWORD_ONLY, d) for a, d in zip(spec.kwonlyargs, spec.kw_defaults, strict=True)
    ]
    if spec.kwarg:
        rows.append((spec.kwarg.arg, Parameter.VAR_KEYWORD, None))
    return inspect.Signature(
        [Parameter(name, how, default=Parameter.empty if d is None else _default(d)) for name, how, d in rows]
    )


def signature(namespace: str, name: str) -> inspect.Signature | None:
    """The signature CuPy gives a function, ufunc or class; None where it has none."""
    entry = _entry(namespace, name)
    if not entry or len(entry) < 2 or entry[0] not in ("function", "ufunc", "gufunc", "class"):
        return None
    return parse_signature(entry[1])


# --- names that are not there --------------------------------------------------------------------


def _refuse(qualified: str) -> NoReturn:
    raise NotImplementedError(
        f"{qualified} exists in CuPy {cupy_version()} but not in rgpu yet; "
        "docs/coverage.md lists what is there, `rgpu.surface.missing()` says the same"
    )


class Unimplemented:
    """A function or object of CuPy that rgpu lacks: it has a name and a signature, and refuses every use."""

    def __init__(self, namespace: str, name: str) -> None:
        self.__module__ = namespace
        self.__name__ = self.__qualname__ = name
        if sig := signature(namespace, name):
            self.__signature__ = sig

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        _refuse(f"{self.__module__}.{self.__name__}")

    def __getitem__(self, item: Any) -> NoReturn:
        _refuse(f"{self.__module__}.{self.__name__}")

    def __repr__(self) -> str:
        return f"<{self.__module__}.{self.__name__}: not implemented by rgpu>"


def _refuse_new(cls: type, *args: Any, **kwargs: Any) -> NoReturn:
    _refuse(f"{cls.__module__}.{cls.__qualname__}")


@functools.cache
def unimplemented(namespace: str, name: str) -> Any:
    """An object for a CuPy name that rgpu lacks. A class stays one, so that isinstance() and except work."""
    what = kind(namespace, name)
    if what not in ("class", "exception"):
        return Unimplemented(namespace, name)
    base = RuntimeError if what == "exception" else object
    body = {
        "__module__": namespace,
        "__new__": _refuse_new,
        "_rgpu_unimplemented": True,
        "__doc__": f"{namespace}.{name}: not implemented by rgpu.",
    }
    return type(name, (base,), body)


def is_unimplemented(value: object) -> bool:
    """True for what `unimplemented` made. A class derived from such a class is its author's own."""
    return isinstance(value, Unimplemented) or (
        isinstance(value, type) and "_rgpu_unimplemented" in vars(value)
    )


def _module(namespace: str) -> ModuleType | None:
    """rgpu's module for a CuPy namespace, or None; one that lacks a dependency is still an error."""
    path = package_of(namespace)
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name != path and not path.startswith(f"{error.name}."):
            raise
        return None


def resolve(namespace: str, name: str) -> Any:
    """A name the package did not define: a constant, a dtype, NumPy's own exception, else a refusal."""
    entry = _entry(namespace, name)
    if entry is None:
        raise AttributeError(f"module {namespace!r} has no attribute {name!r}")
    what, *fact = entry
    if what == "module":
        module = _module(f"{namespace}.{name}")
        if module is None:
            raise AttributeError(
                f"module {namespace!r} has no attribute {name!r} in rgpu yet "
                "(CuPy has that module; see docs/coverage.md)"
            )
        return module
    if what == "constant":
        return fact[0]
    if what == "float":
        return float(fact[0])
    if what == "dtype":
        return getattr(importlib.import_module("numpy"), fact[0])
    if what == "exception" and fact[0].startswith("numpy."):
        module, _, short = fact[0].rpartition(".")
        return getattr(importlib.import_module(module), short, unimplemented(namespace, name))
    return unimplemented(namespace, name)


# --- the package's side --------------------------------------------------------------------------


def package_of(namespace: str) -> str:
    """'cupy.linalg' -> 'rgpu.linalg', 'cupyx.jit' -> 'rgpu.cupyx.jit'."""
    root, dot, rest = namespace.partition(".")
    return f"rgpu{dot}{rest}" if root == "cupy" else f"rgpu.{namespace}"


def namespace_of(module_name: str) -> str:
    """'rgpu.linalg' -> 'cupy.linalg', 'rgpu.cupyx.jit' -> 'cupyx.jit'."""
    _, _, rest = module_name.partition(".")
    if rest.partition(".")[0] in ("cupyx", "cupy_backends"):
        return rest
    return f"cupy.{rest}" if rest else "cupy"


def face(module_name: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The module-level ``__getattr__`` and ``__dir__`` of a CuPy namespace:

    ``__getattr__, __dir__ = surface.face("rgpu.linalg")``. What the module itself defines comes first.
    """
    namespace = namespace_of(module_name)

    def getattr_(name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"module {namespace!r} has no attribute {name!r}")
        return resolve(namespace, name)

    def dir_() -> list[str]:
        private = (name for name in vars(sys.modules[module_name]) if name.startswith("_"))
        return sorted({*private, *names(namespace)})  # the rest is how it is made: programs copy by dir()

    return getattr_, dir_


def lookup(namespace: str, name: str) -> Any:
    """What a program gets for a CuPy name: rgpu's own object, else `unimplemented`."""
    module = _module(namespace)
    value = getattr(module, name, None)
    absent = value is None and not hasattr(module, name)
    return unimplemented(namespace, name) if absent else value


def missing(namespace: str = "cupy") -> list[str]:
    """The public names of a CuPy namespace that rgpu refuses."""
    return [
        name
        for name in names(namespace)
        if kind(namespace, name) != "module" and is_unimplemented(lookup(namespace, name))
    ]
