"""Memory in which uploads wait until the worker has them, kept for the next ones.

A copy into fresh pages costs several times what the same copy costs into memory that was used before. Bounded;
what is handed out comes back by itself when nobody refers to it any more. Knows no streams.
"""

from __future__ import annotations

import weakref

import numpy as np

PAGE = 4096
SMALL = 32 << 10  # bytes below which Python's own memory has its pages already
KEPT = 16 << 20  # bytes that wait for their next use, of all sizes together


class Staging:
    """Copies, in memory that is used again. From any thread."""

    def __init__(self) -> None:
        self._free: dict[int, list[tuple[np.ndarray, int]]] = {}  # by size: memory, and its address
        self._lent: dict[int, weakref.ref] = {}
        self._kept = 0

    def copy(self, data: memoryview) -> memoryview | bytes:
        """The same bytes, which stay as they are."""
        size = len(data)
        if size < SMALL:
            return bytes(data)
        whole = 1 << (size - 1).bit_length()
        try:
            memory, address = self._free[whole].pop()
            self._kept -= whole
        except (KeyError, IndexError):
            memory = np.empty(whole + PAGE, np.uint8)
            address = _address(memory)
        source = np.frombuffer(data, np.uint8)
        # At the source's place in its page: a little behind it a copy takes ten times as long (csrc/rgpu_copy.h).
        start = (_address(source) - address) % PAGE
        piece = memory[start : start + size]  # every view of the copy refers to this one
        np.copyto(piece, source)
        number = id(piece)

        def back(_: weakref.ref) -> None:
            self._lent.pop(number, None)
            if self._kept + whole <= KEPT:
                self._kept += whole
                self._free.setdefault(whole, []).append((memory, address))

        self._lent[number] = weakref.ref(piece, back)
        return memoryview(piece)


def _address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


staging = Staging()
