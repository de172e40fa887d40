"""What ``print`` shows of a large array, fetched without fetching the array.

NumPy shows ``edgeitems`` at both ends of every long axis. Those, and one item more between them,
are picked on the device; NumPy prints that small array as if it were the large one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def shown(array: Any, show: Callable[[np.ndarray], str]) -> str:
    """``show`` of the array (``repr`` or ``str``); only what is printed crosses the network."""
    options = np.get_printoptions()
    edge, shape = options["edgeitems"], array._metadata.shape
    if array._metadata.size <= options["threshold"] or array._metadata.dtype.names is not None or edge < 1:
        return show(array.get())
    small = array
    for axis, extent in enumerate(shape):
        if extent > 2 * edge + 1:
            picked = np.r_[0 : edge + 1, extent - edge : extent]
            small = small[(slice(None),) * axis + (picked,)]
    with np.printoptions(threshold=0):
        text = show(small.get())
    # NumPy 2.2 and later say the shape of what they abbreviate.
    return text.replace(f"shape={small._metadata.shape}", f"shape={shape}")
