"""SciPy's functions under cupyx's names, for the cpu backend.

Only declared names (wire/functions.py) are here. SciPy is imported when one of them is first called,
so that a worker that never needs it neither has nor pays for it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from rgpu.server import objects, sparse
from rgpu.wire.functions import TABLE

_PREFIX = "cupyx.scipy."

#: what SciPy calls otherwise, or no longer has: module and function
_ELSEWHERE = {
    "special.btdtr": "special.betainc",
    "special.btdtri": "special.betaincinv",
    "signal.sosfreqz": "signal.freqz_sos",
}


class _Lazy:
    """A SciPy function that is found when it is first called."""

    def __init__(self, name: str) -> None:
        self.name = _ELSEWHERE.get(name, name)
        self.function: Callable[..., Any] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        function = self.function
        if function is None:
            module, _, name = self.name.rpartition(".")
            try:
                found = importlib.import_module(f"scipy.{module}")
            except ImportError:
                raise NotImplementedError(
                    f"cupyx.scipy.{self.name} needs SciPy on the server: pip install 'rgpu[cpu]'"
                ) from None
            function = self.function = getattr(found, name, None)
            if function is None:
                raise NotImplementedError(f"this server's SciPy has no scipy.{self.name}")
        return function(*args, **kwargs)


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
OVERRIDES.update(sparse.overrides("scipy.sparse"))
OVERRIDES["cupyx.scipy.special.sph_harm"] = _sph_harm
OVERRIDES["cupyx.rsqrt"] = lambda x: (1 / np.sqrt(x)).astype(np.sqrt(x[:0] if np.ndim(x) else x).dtype)
for _name, _ufunc in {"add": np.add, "max": np.maximum, "min": np.minimum}.items():
    OVERRIDES[f"cupyx.scatter_{_name}"] = _scatter(_ufunc)
