"""The alias: every name of CuPy's modules is the same module object as rgpu's."""

import importlib
import importlib.metadata
import importlib.util
import inspect
import pkgutil
import subprocess
import sys

import pytest

from rgpu.alias import AliasFinder, install, uninstall

pytestmark = pytest.mark.timeout(30)

TREE = {
    "__init__.py": "from fakegpu import cuda\nclass ndarray: pass\nndarray.__module__ = 'cupy'\nuseful = 1\n",
    "_version.py": "CUPY_VERSION = '14.2.0'\n",
    "linalg.py": "from fakegpu import ndarray\ndef solve(a, b): return a\n",
    "late.py": "import cupy.linalg\nlinalg = cupy.linalg\n",
    "star.py": "from cupy import *\n",
    "needy.py": "import a_module_nobody_has\n",
    "cuda/__init__.py": "from fakegpu.cuda import _runtime as runtime\n",
    "cuda/_runtime.py": "getDeviceCount = lambda: 2\n",
    "cuda/nccl.py": "",
    "cupyx/__init__.py": "",
    "cupyx/scipy/__init__.py": "",
    "cupyx/scipy/fft.py": "",
    "cupy_backends/__init__.py": "",
    "cupy_backends/cuda/__init__.py": "",
    "cupy_backends/cuda/stream.py": "",
}


def _ours(name):
    return name.partition(".")[0] in ("fakegpu", "cupy", "cupyx", "cupy_backends")


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A package of rgpu's form, aliased; everything is put back afterwards."""
    for name, text in TREE.items():
        path = tmp_path / "fakegpu" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    kept = {name: sys.modules.pop(name) for name in list(sys.modules) if _ours(name)}
    monkeypatch.setattr(sys, "meta_path", [f for f in sys.meta_path if not isinstance(f, AliasFinder)])
    install("fakegpu")
    yield tmp_path
    for name in [name for name in sys.modules if _ours(name)]:
        del sys.modules[name]
    sys.modules.update(kept)


def test_identity_in_every_spelling(tree):
    import cupy
    import cupy.linalg
    import cupyx.scipy.fft
    import fakegpu
    import fakegpu.cupyx.scipy.fft
    from cupy.linalg import solve
    from cupy_backends.cuda import stream

    assert cupy is fakegpu and sys.modules["cupy"] is fakegpu
    assert cupy.linalg is fakegpu.linalg and solve is fakegpu.linalg.solve
    assert cupyx is fakegpu.cupyx and cupyx.scipy.fft is fakegpu.cupyx.scipy.fft
    assert stream is sys.modules["fakegpu.cupy_backends.cuda.stream"]
    assert cupy.linalg.ndarray is cupy.ndarray


def test_alias_first_or_package_first_makes_no_difference(tree):
    import fakegpu.late  # imports cupy.linalg while fakegpu itself is known only by its own name

    assert fakegpu.late.linalg is importlib.import_module("fakegpu.linalg")


def test_a_module_bound_as_an_attribute_can_be_imported(tree):
    import cupy.cuda.runtime

    assert cupy.cuda.runtime is sys.modules["fakegpu.cuda._runtime"]
    assert cupy.cuda.runtime.getDeviceCount() == 2


def test_specs(tree):
    assert importlib.util.find_spec("cupy").name == "cupy"
    assert "fakegpu" not in sys.modules, "asking whether cupy exists must not import it"
    assert importlib.util.find_spec("cupy.cuda.nccl") is not None
    assert importlib.util.find_spec("cupy.cuda.cufile") is None
    import cupy
    import cupyx

    assert cupy.__spec__.name == "fakegpu" and cupyx.__spec__.name == "fakegpu.cupyx"
    assert importlib.util.find_spec("cupy") is cupy.__spec__
    assert importlib.reload(cupy) is cupy


def test_missing_names_are_the_usual_errors(tree):
    import cupy

    with pytest.raises(ModuleNotFoundError, match="cupy.nothing"):
        importlib.import_module("cupy.nothing")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("cupy.linalg.nothing")
    with pytest.raises(ImportError, match="nothing"):
        from cupy import nothing  # noqa: F401
    with pytest.raises(AttributeError):
        _ = cupy.nothing


def test_a_dependency_that_is_missing_is_named(tree):
    with pytest.raises(ModuleNotFoundError, match="a_module_nobody_has"):
        importlib.import_module("cupy.needy")


