"""rgpu: the CuPy API on the GPUs of other machines.

``import rgpu as cp`` and write CuPy. ``RGPU_SERVERS=host:port,...`` names the servers; with none
a local one is started by itself. Names load at first use, so that the command-line tools and the
daemon, which live in this package too, start fast.
"""

from __future__ import annotations

from typing import Any

from rgpu._version import __version__ as __version__


_loaded = False


def __getattr__(name: str) -> Any:
    # Runs for names that are not there yet: the first time, the face brings every public name of CuPy.
    global _loaded
    if not _loaded and (not name.startswith("__") or name == "__all__"):
        _loaded = True
        import importlib

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
