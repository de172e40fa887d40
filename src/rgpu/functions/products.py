"""Products that may turn out to be views of their argument: ``einsum`` without a sum."""

from __future__ import annotations

from typing import Any

import numpy as np

from rgpu.client.remote import Remote
from rgpu.functions import creation, dispatch, views


def einsum(*operands: Any, **kwargs: Any) -> Any:
    """The Einstein summation; of one array without summing, a view (transposed, diagonal), as NumPy's."""
    if (
        len(operands) == 2
        and isinstance(operands[0], str)
        and isinstance(operands[1], Remote)
        and not kwargs.get("dtype")
    ):
        subscripts, array = operands
        small = {n: n if n < 2 else i + 2 for i, n in enumerate(sorted(set(array._metadata.shape)))}
        sample = np.empty([small[n] for n in array._metadata.shape], array._metadata.dtype)
        try:
            viewed = np.einsum(subscripts, sample).base is sample
        except ValueError:
            viewed = False  # the worker says what is wrong
        if viewed:
            return views.apply(lambda shadow: np.einsum(subscripts, shadow), array)
    arrays = [creation.array(x) if isinstance(x, np.ndarray) else x for x in operands]
    return dispatch.call("einsum", *arrays, **{key: x for key, x in kwargs.items() if key != "optimize" or x})


NAMES: dict[str, Any] = {"einsum": einsum}
