"""``cupyx.scipy.ndimage`` where it is not SciPy's: distances in single precision, and what CuPy refuses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rgpu.server.cpu.arrays import override

_BLOCK = 32  # threads: what CuPy's block parameters are multiples of


def _check_blocks(shape: tuple, blocks: Any) -> None:
    """ValueError for block parameters that CuPy's kernels could not take."""
    if any(n < 1 for n in blocks):
        raise ValueError("(m1, m2, m3) in blockparams must be >= 1")
    if len(shape) == 2:
        if blocks[1] & (blocks[1] - 1):
            raise ValueError("m2 must be a power of 2")
        multiple = math.lcm(_BLOCK, *blocks)
        if max(blocks) > -(-max(shape) // multiple) * multiple // _BLOCK:
            raise ValueError("block_params are too large for this array")


@override("cupyx.scipy.ndimage.distance_transform_edt")
def _distance_transform_edt(
    image: np.ndarray, sampling: Any = None, return_distances: bool = True, return_indices: bool = False,
    distances: Any = None, indices: Any = None, *, block_params: Any = None, float64_distances: bool = True,
) -> Any:  # fmt: skip
    from scipy import ndimage

    if block_params is not None:
        _check_blocks(image.shape, block_params)
    result = ndimage.distance_transform_edt(image, sampling, return_distances, return_indices, distances, indices)
    if not return_distances or distances is not None or float64_distances:
        return result
    if return_indices and indices is None:
        return result[0].astype(np.float32), result[1]
    return result.astype(np.float32)
