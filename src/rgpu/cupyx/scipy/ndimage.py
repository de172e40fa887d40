"""``cupyx.scipy.ndimage``: images of any number of dimensions.

From the table of declared functions; what takes a Python callable calls it here, with device arrays.
"""

from __future__ import annotations

import functools
import inspect
import operator
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from rgpu import surface
from rgpu.client.remote import Remote
from rgpu.cupyx.scipy import _table
from rgpu.cupyx.scipy._generic_filters import generic_filter as generic_filter
from rgpu.cupyx.scipy._generic_filters import generic_filter1d as generic_filter1d
from rgpu.functions import creation, dispatch

_table.fill(globals(), "ndimage")


def _of_weights(function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter with weights, which has a complex result if one of its operands is complex."""

    @functools.wraps(function)
    def call(input: Any, weights: Any, *args: Any, **kwargs: Any) -> Any:
        place = 1 if function.__name__.endswith("1d") else 0  # the axis comes before the output there
        output = kwargs.get("output", args[place] if place < len(args) else None)
        kinds = [np.dtype(getattr(x, "dtype", float)).kind for x in (input, weights)]
        if output is not None and "c" in kinds:
            named = isinstance(output, type | np.dtype)  # a class such as np.float32 has an attribute dtype, too
            if np.dtype(output if named else getattr(output, "dtype", output)).kind != "c":
                if not named:
                    raise RuntimeError("output must have complex dtype")
                warnings.warn("promoting specified output dtype to complex", stacklevel=2)
        return function(input, weights, *args, **kwargs)

    return call


for _name in ("convolve", "convolve1d", "correlate", "correlate1d"):
    globals()[_name] = _of_weights(globals()[_name])


def _of_structure(function: Callable[..., Any]) -> Callable[..., Any]:
    """Binary morphology whose structure may be the extents of a block: an integer or several."""

    @functools.wraps(function)
    def call(input: Any, structure: Any = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(structure, int):
            axes = kwargs.get("axes")
            structure = (structure,) * (input.ndim if axes is None else len(axes))
        if isinstance(structure, tuple | list) and all(isinstance(n, int) for n in structure):
            structure = creation.ones(tuple(structure), dtype=bool)
        return function(input, structure, *args, **kwargs)

    return call


for _name in ("binary_erosion", "binary_dilation", "binary_opening", "binary_closing"):
    globals()[_name] = _of_structure(globals()[_name])


def _of_interpolation(function: Callable[..., Any]) -> Callable[..., Any]:
    """An interpolation that says on its line which values beyond the edges an integer result cannot have."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        output, cval = given.get("output"), given.get("cval", 0.0)
        if given.get("mode", "constant") == "constant" and not np.isfinite(cval):
            dtype = given["input"].dtype if output is None else getattr(output, "dtype", output)
            if np.dtype(output if isinstance(output, type | np.dtype) else dtype).kind in "iu":
                raise NotImplementedError("Non-finite cval is not supported for outputs with integer dtype.")
        return function(*args, **kwargs)

    return call


for _name in ("map_coordinates", "affine_transform", "shift", "zoom", "rotate"):
    globals()[_name] = _of_interpolation(globals()[_name])


def _of_affine(function: Callable[..., Any]) -> Callable[..., Any]:
    """An affine transform that refuses on its line what texture memory cannot do, and real results of complex input."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        image, output = given["input"], given.get("output")
        if kwargs.get("texture_memory"):
            _check_texture(image, given["matrix"], given.get("output_shape"), output, given.get("mode", "constant"))
        elif isinstance(output, Remote) and image.dtype.kind == "c" != output.dtype.kind:  # type: ignore[attr-defined]
            raise RuntimeError("output must have complex dtype")
        return function(*args, **kwargs)

    return call


def _check_texture(image: Any, matrix: Any, shape: Any, output: Any, mode: str) -> None:
    if image.ndim not in (2, 3) or image.dtype != np.float32:
        raise ValueError(f"texture memory holds float32 images of 2 or 3 dimensions, not {image.ndim} of {image.dtype}")
    homogeneous = (image.ndim + 1, image.ndim + 1)
    if matrix.shape != homogeneous:
        raise ValueError(f"with texture memory the matrix has shape {homogeneous}, not {matrix.shape}")
    if mode not in ("constant", "nearest"):
        raise ValueError(f"texture memory has the modes constant and nearest, not {mode!r}")
    shape = tuple(shape or image.shape)
    if isinstance(output, Remote):
        if output.dtype != np.float32 or output.shape != shape:  # type: ignore[attr-defined]
            raise ValueError(f"with texture memory the output is float32 of shape {shape}")
    elif output is not None and output not in (np.float32, np.dtype(np.float32)):
        raise ValueError(f"with texture memory the output is float32, not {output!r}")


affine_transform = _of_affine(globals()["affine_transform"])
_spline_filter = globals()["spline_filter"]


def spline_filter(input: Any, order: int = 3, output: Any = np.float64, mode: str = "mirror") -> Any:
    """The coefficients of a spline of an order from 2 to 5 through the input's values; RuntimeError for others."""
    if not 2 <= order <= 5:
        raise RuntimeError("spline order not supported")
    return _spline_filter(input, order, output, mode)


def _derivatives(
    input: Any, derivative: Callable[..., Any], mode: Any, cval: float, arguments: tuple, keywords: Any
) -> Any:
    modes = [mode] * input.ndim if isinstance(mode, str) else list(mode)
    if len(modes) != input.ndim:
        raise RuntimeError("sequence argument must have length equal to input rank")
    for axis in range(input.ndim):
        yield derivative(input, axis, input.dtype, modes[axis], cval, *arguments, **(keywords or {}))


def _placed(result: Any, output: Any) -> Any:
    if isinstance(output, Remote):
        output[...] = result  # type: ignore[index]
        return output
    return result if output is None else result.astype(output, copy=False)


def generic_laplace(
    input: Any, derivative2: Callable[..., Any], output: Any = None, mode: Any = "reflect", cval: float = 0.0,
    extra_arguments: tuple = (), extra_keywords: Any = None,
) -> Any:  # fmt: skip
    """The sum of second derivatives: ``derivative2(input, axis, output, mode, cval, ...)`` along each axis."""
    if not input.ndim:
        return _placed(input, output)
    parts = _derivatives(input, derivative2, mode, cval, extra_arguments, extra_keywords)
    return _placed(functools.reduce(operator.add, parts), output)  # ``sum`` is ndimage's here


def generic_gradient_magnitude(
    input: Any, derivative: Callable[..., Any], output: Any = None, mode: Any = "reflect", cval: float = 0.0,
    extra_arguments: tuple = (), extra_keywords: Any = None,
) -> Any:  # fmt: skip
    """The magnitude of the gradient: ``derivative(input, axis, output, mode, cval, ...)`` along each axis."""
    if not input.ndim:
        return _placed(input, output)
    parts = _derivatives(input, derivative, mode, cval, extra_arguments, extra_keywords)
    total = functools.reduce(operator.add, (part * part for part in parts))
    return _placed(dispatch.call("sqrt", total).astype(input.dtype, copy=False), output)


def labeled_comprehension(
    input: Any, labels: Any, index: Any, func: Callable[..., Any], out_dtype: Any, default: Any,
    pass_positions: bool = False,
) -> Any:  # fmt: skip
    """``func`` of the values under each label of ``index`` (and their positions); waits for each."""
    positions = creation.arange(input.size).reshape(input.shape) if pass_positions else None

    def applied(mask: Any) -> Any:
        values = input[mask]
        return func(values, positions[mask]) if pass_positions else func(values)  # type: ignore[index]

    if labels is None:
        if index is not None:
            raise ValueError("index without defined labels")
        values = input.ravel()
        return func(values, positions.ravel()) if pass_positions else func(values)  # type: ignore[union-attr]
    if index is None:
        return applied(labels > 0)
    index = creation.asarray(index)
    result = creation.full(index.shape, default, dtype=out_dtype)
    flat = result.reshape(-1)
    for place, label in enumerate(index.ravel().get().tolist()):
        mask = labels == label
        if bool(mask.any()):
            flat[place] = applied(mask)
    return result


def value_indices(arr: Any, *, ignore_value: Any = None, adaptive_index_dtype: bool = False) -> dict:
    """For each value of an integer array the tuple of arrays that index it (waits)."""
    if not isinstance(arr, Remote):
        raise TypeError(f"Unsupported type {type(arr)}")
    if arr.dtype.kind not in "iu":  # type: ignore[attr-defined]
        raise ValueError("Parameter 'arr' must be an integer array")
    dtype = np.min_scalar_type(max(arr.shape, default=0)) if adaptive_index_dtype else None  # type: ignore[attr-defined]
    found = {}
    for value in dispatch.call("unique", arr).get().tolist():
        if value != ignore_value:
            places = dispatch.call("nonzero", dispatch.call("equal", arr, value))
            found[value] = tuple(x if dtype is None else x.astype(dtype) for x in places)
    return found


__getattr__, __dir__ = surface.face(__name__)
