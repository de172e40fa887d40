"""Grey morphology of integers beyond 2^53, which SciPy computes in double precision. All others are SciPy's."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from rgpu import surface
from rgpu.server.cpu import scientific
from rgpu.server.cpu.arrays import override
from rgpu.server.cpu.scipy_ndimage import beyond, placed

_MODULE = "cupyx.scipy.ndimage"
#: NumPy's names of what lies beyond the edges
_PADDED = {"reflect": "symmetric", "grid-mirror": "symmetric", "mirror": "reflect", "nearest": "edge",
           "constant": "constant", "grid-constant": "constant", "wrap": "wrap", "grid-wrap": "wrap"}  # fmt: skip


def _each(x: Any, count: int) -> list:
    return list(x) if isinstance(x, tuple | list | np.ndarray) else [x] * count


def _step(
    input: np.ndarray, edge: int, dilates: bool, size: Any = None, footprint: Any = None, structure: Any = None,
    mode: Any = "reflect", origin: Any = 0, axes: Any = None,
) -> np.ndarray:  # fmt: skip
    """One erosion or dilation in the input's own integers, one element of the footprint after the other."""
    axes = [axis % input.ndim for axis in (range(input.ndim) if axes is None else _each(axes, 1))]
    if structure is not None:
        footprint = np.ones(structure.shape, bool) if footprint is None else footprint
    elif footprint is None:
        footprint = np.ones(_each(size, len(axes)), bool)
    bias = np.zeros(footprint.shape, input.dtype) if structure is None else structure.astype(input.dtype)
    footprint, origins = footprint.astype(bool), _each(origin, len(axes))
    pick: Callable[..., Any] = np.minimum
    if dilates:
        footprint, bias, pick = np.flip(footprint), 0 - np.flip(bias), np.maximum
        origins = [-n - (extent % 2 == 0) for n, extent in zip(origins, footprint.shape)]
    padded = input
    for axis, extent, first, how in zip(axes, footprint.shape, origins, _each(mode, len(axes))):
        ends = [(0, 0)] * input.ndim
        ends[axis] = (extent // 2 + first, extent - 1 - extent // 2 - first)
        value = {"constant_values": edge} if _PADDED[how] == "constant" else {}
        padded = np.pad(padded, ends, _PADDED[how], **value)  # type: ignore[call-overload]
    result = None
    for place in itertools.product(*map(range, footprint.shape)):
        if footprint[place]:
            window = [slice(None)] * input.ndim
            for axis, start in zip(axes, place):
                window[axis] = slice(start, start + input.shape[axis])
            seen = padded[tuple(window)] - bias[place]
            result = seen if result is None else pick(result, seen)
    if result is None:
        raise ValueError("all-zero footprint is not supported")
    return result


#: name -> what is made of the input, by erosions and dilations
_MADE: dict[str, Callable[[np.ndarray, Callable[..., Any], Callable[..., Any]], np.ndarray]] = {
    "grey_erosion": lambda x, erode, dilate: erode(x),
    "grey_dilation": lambda x, erode, dilate: dilate(x),
    "grey_opening": lambda x, erode, dilate: dilate(erode(x)),
    "grey_closing": lambda x, erode, dilate: erode(dilate(x)),
    "morphological_gradient": lambda x, erode, dilate: dilate(x) - erode(x),
    "morphological_laplace": lambda x, erode, dilate: dilate(x) + erode(x) - x - x,
    "white_tophat": lambda x, erode, dilate: x - dilate(erode(x)),
    "black_tophat": lambda x, erode, dilate: erode(dilate(x)) - x,
}


def _exact(name: str) -> Callable[..., Any]:
    theirs, signature = scientific.OVERRIDES[f"{_MODULE}.{name}"], surface.signature(_MODULE, name)

    def run(input: np.ndarray, *args: Any, **kwargs: Any) -> Any:
        given = signature.bind(input, *args, **kwargs).arguments if signature else {}
        edge = beyond(input, given.get("cval", 0)) if given else None
        if edge is None or all(given.get(key) is None for key in ("size", "footprint", "structure")):
            return theirs(input, *args, **kwargs)
        options = {key: x for key, x in given.items() if key not in ("input", "output", "cval")}

        def step(dilates: bool) -> Callable[..., Any]:
            return lambda x: _step(x, edge, dilates, **options)

        return placed(_MADE[name](input, step(False), step(True)), given.get("output"))

    return run


for _name in _MADE:
    override(f"{_MODULE}.{_name}")(_exact(_name))
