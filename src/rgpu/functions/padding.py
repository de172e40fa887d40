"""``pad``, also with a function as its mode, which runs here, on the client, with device arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from rgpu.functions import dispatch, shapes, signatures

_bind = signatures.binder("pad")


def pad(array: Any, pad_width: Any, mode: Any = "constant", **kwargs: Any) -> Any:
    """CuPy's ``pad``; a function as ``mode`` is called with every padded line, to be changed in place."""
    if not callable(mode):
        (array, pad_width, *rest), kwargs = _bind((array, pad_width, mode), kwargs)
        return dispatch.call("pad", array, pad_width, *rest, **kwargs)
    widths = np.broadcast_to(np.asarray(pad_width), (array.ndim, 2)).tolist()
    padded = dispatch.call("pad", array, widths)
    for axis in range(array.ndim):
        lines = shapes.NAMES["moveaxis"](padded, axis, -1)
        for index in np.ndindex(lines.shape[:-1]):
            mode(lines[(*index, Ellipsis)], tuple(widths[axis]), axis, kwargs)
    return padded


NAMES: dict[str, Any] = {"pad": pad}
