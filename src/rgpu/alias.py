"""`import cupy` means rgpu: a finder that answers for cupy, cupyx and cupy_backends with rgpu's own modules.

`cupy.X` is rgpu.X, `cupyx.X` is rgpu.cupyx.X, `cupy_backends.X` is rgpu.cupy_backends.X: the same module
objects under a second name, so identity, isinstance and pickles agree. Every interpreter started by
`rgpu run` loads this file by its path, before anybody imports rgpu: it must import nothing but the standard
library's import machinery.
"""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import ModuleSpec

TYPE_CHECKING = False  # typing's own constant costs an import of typing
if TYPE_CHECKING:
    from types import ModuleType

ROOTS = ("cupy", "cupyx", "cupy_backends")
#: libraries compare the __name__ of these namespaces with CuPy's
NAMESPACES = (*ROOTS, "cupyx.scipy")


class AliasFinder:
    """Finds CuPy's module names among the modules of one package. Also the loader of what it finds."""

    def __init__(self, package: str = "rgpu") -> None:
        self.package = package
        self._specs: dict[str, ModuleSpec | None] = {}

    def target(self, name: str) -> str:
        """The module that stands behind an aliased name."""
        root, dot, rest = name.partition(".")
        return f"{self.package}{dot}{rest}" if root == "cupy" else f"{self.package}.{name}"

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name.partition(".")[0] not in ROOTS:
            return None
        found = self._real_spec(self.target(name))
        if found is None:
            if name in ROOTS:  # must not fall through to a CuPy on disk
                raise ModuleNotFoundError(self._why_missing(name), name=name)
            return None
        places = found.submodule_search_locations
        spec = ModuleSpec(name, self, origin=found.origin)  # type: ignore[arg-type]  # a Loader by its methods
        spec.submodule_search_locations = None if places is None else list(places)
        return spec

    def _real_spec(self, real: str) -> ModuleSpec | None:
        """The spec of the module behind, which may also be a module bound as an attribute of its parent."""
        from importlib.util import (
            find_spec,  # not at the top: four milliseconds at every start of an interpreter
        )

        try:
            if spec := find_spec(real):
                return spec
            bound = self._bound(real)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{real}.".startswith(f"{error.name}."):
                raise
            return None
        except ValueError:  # the module is there, made by hand, without a spec
            bound = sys.modules[real]
        return None if bound is None else getattr(bound, "__spec__", None) or ModuleSpec(real, None)

    @staticmethod
    def _bound(real: str) -> ModuleType | None:
        """`rgpu.cuda.runtime` may be no file but a name in rgpu.cuda."""
        parent, _, short = real.rpartition(".")
        value = getattr(importlib.import_module(parent), short, None) if parent else None
        return value if isinstance(value, type(sys)) else None

    def find_distributions(self, context: object) -> list[object]:
        """What ``importlib.metadata`` knows of CuPy: its name and version, which programs ask for."""
        name = getattr(context, "name", None)
        if name not in (None, "cupy") or self._real_spec(self.package) is None:
            return []
        from importlib.metadata import Distribution

        version = getattr(importlib.import_module(f"{self.package}._version"), "CUPY_VERSION", "0")
        texts = {
            "METADATA": f"Metadata-Version: 2.1\nName: cupy\nVersion: {version}\n",
            "top_level.txt": "\n".join(ROOTS),
        }

        class Alias(Distribution):
            def read_text(self, filename: str) -> str | None:
                return texts.get(filename)

            def locate_file(self, path: object) -> object:  # type: ignore[override]
                raise FileNotFoundError(f"cupy is an alias here, it has no file {path}")

        return [Alias()]

    def _why_missing(self, name: str) -> str:
        if self._real_spec(self.package) is None:
            return (
                f"{name!r} is aliased to {self.package} here (by `rgpu run` or `rgpu.install()`), but this "
                f"Python, {sys.executable}, does not have {self.package}: install it there, or use the "
                "Python that has it"
            )
        return f"No module named {name!r} ({self.package} does not have {self.target(name)!r})"

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        real = self.target(spec.name)
        try:
            module = importlib.import_module(real)
        except ModuleNotFoundError:
            bound = self._bound(real)
            if bound is None:
                raise
            module = bound
        self._specs[spec.name] = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """It has run under its own name; gives it back the spec that the import system replaced."""
        alias = module.__spec__.name  # type: ignore[union-attr]
        module.__spec__ = self._specs.pop(alias) or module.__spec__
        if alias in NAMESPACES:
            module.__name__ = alias


def _active() -> AliasFinder | None:
    return next((f for f in sys.meta_path if isinstance(f, AliasFinder)), None)


def install(package: str = "rgpu") -> None:
    """Make `import cupy`, `import cupyx` and all their submodules resolve to rgpu, in this process."""
    if _active():
        return
    for root in ROOTS:
        if other := sys.modules.get(root):
            raise ImportError(
                f"a real {root} is already imported, from {getattr(other, '__file__', None)}: call "
                "rgpu.install() before the first `import cupy`, or start the program with "
                "`rgpu run -- ...`",
                name=root,
            )
    sys.meta_path.insert(0, AliasFinder(package))


def uninstall() -> None:
    """Undo install(): later `import cupy` finds what is on disk. Modules handed out keep working."""
    finder = _active()
    if finder is None:
        return
    sys.meta_path.remove(finder)
    for name in [n for n in sys.modules if n.partition(".")[0] in ROOTS]:
        module = sys.modules.pop(name)
        if name in NAMESPACES and module.__spec__ is not None:
            module.__name__ = module.__spec__.name
