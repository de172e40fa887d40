"""What ``rgpu`` (and ``cupy`` under ``rgpu run``) contains: gathered here, computed elsewhere."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from rgpu import _util, cuda, surface
from rgpu._ndarray import ndarray
from rgpu.client.pool import close, connect, reset, stats
from rgpu.cuda.unified import unified
from rgpu.functions import kernels, namespace
from rgpu.functions.checkpoint import checkpoint, restore


def fill(names: dict[str, Any]) -> None:
    """Put CuPy's public names, and rgpu's own few, into a module's dictionary."""
    names.update(close=close, connect=connect, reset=reset, stats=stats, ndarray=ndarray)
    names.update(checkpoint=checkpoint, restore=restore)
    names.update(memoize=_util.memoize, clear_memo=_util.clear_memo)
    names.update(
        cuda=cuda,
        unified=unified,
        is_available=cuda.is_available,
        get_default_memory_pool=lambda: cuda.pools.default_pool,
        get_default_pinned_memory_pool=lambda: cuda.pinned_memory.default_pool,
        _default_memory_pool=cuda.pools.default_pool,  # Awkward Array frees by this name
        _default_pinned_memory_pool=cuda.pinned_memory.default_pool,
    )
    names.update((name, getattr(kernels, name)) for name in kernels.__all__)
    namespace.fill(names, "cupy")
    names["__all__"] = _public()


def _public() -> list[str]:
    """What `from cupy import *` gives: CuPy's names and no others, types and constants and modules too."""
    public = surface.names("cupy")
    modules = {name for name in public if surface.kind("cupy", name) == "module"}
    return [name for name in public if name not in modules or find_spec(surface.package_of(f"cupy.{name}"))]
