"""rgpu: the CuPy API on the GPUs of other machines.

``import rgpu as cp`` and write CuPy. ``RGPU_SERVERS=host:port,...`` names the servers; with none
a local one is started by itself. Names load at first use, so that the command-line tools and the
daemon, which live in this package too, start fast.
"""

from __future__ import annotations

from typing import Any

from rgpu._version import __version__ as __version__


_loaded = False
_FACE_FIRST = {"ndarray", "install"}  # a class and a function that live in modules of the same name


def __getattr__(name: str) -> Any:
    # Runs for names that are not there yet: a submodule, or, the first time, a name of the face.
    global _loaded
    import importlib.util

    if name.startswith("__") and name != "__all__":
        raise AttributeError(f"module 'cupy' has no attribute {name!r}")
    if name not in _FACE_FIRST and importlib.util.find_spec(f"{__name__}.{name}") is not None:
        return importlib.import_module(f"{__name__}.{name}")
    if not _loaded:
        _loaded = True
        importlib.import_module("rgpu.face").fill(globals())
        if name in globals():
            return globals()[name]
    raise AttributeError(f"module 'cupy' has no attribute {name!r}")


def __dir__() -> list[str]:
    try:
        __getattr__("__all__")
    except AttributeError:
        pass
    return sorted(name for name in globals() if not name.startswith("_"))
