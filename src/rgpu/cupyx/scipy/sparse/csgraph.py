"""``cupyx.scipy.sparse.csgraph``: graphs as sparse matrices."""

from __future__ import annotations

from typing import Any

from rgpu import surface
from rgpu.cupyx.scipy.sparse import _call


def connected_components(
    csgraph: Any, directed: bool = True, connection: str = "weak", return_labels: bool = True
) -> Any:
    """(number of components, label of each node), or the number alone. ``csgraph``: sparse or dense (N, N)."""
    if connection not in ("weak", "strong"):
        raise ValueError("connection must be 'weak' or 'strong'")
    if csgraph.ndim != 2 or csgraph.shape[0] != csgraph.shape[1]:
        raise ValueError("graph should be a square array")
    return _call.ask("csgraph.connected_components", csgraph, directed, connection, return_labels)


__getattr__, __dir__ = surface.face(__name__)
