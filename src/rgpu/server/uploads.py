"""What a session's client has uploaded and may upload again: kept in slots that the client numbers.

Of this session alone and with it gone; bounded in number and bytes, whatever the client asks for. Never looks
at the content.
"""

from __future__ import annotations

from typing import Any

from rgpu.errors import ProtocolError
from rgpu.wire import limits


class UploadsMixin:
    """Part of an executor."""

    backend: Any
    table: Any
    array: Any
    settle: Any

    def __init__(self) -> None:
        super().__init__()
        self.uploads: dict[int, bytes] = {}

    def do_keep(self, slot: int, handle: int) -> None:
        array = self.array(self.table.get(handle))
        others = sum(len(kept) for number, kept in self.uploads.items() if number != slot)
        if slot >= limits.UPLOADS or others + array.nbytes > limits.UPLOAD_BYTES:
            raise ProtocolError(f"more than {limits.UPLOADS} uploads or {limits.UPLOAD_BYTES} bytes are to be kept")
        self.uploads[slot] = bytes(self.backend.lend(array))

    def do_recall(self, slot: int, handle: int) -> None:
        kept = self.uploads.get(slot)
        target = self.array(self.table.get(handle))
        if kept is None or target.nbytes != len(kept):
            raise RuntimeError(f"what was uploaded before is not there to fill {target.nbytes} bytes; upload it again")
        self.settle()
        self.backend.write(target, 0, kept)

    def do_discard(self, slots: list) -> None:
        for slot in slots:
            self.uploads.pop(slot, None)
