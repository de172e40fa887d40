"""pytest plugin: CuPy's own tests with ``cupy`` a bare alias of NumPy, and ``cupyx.scipy`` of SciPy.

What fails here tells CuPy from NumPy; what passes proves nothing about rgpu but its arithmetic.
Internals are stand-ins, as in ``cupy_on_rgpu``. Must not import rgpu's array class.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import os
import sys
import types
from pathlib import Path
from typing import Any

import numpy
import scipy
import stand_ins
from recorder import pytest_collection_modifyitems, pytest_collectreport, pytest_runtest_logreport  # noqa: F401

_SDIST = Path(os.environ["RGPU_CONFORMANCE_SDIST"])


class _Alias(types.ModuleType):
    """A module whose names are another's, and stand-ins where that has none."""

    def __getattr__(self, name: str) -> Any:
        behind = self.__dict__.get("_behind")
        if behind is not None and not name.startswith("__"):
            found = getattr(behind, name, None)
            if isinstance(found, types.ModuleType):
                return importlib.import_module(f"{self.__name__}.{name}")
            if found is not None:
                return found
        if name.startswith("__"):
            raise AttributeError(name)
        return stand_ins.missing(self.__name__, name)


class _Finder:
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.partition(".")[0] not in ("cupy", "cupyx", "cupy_backends"):
            return None
        if name == "cupy.testing" or name.startswith("cupy.testing."):
            return importlib.machinery.PathFinder.find_spec(name, [str(_SDIST.joinpath(*name.split(".")[:-1]))])
        return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: Any) -> types.ModuleType:
        return _Alias(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        module.__path__ = []
        module.__dict__["_behind"] = _behind(module.__name__)


def _behind(name: str) -> Any:
    """NumPy's module for a module of CuPy, SciPy's for one of cupyx.scipy."""
    for root, package in (("cupyx.scipy", scipy), ("cupy", numpy)):
        if name == root:
            return package
        if name.startswith(f"{root}."):
            real = package.__name__ + name.removeprefix(root)
            try:
                return importlib.import_module(real) if "._" not in name else None
            except ImportError:
                return None
    return None


def _install() -> None:
    stand_ins.OURS.clear()  # rgpu's own things
    stand_ins.VALUES["cupy.asnumpy"] = numpy.asarray
    sys.meta_path.insert(0, _Finder())  # type: ignore[arg-type]
    cupy = importlib.import_module("cupy")
    cupy.testing = importlib.import_module("cupy.testing")


def pytest_collection_finish(session: Any) -> None:
    stand_ins.collecting = False


_install()
