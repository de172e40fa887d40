"""SciPy's functions under cupyx's names, for the cpu backend.

Only declared names (wire/functions.py) are here. SciPy is imported when one of them is first called,
so that a worker that never needs it neither has nor pays for it.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from rgpu import surface
from rgpu.server import objects, sparse
from rgpu.server.cpu import sparse_solvers
from rgpu.wire.functions import TABLE

_PREFIX = "cupyx.scipy."

#: what SciPy calls otherwise, or no longer has: module and function
_ELSEWHERE = {
    "special.btdtr": "special.betainc",
    "special.btdtri": "special.betaincinv",
    "signal.sosfreqz": "signal.freqz_sos",
}


class _Lazy:
    """A SciPy function that is found when it is first called. It takes its arguments as CuPy does: some that SciPy
    wants by name are given by position there, and some have another name."""

    def __init__(self, name: str) -> None:
        self.declared, self.name = name, _ELSEWHERE.get(name, name)
        self.function: Callable[..., Any] | None = None
        self.by_place: list[str] = []  # SciPy's names of what it takes by position; none if it cannot tell
        self.names: set[str] = set()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        function = self.function or self._found()
        if self.names and (len(args) > len(self.by_place) or not self.names.issuperset(kwargs)):
            args, kwargs = self._renamed(args, kwargs)
        return function(*args, **kwargs)

    def _found(self) -> Callable[..., Any]:
        module, _, name = self.name.rpartition(".")
        try:
            found = importlib.import_module(f"scipy.{module}")
        except ImportError:
            raise NotImplementedError(
                f"cupyx.scipy.{self.name} needs SciPy on the server: pip install 'rgpu[cpu]'"
            ) from None
        function = getattr(found, name, None)
        if function is None:
            raise NotImplementedError(f"this server's SciPy has no scipy.{self.name}")
        try:
            parameters = inspect.signature(function).parameters.values()
        except ValueError:  # in C
            parameters = {}.values()
        if all(p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) for p in parameters):
            self.by_place = [p.name for p in parameters if p.kind == p.POSITIONAL_OR_KEYWORD]
            self.names = {p.name for p in parameters}
        self.function = function
        return function

    def _renamed(self, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        """The arguments by SciPy's names; None for a parameter that it does not have is left out."""
        module, _, name = self.declared.rpartition(".")
        signature = surface.signature(_PREFIX + module, name)
        theirs = list(signature.parameters) if signature else []
        count = len(self.by_place)
        named = {**dict(zip(theirs[count:], args[count:])), **kwargs}
        for cupys, scipys in zip(theirs, self.by_place):
            if cupys in named and cupys not in self.names:
                named[scipys] = named.pop(cupys)
        beyond = args[max(count, len(theirs)) :]  # too many for CuPy as well: SciPy says so
        return (*args[:count], *beyond), {key: x for key, x in named.items() if x is not None or key in self.names}


def _sph_harm(m: Any, n: Any, theta: Any, phi: Any) -> Any:
    from scipy import special

    return special.sph_harm_y(n, m, phi, theta)


def _scatter(ufunc: np.ufunc) -> Callable[..., None]:
    def scatter(array: np.ndarray, index: Any, value: Any) -> None:
        ufunc.at(array, index, value)

    return scatter


OVERRIDES: dict[str, Callable[..., Any]] = {
    function.name: _Lazy(function.name.removeprefix(_PREFIX))
    for function in TABLE
    if function.name.startswith(_PREFIX)
}

OVERRIDES.update(objects.overrides("scipy"))
OVERRIDES.update(sparse_solvers.MAKERS)
OVERRIDES.update(sparse.overrides("scipy.sparse", sparse_solvers.OPERATIONS))
OVERRIDES["cupyx.scipy.special.sph_harm"] = _sph_harm
OVERRIDES["cupyx.rsqrt"] = lambda x: (1 / np.sqrt(x)).astype(np.sqrt(x[:0] if np.ndim(x) else x).dtype)
for _name, _ufunc in {"add": np.add, "max": np.maximum, "min": np.minimum}.items():
    OVERRIDES[f"cupyx.scatter_{_name}"] = _scatter(_ufunc)
