"""Whether two workers of one stream gave the same answer.

Equal bits, unless functions were called whose results may differ by rounding or by the order of sums (declared in
``wire.functions``, told by the workers): then floating-point numbers within a tolerance. Pure.
"""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

import numpy as np

from rgpu.wire import codec, ops

#: bytes of a floating-point number -> difference allowed, as a part of the largest number of the array
TOLERANCE = {1: {2: 2e-2, 4: 1e-4, 8: 1e-10, 16: 1e-10}, 2: {2: 5e-2, 4: 1e-3, 8: 1e-9, 16: 1e-9}}


class Content(NamedTuple):
    """The bytes of a read."""

    data: memoryview
    dtype: np.dtype


def difference(a: Any, b: Any, leeway: int, own: bool) -> tuple[str, str] | None:
    """What the first and the second worker said, if that cannot both be right. ``own``: it is about themselves."""
    if isinstance(a, Content) and isinstance(b, ops.Digest.Record):
        digest = hashlib.sha256(a.data).digest()
        return None if digest == b.digest else (f"SHA-256 {digest.hex()[:16]}", f"SHA-256 {b.digest.hex()[:16]}")
    if isinstance(a, Content) and isinstance(b, Content):
        return None if a.data == b.data or close(a, b, leeway) else (_digest(a), _digest(b))
    if isinstance(a, ops.Failed.Record) and isinstance(b, ops.Failed.Record):
        return None if a.kind == b.kind else (a.kind, b.kind)
    if isinstance(a, ops.Done.Record) and isinstance(b, ops.Done.Record):
        if own or codec.pack(a.value) == codec.pack(b.value) or (leeway and _close_values(a.value, b.value, leeway)):
            return None
        return str(a.value)[:60], str(b.value)[:60]
    return _kind(a), _kind(b)


def _digest(content: Content) -> str:
    return f"SHA-256 {hashlib.sha256(content.data).hexdigest()[:16]}"


def _kind(answer: Any) -> str:
    return f"the error {answer.kind}" if isinstance(answer, ops.Failed.Record) else "a result"


def close(a: Content, b: Content, leeway: int) -> bool:
    """Whether two arrays are equal but for what ``leeway`` allows."""
    dtype = a.dtype
    if dtype.names is not None:
        return _fields_close(a, b, leeway)
    if not leeway or dtype.kind not in "fc":
        return False
    tolerance = TOLERANCE[leeway].get(dtype.itemsize // (2 if dtype.kind == "c" else 1), 1e-1)
    with np.errstate(all="ignore"):
        x, y = (np.frombuffer(each.data, dtype) for each in (a, b))
        finite = np.isfinite(x) & np.isfinite(y)
        if not np.array_equal(x[~finite], y[~finite], equal_nan=True):
            return False
        x, y = x[finite], y[finite]
        return bool(not x.size or np.abs(x - y).max() <= tolerance * max(np.abs(x).max(), np.abs(y).max()))


def _fields_close(a: Content, b: Content, leeway: int) -> bool:
    x, y = np.frombuffer(a.data, a.dtype), np.frombuffer(b.data, b.dtype)
    for name in a.dtype.names or ():
        one, other = (np.ascontiguousarray(array[name]).reshape(-1) for array in (x, y))
        if one.tobytes() != other.tobytes() and not close(_content(one), _content(other), leeway):
            return False
    return True


def _content(array: np.ndarray) -> Content:
    return Content(memoryview(array.view(np.uint8)), array.dtype)  # type: ignore[arg-type]


def _close_values(a: Any, b: Any, leeway: int) -> bool:
    """The same for an answer in plain values."""
    if type(a) is not type(b):
        return False
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(_close_values(x, y, leeway) for x, y in zip(a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_close_values(x, b[key], leeway) for key, x in a.items())
    if isinstance(a, float):
        return a == b or (a != a and b != b) or abs(a - b) <= TOLERANCE[leeway][8] * max(abs(a), abs(b))
    return a == b