def test_star_import_and_inspection(tree):
    import cupy
    import fakegpu.star

    assert fakegpu.star.useful == 1 and fakegpu.star.ndarray is cupy.ndarray
    assert cupy.__name__ == "cupy", "array_api_compat asks for the name"
    assert {"linalg", "cuda"} <= {info.name for info in pkgutil.iter_modules(cupy.__path__)}
    importlib.import_module("cupy.linalg")
    assert "def solve" in inspect.getsource(cupy.linalg.solve)
    assert inspect.getmodule(cupy.linalg.solve) is cupy.linalg


def test_a_real_cupy_imported_before_is_refused(tree, monkeypatch):
    uninstall()
    other = type(sys)("cupy")
    other.__file__ = "/elsewhere/cupy/__init__.py"
    monkeypatch.setitem(sys.modules, "cupy", other)
    with pytest.raises(ImportError, match="/elsewhere/cupy.*before the first"):
        install("fakegpu")


def test_install_twice_and_uninstall(tree):
    install("fakegpu")
    assert sum(isinstance(f, AliasFinder) for f in sys.meta_path) == 1
    import cupy

    uninstall()
    uninstall()
    assert not any(name in sys.modules for name in ("cupy", "cupyx", "cupy.cuda"))
    assert cupy.__name__ == "fakegpu" and sys.modules["fakegpu"] is cupy
    assert not any(isinstance(f, AliasFinder) for f in sys.meta_path)


def test_a_python_without_the_package_says_so(tree):
    uninstall()
    install("a_package_nobody_has")
    with pytest.raises(ModuleNotFoundError, match="does not have a_package_nobody_has: install it there"):
        importlib.import_module("cupy")
    with pytest.raises(ModuleNotFoundError):
        importlib.util.find_spec("cupyx")


def test_other_imports_are_left_alone(tree):
    finder = next(f for f in sys.meta_path if isinstance(f, AliasFinder))
    assert finder.find_spec("json") is None and finder.find_spec("cupyish") is None
    assert finder.target("cupy.linalg") == "fakegpu.linalg"
    assert finder.target("cupyx.scipy") == "fakegpu.cupyx.scipy"


def test_the_version_that_programs_ask_for(tree):
    assert importlib.metadata.version("cupy") == "14.2.0"
    assert importlib.metadata.distribution("cupy").metadata["Name"] == "cupy"
    assert "cupy" in importlib.metadata.packages_distributions()["cupyx"]
    uninstall()
    assert "cupy" not in importlib.metadata.packages_distributions().get("cupyx", [])


def test_a_star_import_gives_cupys_names_and_no_others(tmp_path):
    program = tmp_path / "star.py"
    program.write_text(
        "from cupy import *\n"
        "from cupy.typing import ArrayLike, DTypeLike, NDArray\n"
        "import cupy, numpy\n"
        "assert float32 is numpy.float32 and pi == numpy.pi and random is cupy.random and sin is cupy.sin\n"
        "assert not {'connect', 'close', 'reset', 'stats', 'install', 'Any', 'annotations'} & set(globals())\n"
        "def f(x: NDArray, y: ndarray[tuple, numpy.dtype]) -> ArrayLike: ...\n"
    )
    subprocess.run(
        [sys.executable, "-m", "rgpu.cli", "run", "--", sys.executable, str(program)], check=True, timeout=30
    )


def test_dir_lists_cupys_names_and_no_others(tmp_path):
    program = tmp_path / "copies.py"
    program.write_text(
        "import cupy, cupy.linalg, cupy.fft, cupyx, rgpu.errors, rgpu.wire, rgpu.client\n"
        "def public(module): return {name for name in dir(module) if not name.startswith('_')}\n"
        "assert {'sin', 'ndarray', 'linalg'} <= public(cupy) and 'solve' in public(cupy.linalg)\n"
        "assert not public(cupy) - set(cupy.__all__), public(cupy) - set(cupy.__all__)\n"
        "assert not {'annotations', 'dispatch', 'Any', 'surface'} & (public(cupy.linalg) | public(cupy.fft))\n"
        "cupy.__name__ = 'rgpu'\n"
        "assert {'stats', 'install', 'sin'} <= public(cupy)\n"
    )
    subprocess.run(
        [sys.executable, "-m", "rgpu.cli", "run", "--", sys.executable, str(program)], check=True, timeout=30
    )
