"""Error states and the refusal to synchronize, per thread, as CuPy keeps them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from rgpu.client import follow, pool
from rgpu.functions.cautions import error_states as _state

_NAMES = ("divide", "over", "under", "invalid", "linalg")


class DeviceSynchronized(RuntimeError):
    """Raised where a wait was forbidden by ``allow_synchronize``."""


def geterr() -> dict[str, Any]:
    """The current error states; all None but ``linalg``, which is 'ignore' or 'raise'."""
    return {name: getattr(_state, name, "ignore" if name == "linalg" else None) for name in _NAMES}


def seterr(
    *, divide: Any = None, over: Any = None, under: Any = None, invalid: Any = None, linalg: Any = None
) -> dict[str, Any]:
    """Set the error states and return the old ones; only ``linalg`` can be set, as in CuPy."""
    old = geterr()
    if any(x is not None for x in (divide, over, under, invalid)) or linalg not in (None, "ignore", "raise"):
        raise NotImplementedError("only linalg='ignore' and linalg='raise' can be set")
    if linalg is not None:
        _state.linalg = linalg
    return old


@contextlib.contextmanager
def errstate(**states: Any) -> Iterator[None]:
    """Error states within a ``with`` block."""
    old = seterr(**states)
    try:
        yield
    finally:
        seterr(**old)


@contextlib.contextmanager
def allow_synchronize(allow: bool) -> Iterator[None]:
    """Inside, whether this thread may read results and wait for devices; DeviceSynchronized is raised if not."""
    streams = [device.stream for device in pool.get().devices if device.attached]
    with follow.forbid(streams, None if allow else DeviceSynchronized):
        yield
