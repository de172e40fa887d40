"""Addresses for arrays that are on other machines.

A root allocation gets an address when somebody asks for it, from a range no host pointer can be in and
no other device's; it is never given twice. An integer leads back to the array as long as the array
lives. Holds weak references only: asking for a pointer keeps nothing alive.
"""

from __future__ import annotations

import bisect
import os
import threading
import weakref
from collections import deque
from typing import Any

from rgpu.client.remote import Remote, root_of
from rgpu.cuda import issue
from rgpu.cuda.errors import INVALID_VALUE, invalid

#: of CUDA's array interface, as arrays show it: 2 has no stream (CuPy's setting and CuPy's name for it)
interface_version = int(os.environ.get("CUPY_CUDA_ARRAY_INTERFACE_EXPORT_VERSION") or 3)
UNIT = 512  # CuPy's allocation unit: addresses are multiples of it
_BASE = 1 << 60
_SPAN = 1 << 54  # bytes of addresses of one device


def round_up(size: int) -> int:
    """What an allocation of this size takes."""
    return -(-size // UNIT) * UNIT


class _Range:
    """The addresses of one device: starts in order, and who lives there."""

    def __init__(self, base: int) -> None:
        self.next = base + UNIT
        self.starts: list[int] = []
        self.roots: dict[int, tuple[weakref.ref, int]] = {}
        self.by_handle: dict[int, int] = {}
        self.gone: deque[tuple[int, int, weakref.ref]] = deque()  # addresses and handles of arrays that were dropped

    def sweep(self) -> None:
        """Forget who was dropped; the lock is held."""
        while self.gone:
            address, handle, reference = self.gone.popleft()
            current = self.roots.get(address)
            if current is not None and current[0] is reference:
                del self.roots[address], self.by_handle[handle]
                del self.starts[bisect.bisect_left(self.starts, address)]


def _range(number: int) -> _Range | None:
    """Those of a device, swept: from here on nothing changes while the lock is held."""
    found = _ranges.get(number)
    if found is not None:
        found.sweep()
    return found


_ranges: dict[int, _Range] = {}
_lock = threading.RLock()


def is_device(address: int) -> bool:
    """Whether an integer can only be one of ours."""
    return address >= _BASE


def of(root: Remote) -> int:
    """The address of a root allocation (0 for an empty one)."""
    if not root._metadata.nbytes:
        return 0
    root = getattr(root, "lender", root)  # memory that is lent has its owner's address
    number, handle = issue.ordinal(root._stream), root._handle
    with _lock:
        found = _range(number)
        if found is None:
            found = _ranges[number] = _Range(_BASE + number * _SPAN)
        address = found.by_handle.get(handle)
        if address is None:
            size = round_up(root._metadata.nbytes)
            address = found.next
            found.next = address + size  # no call since it was read: no handler of a signal has taken the same one
            bisect.insort(found.starts, address)
            found.by_handle[handle] = address
            _enter(found, address, root)
        elif found.roots[address][0]() is not root:
            _enter(found, address, root)
    return address


def _enter(found: _Range, address: int, root: Remote) -> None:
    handle, dropped = root._handle, found.gone

    def gone(reference: Any) -> None:
        dropped.append((address, handle, reference))  # no more: the collector may run this in the middle of ``living``

    found.roots[address] = (weakref.ref(root, gone), root._metadata.nbytes)


def find(address: int) -> tuple[Remote, int]:
    """The root allocation that an address is in, and how far; CUDA's error for any other integer."""
    with _lock:
        found = _range((address - _BASE) // _SPAN)
        index = bisect.bisect_right(found.starts, address) - 1 if found else -1
        if found and index >= 0:
            start = found.starts[index]
            reference, nbytes = found.roots[start]
            root = reference()
            if root is not None and address <= start + round_up(nbytes):
                offset = address - start + (root._offset if root._root is not None else 0)
                return root_of(root), offset
    raise invalid(INVALID_VALUE, f"{address:#x} is not in any live allocation of this process on a device of the pool")


def living(stream: Any) -> tuple[tuple[tuple[int, int, int], ...], tuple[Remote, ...]]:
    """The allocations of a device's session that have an address: (address, bytes, how far in the array it begins),
    arrays. Those of an earlier session, which the program may still hold, are nowhere any more."""
    spans, arrays = [], []
    with _lock:
        found = _range(issue.ordinal(stream))
        for address, (reference, nbytes) in found.roots.items() if found else ():
            root = reference()
            if root is not None and root._stream is stream:
                spans.append((address, nbytes, 0 if root._root is None else root._offset))
                arrays.append(root_of(root))
    return tuple(spans), tuple(arrays)
