"""One part of a distributed array: an array of one device, and the index it has in the whole."""

from __future__ import annotations

from typing import Any


class _Chunk:
    """``ready`` is an event after which ``array`` may be read from another stream (None: at once)."""

    def __init__(self, array: Any, ready: Any, index: tuple, *_: Any, **__: Any) -> None:
        self.array, self.ready, self.index = array, ready, index

    def __repr__(self) -> str:
        return f"<chunk {self.index} on device {self.array.device.id}>"
