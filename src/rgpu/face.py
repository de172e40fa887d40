"""What ``rgpu`` (and ``cupy`` under ``rgpu run``) contains: gathered here, computed elsewhere."""

from __future__ import annotations

from typing import Any

from rgpu.client.pool import close, connect, reset, stats
from rgpu.functions import namespace
from rgpu.ndarray import ndarray


def fill(names: dict[str, Any]) -> None:
    """Put CuPy's public names, and rgpu's own few, into a module's dictionary."""
    names.update(close=close, connect=connect, reset=reset, stats=stats, ndarray=ndarray)
    namespace.fill(names, "cupy")
    names["__all__"] = sorted(name for name in names if not name.startswith("_"))
