"""cuFFT's plans as descriptions: which transform of which extents, remembered and checked, never executed.

The device's own library plans when it transforms. A plan that is current (``with plan:``) or given makes a
transform that it does not fit an error, as CuPy does. Several devices of one plan are remembered; the
transform runs on the device of its array.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from rgpu.fft.cache import get_plan_cache
from rgpu.fft.settings import config
from rgpu.functions import dispatch

C2C, R2C, C2R, Z2Z, D2Z, Z2D = 0x29, 0x2A, 0x2C, 0x69, 0x6A, 0x6C  # cuFFT's numbers
FORWARD, INVERSE = -1, 1
_TYPES = {("C2C", "F"): C2C, ("R2C", "f"): R2C, ("C2R", "F"): C2R, ("C2C", "D"): Z2Z, ("R2C", "d"): D2Z,
          ("C2R", "D"): Z2D}  # fmt: skip
_local = threading.local()


def get_current_plan() -> Any:
    """The plan of the innermost ``with plan:`` of this thread."""
    return getattr(_local, "plan", None)


class _Memory(NamedTuple):
    size: int


class _WorkArea(NamedTuple):
    """What CuPy's pointer to a work area says of its size; there is no memory to point at."""

    mem: _Memory


class _Plan:
    """A context manager that makes itself the current plan."""

    __module__ = "cupy.cuda.cufft"
    handle = 0  # there is no cuFFT here to have one
    static = False  # whether legacy callbacks are linked into it
    shape: tuple[int, ...]
    fft_type: int
    batch: int
    gpus: list[int] | None

    @property
    def work_area(self) -> Any:
        """An estimate of cuFFT's: the transform's complex values, in units of 512 bytes; a list over several devices,
        None without anything to transform."""
        if not self.batch:
            return None
        last = self.shape[-1] if self.fft_type in (C2C, Z2Z) else self.shape[-1] // 2 + 1
        nbytes = self.batch * math.prod(self.shape[:-1]) * last * (8 if self.fft_type in (C2C, R2C, C2R) else 16)
        share = _WorkArea(_Memory(-(-nbytes // (512 * len(self.gpus or (0,)))) * 512))
        return share if self.gpus is None else [share] * len(self.gpus)

    def fft(self, a: Any, out: Any, direction: int) -> None:
        """Transform ``a`` into ``out`` (it may be ``a``), unscaled. ``direction``: `FORWARD` (-1) or `INVERSE` (1)."""
        axes = self._axes(a.ndim)
        name = {C2C: "fftn", Z2Z: "fftn", R2C: "rfftn", D2Z: "rfftn"}.get(self.fft_type, "irfftn")
        name = "ifftn" if name == "fftn" and direction == INVERSE else name
        s = [*(a.shape[axis] for axis in axes[:-1]), self.shape[-1]] if name == "irfftn" else None
        norm = "forward" if name.startswith("i") else "backward"
        dispatch.run_internal("ndarray.astype", out, dispatch.call(f"fft.{name}", a, s=s, axes=axes, norm=norm))

    def get_output_array(self, a: Any, order: str = "C") -> Any:
        """An array for the transform of ``a``."""
        from rgpu.functions import creation

        return creation.empty(*self._output(a), order=order)

    def check_output_array(self, a: Any, out: Any) -> None:
        """ValueError unless ``out`` can hold the transform of ``a``."""
        if out is a:
            return
        shape, dtype = self._output(a)
        if out.shape != shape:
            raise ValueError(f"output shape mismatch: {out.shape}, expected {shape}")
        if out.dtype != dtype:
            raise ValueError(f"output dtype mismatch: {out.dtype}, expected {dtype}")
        if (out.flags.c_contiguous, out.flags.f_contiguous) != (a.flags.c_contiguous, a.flags.f_contiguous):
            raise ValueError("output contiguity mismatch")

    def _output(self, a: Any) -> tuple[tuple[int, ...], np.dtype]:
        shape, last = list(a.shape), self._axes(a.ndim)[-1]
        if self.fft_type in (C2R, Z2D):
            shape[last] = self.shape[-1]
        elif self.fft_type in (R2C, D2Z):
            shape[last] = self.shape[-1] // 2 + 1
        kind = {C2C: "F", R2C: "F", C2R: "f", Z2D: "d"}.get(self.fft_type, "D")
        return tuple(shape), np.dtype(kind)

    def _axes(self, ndim: int) -> tuple[int, ...]:
        return (ndim - 1,)

    def __enter__(self) -> Any:
        _local.plan = self
        return self

    def __exit__(self, *failure: Any) -> None:
        _local.plan = None


class Plan1d(_Plan):
    """Transforms of ``batch`` rows of ``nx`` points, of one type, on one or more devices."""

    def __init__(self, nx: int, fft_type: int, batch: int, *, devices: Any = None, out: Any = None) -> None:
        if nx < 1:
            raise ValueError(f"Invalid number of FFT data points ({nx}) specified.")
        if devices is not None and fft_type not in (C2C, Z2Z):
            raise ValueError("Currently for multiple GPUs only C2C and Z2Z are supported")
        if isinstance(devices, int):
            devices = range(devices)
        self.nx, self.shape, self.fft_type, self.batch = nx, (nx,), fft_type, batch
        self.gpus = None if devices is None else list(devices)

    def check(self, fft_type: int, size: int, batch: int) -> None:
        """ValueError unless this is a plan for such rows."""
        if fft_type != self.fft_type:
            raise ValueError("cuFFT plan dtype mismatch.")
        if size != self.nx:
            raise ValueError("Target array size does not match the plan.", size, self.nx)
        if batch != self.batch:
            raise ValueError("Batch size does not match the plan.")
        if config.use_multi_gpus != (self.gpus is not None):
            raise ValueError("Unclear if multiple GPUs are to be used or not.")


class PlanNd(_Plan):
    """One transform over one to three neighbouring axes."""

    def __init__(
        self, shape: Sequence[int], inembed: Any, istride: int, idist: int, onembed: Any, ostride: int, odist: int,
        fft_type: int, batch: int, order: str, last_axis: int, last_size: Any,
    ) -> None:  # fmt: skip
        self.shape, self.fft_type, self.batch, self.order = tuple(shape), fft_type, batch, order
        self.last_axis, self.last_size, self.gpus = last_axis, last_size, None
        self._inner = istride == 1  # neighbours in memory are neighbours of a transform

    def _axes(self, ndim: int) -> tuple[int, ...]:
        count = len(self.shape)
        return tuple(range(ndim - count, ndim)) if self._inner == (self.order == "C") else tuple(range(count))

    def check(self, fft_type: int, shape: Sequence[int], axes: Sequence[int], order: str, size: Any) -> None:
        """ValueError unless this is a plan for an array of such a shape (``size``: extent of a real end)."""
        if order != self.order:
            raise ValueError(f"array orders mismatch (plan: {self.order}, input: {order})")
        expected = [shape[axis] for axis in (axes if order == "C" else axes[::-1])]
        if order == "C" and fft_type in (C2R, Z2D):
            expected[-1] = size
        if tuple(expected) != self.shape:
            raise ValueError(
                f"The cuFFT plan and a.shape do not match: plan.shape = {self.shape}, "
                f"expected_shape={tuple(expected)}, a.shape = {tuple(shape)}"
            )
        if fft_type != self.fft_type:
            raise ValueError("cuFFT plan dtype mismatch.")
        if fft_type not in (C2C, Z2Z) and (axes[-1], size) != (self.last_axis, self.last_size):
            raise ValueError("The last axis for R2C/C2R, or the size along it, does not match the plan")


# --- what is transformed ---------------------------------------------------------------------------


def computed_in(dtype: np.dtype, kind: str) -> np.dtype:
    """The dtype that an array of ``dtype`` is cast to before a transform of this kind."""
    single = dtype.char in "efF"
    return np.dtype(("f" if single else "d") if kind == "R2C" else ("F" if single else "D"))


def cufft_type(dtype: np.dtype, kind: str) -> int:
    return _TYPES[kind, computed_in(dtype, kind).char]


def resized(shape: Sequence[int], s: Any, axes: Sequence[int], kind: str) -> tuple[int, ...]:
    """The input's extents once it is cut or padded to ``s``; a real result has an input of half its extent."""
    extents = list(shape)
    if s is not None:
        for place, (size, axis) in enumerate(zip(s, axes)):
            if size is not None:
                extents[axis] = size // 2 + 1 if kind == "C2R" and place == len(s) - 1 else size
    return tuple(extents)


def real_size(shape: Sequence[int], s: Any, last: int, kind: str) -> int | None:
    """The output's extent along the last axis of a transform to or from real values."""
    if kind == "C2R":
        return s[-1] if s is not None and s[-1] is not None else 2 * (shape[last] - 1)
    return shape[last] // 2 + 1 if kind == "R2C" else None


def sorted_axes(ndim: int, s: Any, axes: Any, kind: str) -> tuple[int, ...]:
    """The axes of an n-dimensional transform, counted from 0 and in order, but for the real one: it stays last."""
    if axes is None:
        return tuple(range(ndim - (ndim if s is None else len(s)), ndim))
    if any(not -ndim <= axis < ndim for axis in axes):
        raise ValueError("The specified axes exceed the array dimensions.")
    axes = [axis % ndim for axis in axes]
    return tuple(sorted(axes) if kind == "C2C" else [*sorted(axes[:-1]), axes[-1]])


def together(axes: Sequence[int], ndim: int) -> bool:
    """Whether cuFFT plans for these sorted axes at once: up to three neighbours, from the first or to the last."""
    neighbours = all(b - a == 1 for a, b in zip(axes, axes[1:]))
    return 0 < len(axes) <= 3 and (0 in axes or ndim - 1 in axes) and neighbours


def at_once(a: Any, s: Any = None, axes: Any = None, kind: str = "C2C", plan: Any = None) -> bool:
    """Whether CuPy makes one n-dimensional transform (whose result keeps the order of ``a``) of these axes."""
    current = get_current_plan()
    if current is not None and plan is not None:
        raise RuntimeError("Use the cuFFT plan either as a context manager or as an argument.")
    plan = plan or current
    if plan is not None:
        return isinstance(plan, PlanNd)
    if a.ndim == 1 or not config.plans_axes_together() or (a.flags.f_contiguous and kind != "C2C"):
        return False
    axes = sorted_axes(a.ndim, s, axes, kind)
    return len(axes) > 1 and together(axes, a.ndim)


def get_fft_plan(a: Any, shape: Any = None, axes: Any = None, value_type: str = "C2C") -> Plan1d | PlanNd:
    """A plan for transforms of arrays like ``a``, to be given as ``plan=`` or used in a ``with``.

    ``shape``: extents of the result along ``axes`` (default: all). ``value_type``: 'C2C', 'R2C' or 'C2R'.
    """
    if not (a.flags.c_contiguous or a.flags.f_contiguous):
        raise ValueError("Input array a must be contiguous")
    if value_type not in ("C2C", "R2C", "C2R"):
        raise ValueError(f"value_type is 'C2C', 'R2C' or 'C2R', not {value_type!r}")
    shape = (shape,) if isinstance(shape, int) else shape
    axes = (axes,) if isinstance(axes, int) else axes
    if shape is not None and axes is not None and len(shape) != len(axes):
        raise ValueError("Shape and axes have different lengths.")
    if axes is None:
        axes = tuple(range(-(a.ndim if shape is None else len(shape)), 0))
    if len(axes) > 3 and axes is not None:
        raise ValueError("Only up to three axes is supported")
    if any(not -a.ndim <= axis < a.ndim for axis in axes):
        raise ValueError(f"The chosen axis ({axes[0]}) exceeds the number of dimensions of a ({a.ndim})")
    fft_type, extents = cufft_type(a.dtype, value_type), resized(a.shape, shape, axes, value_type)
    if len(axes) == 1:
        size = real_size(extents, shape, axes[0], value_type) if value_type == "C2R" else extents[axes[0]]
        return Plan1d(size, fft_type, math.prod(extents) // max(extents[axes[0]], 1), devices=config.devices)
    return _several(a, extents, shape, axes, value_type, fft_type)


def _several(a: Any, extents: tuple, s: Any, axes: tuple, kind: str, fft_type: int) -> PlanNd:
    if kind != "C2C" and a.flags.f_contiguous:
        raise ValueError("C2R/R2C PlanNd for F-order arrays is not supported")
    order = "C" if a.flags.c_contiguous else "F"
    places = sorted_axes(a.ndim, None, axes, kind)
    if not together(places, a.ndim):
        raise ValueError(
            "An n-dimensional cuFFT plan could not be created. The axes must be contiguous and non-repeating. "
            "Between one and three axes can be transformed and either the first or last axis must be included in axes."
        )
    size = real_size(extents, s, axes[-1], kind)
    shape = [extents[axis] for axis in places]
    if kind == "C2R":
        shape[-1] = size  # type: ignore[call-overload]
    if min(shape) < 1:
        raise ValueError("Invalid number of FFT data points specified.")
    return PlanNd(*layout(extents, fft_type, places, order, size))


def layout(extents: tuple, fft_type: int, axes: Sequence[int], order: str, size: Any) -> tuple:
    """PlanNd's arguments for sorted ``axes`` of an array of such extents and order (``size``: extent of a real end)."""
    ndim, inner = len(extents), tuple(extents[axis] for axis in (axes if order == "C" else axes[::-1]))
    outer = inner if size is None else (*inner[:-1], size)
    if len(axes) == ndim:
        batch, stride, distances = 1, 1, (1, 1)  # neither matters for one transform
    else:
        batch = math.prod(extents) // math.prod(inner)
        if (0 not in axes) == (order == "C"):  # one transform after the other in memory
            stride, distances = 1, (math.prod(inner), math.prod(outer))
        else:
            stride, distances = batch, (1, 1)
    points = outer if fft_type in (C2R, Z2D) else inner
    return (points, inner, stride, distances[0], outer, stride, distances[1], fft_type, batch, order, axes[-1], size)


@functools.lru_cache(4096)
def cached_as(
    shape: tuple, dtype: np.dtype, f_order: bool, s: Any, axes: Any, kind: str, together: bool, gpus: Any
) -> tuple[tuple[type[Plan1d] | type[PlanNd], tuple], ...]:
    """The plans of one transform in CuPy's order, each with the key that its cache has them under.

    ``shape``, ``dtype``: the array's, whose axes lie in memory as in Fortran if ``f_order``."""
    places = tuple(range(-(len(shape) if s is None else len(s)), 0)) if axes is None else axes
    extents, fft_type = resized(shape, s, places, kind), cufft_type(dtype, kind)
    if together:
        over = sorted_axes(len(shape), s, axes, kind)
        order = "F" if f_order and sum(n > 1 for n in extents) > 1 else "C"
        return ((PlanNd, layout(extents, fft_type, over, order, real_size(extents, s, over[-1], kind))),)
    last, complexes = places[-1], cufft_type(dtype, "C2C")
    steps = [(axis, complexes) for axis in (places if kind == "C2C" else places[:-1])]
    made = []
    if kind == "R2C":
        steps.insert(0, (last, fft_type))
    elif kind == "C2R":
        steps.append((last, fft_type))
    sizes = list(extents)
    for axis, over_type in steps:
        points = real_size(extents, s, last, kind) if over_type in (C2R, Z2D) else sizes[axis]
        made.append((Plan1d, (points, over_type, math.prod(sizes) // sizes[axis], gpus)))
        if over_type in (R2C, D2Z):
            sizes[axis] = sizes[axis] // 2 + 1
    return tuple(made)


def remember(meta: Any, s: Any, axes: Any, kind: str, together: bool, manager: Any) -> None:
    """Look up in the cache what CuPy looks up for this transform, and keep the plans that are not there.

    ``meta``: the layout of what is transformed. ``manager``: the callbacks, whose plans are others."""
    cache = get_plan_cache()
    for cls, key in cached_as(meta.shape, meta.dtype, meta.f, s, axes, kind, together, config.devices):
        name = key if manager is None else key + manager.key
        if cache.get(name) is None:
            plan = cls(*key) if cls is PlanNd else Plan1d(*key[:3], devices=key[3])
            plan.static = manager is not None and manager.static
            cache[name] = plan
