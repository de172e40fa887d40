"""What ``rgpu`` (and ``cupy`` under ``rgpu run``) contains: gathered here, computed elsewhere."""

from __future__ import annotations

from typing import Any

from rgpu import cuda
from rgpu._ndarray import ndarray
from rgpu.client.pool import close, connect, reset, stats
from rgpu.functions import kernels, namespace


def fill(names: dict[str, Any]) -> None:
    """Put CuPy's public names, and rgpu's own few, into a module's dictionary."""
    names.update(close=close, connect=connect, reset=reset, stats=stats, ndarray=ndarray)
    names.update(
        cuda=cuda,
        is_available=cuda.is_available,
        get_default_memory_pool=lambda: cuda.pools.default_pool,
        get_default_pinned_memory_pool=lambda: cuda.pinned_memory.default_pool,
    )
    names.update((name, getattr(kernels, name)) for name in kernels.__all__)
    namespace.fill(names, "cupy")
    names["__all__"] = sorted(name for name in names if not name.startswith("_"))
