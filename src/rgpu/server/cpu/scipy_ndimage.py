"""``cupyx.scipy.ndimage`` where it is not SciPy's: single precision, large integers, and what CuPy refuses."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from rgpu import surface
from rgpu.server.cpu import scientific
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

    if image.ndim not in (2, 3):
        raise NotImplementedError("only 2D and 3D distance transforms are supported")
    if block_params is not None:
        _check_blocks(image.shape, block_params)
    dtype = np.dtype(np.float64 if float64_distances else np.float32)
    for array, wanted, shape, fits in (
        (distances, return_distances, image.shape, lambda x: x == dtype),
        (indices, return_indices, (image.ndim, *image.shape), lambda x: x.kind in "iu" and x.itemsize > 1),
    ):
        if array is not None and (not wanted or array.shape != shape or not fits(array.dtype)):
            raise RuntimeError("an array for a result that is not wanted, or of a wrong shape or dtype")
    result = ndimage.distance_transform_edt(image, sampling, return_distances, return_indices)
    parts = list(result) if return_distances and return_indices else [result]
    if return_distances:
        parts[0] = parts[0].astype(dtype, copy=False)
    found = []
    places = [x for x, wanted in ((distances, return_distances), (indices, return_indices)) if wanted]
    for part, array in zip(parts, places):
        if array is None:
            found.append(part)
        else:
            array[...] = part
    return None if not found else found[0] if len(found) == 1 else tuple(found)


@override("cupyx.scipy.ndimage.histogram")
def _histogram(*args: Any, **kwargs: Any) -> Any:
    """As SciPy's; several are a list of arrays, as CuPy's, where SciPy has an array of objects."""
    from scipy import ndimage

    result = ndimage.histogram(*args, **kwargs)
    return list(result) if isinstance(result, np.ndarray) and result.dtype.kind == "O" else result


# ---- filters that choose one of the values they see -----------------------------------------------

_EXACT = 1 << 53  # SciPy reads and compares integers as float64, which has all of them up to here


def beyond(input: np.ndarray, cval: Any) -> int | None:
    """The value beyond the edges, if it or the input's integers are too large for SciPy; else None.

    It is the nearest integer of the input's dtype, as a GPU's cast makes it."""
    if input.dtype.kind not in "iu" or input.itemsize < 8 or not input.size or cval != cval:
        return None
    info = np.iinfo(input.dtype)
    edge = info.max if cval > info.max else info.min if cval < info.min else int(cval)
    return edge if max(-int(input.min()), int(input.max()), abs(edge)) > _EXACT else None


def placed(result: np.ndarray, output: Any) -> np.ndarray:
    """A result in the array or of the dtype that was asked for."""
    if isinstance(output, np.ndarray):
        output[...] = result
        return output
    return result if output is None else result.astype(output)


def _choosing(name: str) -> Callable[..., Any]:
    """SciPy's filter, exact for integers of 64 bits: where there are large ones it runs on their ranks."""
    theirs = scientific.OVERRIDES[f"cupyx.scipy.ndimage.{name}"]
    signature = surface.signature("cupyx.scipy.ndimage", name)

    def run(input: np.ndarray, *args: Any, **kwargs: Any) -> Any:
        given = signature.bind(input, *args, **kwargs).arguments if signature else {}
        edge = beyond(input, given.get("cval", 0)) if given else None
        if edge is None:
            return theirs(input, *args, **kwargs)
        values, ranks = np.unique(np.append(input, input.dtype.type(edge)), return_inverse=True)
        ranks, output = ranks.reshape(-1), given.pop("output", None)
        given.update(input=ranks[:-1].reshape(input.shape), cval=int(ranks[-1]))
        return placed(values[theirs(**given)], output)

    return run


for _name in ("minimum_filter", "maximum_filter", "minimum_filter1d", "maximum_filter1d", "rank_filter",
              "percentile_filter", "median_filter"):  # fmt: skip
    override(f"cupyx.scipy.ndimage.{_name}")(_choosing(_name))


# ---- interpolations ---------------------------------------------------------------------------------

_FAR = 1 << 24  # pixels: further on SciPy's remainders have errors, with which (and with NaN) it reads beyond the image


def _near(name: str, *moving: str) -> Callable[..., Any]:
    """SciPy's interpolation; ValueError where its parameters ``moving`` lead where there is no number of a pixel."""
    theirs = scientific.OVERRIDES[f"cupyx.scipy.ndimage.{name}"]
    signature = surface.signature("cupyx.scipy.ndimage", name)

    def run(input: np.ndarray, *args: Any, **kwargs: Any) -> Any:
        given = signature.bind(input, *args, **kwargs).arguments if signature else {}
        for key in moving:
            if key in given and not (np.abs(np.asarray(given[key], float)) <= _FAR).all():
                raise ValueError(f"{key} of {name} must be finite, and not larger than {_FAR}")
        return theirs(input, *args, **kwargs)

    return run


for _name, _moving in {"shift": ("shift",), "affine_transform": ("matrix", "offset"), "rotate": ("angle",)}.items():
    override(f"cupyx.scipy.ndimage.{_name}")(_near(_name, *_moving))
