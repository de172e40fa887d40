"""Arrays of pointers as arguments of raw kernels: a client knows other addresses of its arrays than their own.

The kernel gets a copy in which they are the real ones; the client's array keeps what the client wrote. Numbers that
are in no allocation of the client's stay as they are. Works on NumPy's arrays, whatever device the addresses are of.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def followed(table: np.ndarray, places: Sequence[tuple[int, int, int, int]]) -> np.ndarray:
    """``table`` itself, or a copy with real addresses if it has any of the client's.

    ``places``: (the client's address, bytes, where in the array that is, the array's real address).
    """
    if not places or table.dtype.kind not in "iu" or table.dtype.itemsize != 8 or not table.size:
        return table
    largest, real = int(table.max()), None
    for address, nbytes, offset, memory in places:
        if largest < address:
            continue
        inside = (table >= address) & (table < address + max(nbytes, 1))
        if inside.any():
            real = table.copy("K") if real is None else real
            real[inside] = table[inside] - address + offset + memory
    return table if real is None else real
