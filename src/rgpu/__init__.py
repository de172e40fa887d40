"""rgpu: the CuPy API on the GPUs of other machines.

``import rgpu as cp`` and write CuPy. ``RGPU_SERVERS=host:port,...`` names the servers; with none
a local one is started by itself. Names load at first use, so that the command-line tools and the
daemon, which live in this package too, start fast.
"""

from __future__ import annotations

import threading
from typing import Any

from rgpu import ending as _ending  # noqa: F401 - the handlers that a program registers from here on run before ours
from rgpu._version import CUPY_VERSION as __version__  # the interface's: programs compare it
from rgpu.alias import install, uninstall

__all__: list[str]
_PRIVATE = ("_core", "_environment", "_util")  # modules that CuPy calls private, and libraries use
_loaded = False
_loading = threading.RLock()


def __getattr__(name: str) -> Any:
    # Runs for names that are not there yet: a submodule, a name of the face, or one of CuPy's that is missing.
    global _loaded
    import importlib.util

    if name.startswith("_") and name != "__all__" and name not in _PRIVATE:
        raise AttributeError(f"module 'cupy' has no attribute {name!r}")
    if importlib.util.find_spec(f"rgpu.{name}") is not None:
        return importlib.import_module(f"rgpu.{name}")
    with _loading:  # another thread may be in the middle of it
        if not _loaded:
            _loaded = True
            importlib.import_module("rgpu.face").fill(globals())
        if name in globals():
            return globals()[name]
    return importlib.import_module("rgpu.surface").resolve("cupy", name)


def __dir__() -> list[str]:
    from rgpu import surface

    # As `cupy` it lists what CuPy lists: programs copy namespaces by dir(), and rgpu's own modules are none of theirs.
    own = (name for name in globals() if name.startswith("_") or __name__ != "cupy")
    return sorted({*own, *surface.names("cupy")})


def load_ipython_extension(shell: object) -> None:
    """``%load_ext rgpu``: from then on ``import cupy`` in the notebook is rgpu."""
    install()


def unload_ipython_extension(shell: object) -> None:
    uninstall()
