"""``cupyx.scipy``: SciPy's interface on device arrays."""

from __future__ import annotations

import sys
from typing import Any

from rgpu import surface
from rgpu.client.remote import Remote


def get_array_module(*args: Any) -> Any:
    """This module if an argument is on a device, else SciPy."""
    if any(isinstance(x, Remote) or getattr(x, "_rgpu_on_device", False) for x in args):
        return sys.modules[__name__]
    import scipy

    return scipy


__getattr__, __dir__ = surface.face(__name__)
