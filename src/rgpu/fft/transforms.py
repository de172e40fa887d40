"""The transforms of ``cupy.fft`` and ``cupyx.scipy.fft``: what CuPy checks before one, and the order of its result.

A transform is one declared function of the worker. Here a plan is compared with what it is used for, and what
CuPy would do in Fortran's order is asked for the other way round. Nothing here waits.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

from rgpu.client.remote import Remote
from rgpu.fft import callbacks, composed, plans
from rgpu.functions import dispatch

_NORMS = (None, "backward", "ortho", "forward")


class _Kind(NamedTuple):
    """What goes in and comes out ('C2C', 'R2C', 'C2R'), whether over several axes, and which by default."""

    values: str
    inverse: bool
    several: bool = False
    axes: Any = None


KINDS = {
    "fft": _Kind("C2C", False), "ifft": _Kind("C2C", True), "rfft": _Kind("R2C", False), "irfft": _Kind("C2R", True),
    "fft2": _Kind("C2C", False, True, (-2, -1)), "ifft2": _Kind("C2C", True, True, (-2, -1)),
    "rfft2": _Kind("R2C", False, True, (-2, -1)), "irfft2": _Kind("C2R", True, True, (-2, -1)),
    "fftn": _Kind("C2C", False, True), "ifftn": _Kind("C2C", True, True),
    "rfftn": _Kind("R2C", False, True), "irfftn": _Kind("C2R", True, True),
}  # fmt: skip


def transform(
    name: str, a: Any, s: Any, axes: Any, norm: Any, plan: Any = None, run: Any = None, overwrite: bool = False
) -> Any:
    """``cupy.fft.<name>(a, s, axes, norm)`` under the current plan or ``plan``; TypeError unless ``a`` is on a device.

    ``run`` is what computes it in another library's way. ``overwrite``: ``a`` itself holds the result, and is it,
    where CuPy's does."""
    kind, run = KINDS[name], run or _run
    if not isinstance(a, Remote):
        raise TypeError("The input array a must be a cupy.ndarray")
    s = None if s is None else tuple(None if n is None else operator.index(n) for n in s)
    if axes is not None:
        axes = tuple(operator.index(axis) for axis in axes)
        if s is not None and len(s) != len(axes):
            raise ValueError("Shape and axes have different lengths.")
        if not axes:
            if kind.values == "C2C":
                return a
            raise IndexError("list index out of range")
    if norm not in _NORMS:
        raise ValueError(f'Invalid norm value {norm}, should be "backward", "ortho", or "forward".')
    together = kind.several and plans.at_once(a, s, axes, kind.values, plan)
    given = plan is not None or plans.get_current_plan() is not None
    if given:
        _check(a, s, axes, kind, plan, together)
    manager = callbacks.current()
    result = _made(name, a, s, axes, norm, run, manager, together)  # raises what is wrong with its arguments
    if not given:
        plans.remember(a._metadata, s, axes, kind.values, together, manager)
    if overwrite and kind.values == "C2C" and _holds(a, result, axes, together):
        dispatch.run_internal("ndarray.astype", a, result)
        return a
    return result


def _holds(a: Any, result: Any, axes: Any, together: bool) -> bool:
    """Whether CuPy puts this transform in its input's memory, when it may: programs count on it."""
    meta, found = a._metadata, result._metadata
    if (meta.dtype, meta.shape) != (found.dtype, found.shape):
        return False
    if together:
        return meta.c or meta.f
    last = axes is not None and len(axes) == 1 and axes[0] in (-1, meta.ndim - 1)
    return last and meta.c and a.base is None  # else it works on a copy


def _made(name: str, a: Any, s: Any, axes: Any, norm: Any, run: Any, manager: Any, together: bool) -> Any:
    """The transform, in the order that CuPy's result has."""
    if manager is not None:
        return manager.run(run, KINDS[name], name, a, s, axes, norm, together)
    if together and a.flags.f_contiguous and not a.flags.c_contiguous:
        places = range(-(a.ndim if s is None else len(s)), 0) if axes is None else axes
        mirrored = tuple(-1 - axis if axis < 0 else a.ndim - 1 - axis for axis in places)
        return run(name, a.T, s, mirrored, norm).T
    return run(name, a, s, axes, norm)


def _run(name: str, a: Any, s: Any, axes: Any, norm: Any) -> Any:
    """The declared function of the worker."""
    if KINDS[name].several:
        return dispatch.call(f"fft.{name}", a, s=s, axes=axes, norm=norm)
    return dispatch.call(f"fft.{name}", a, n=None if s is None else s[0], axis=axes[0], norm=norm)


def _check(a: Any, s: Any, axes: Any, kind: _Kind, plan: Any, together: bool) -> None:
    """ValueError unless the plan that is given or current is one for this transform."""
    current = plans.get_current_plan()
    if current is not None and plan is not None:
        raise RuntimeError("Use the cuFFT plan either as a context manager or as an argument.")
    plan = plan or current
    places = tuple(range(-(a.ndim if s is None else len(s)), 0)) if axes is None else axes
    if any(not -a.ndim <= axis < a.ndim for axis in places):
        raise ValueError("The specified axes exceed the array dimensions.")
    shape, fft_type = plans.resized(a.shape, s, places, kind.values), plans.cufft_type(a.dtype, kind.values)
    size = plans.real_size(shape, s, places[-1], kind.values)
    if together:
        order = "C" if a.flags.c_contiguous or not a.flags.f_contiguous else "F"
        plan.check(fft_type, shape, plans.sorted_axes(a.ndim, s, axes, kind.values), order, size)
        return
    if not isinstance(plan, plans.Plan1d):
        raise ValueError("expected plan to have type cufft.Plan1d")
    for axis in places:
        rows = math.prod(shape) // max(shape[axis], 1)
        plan.check(fft_type, size if kind.values == "C2R" and axis == places[-1] else shape[axis], rows)


def _one(name: str) -> Callable[..., Any]:
    def call(a: Any, n: Any = None, axis: Any = -1, norm: Any = None) -> Any:
        return transform(name, a, None if n is None else (n,), (axis,), norm)

    return call


def _many(name: str, default: Any) -> Callable[..., Any]:
    def call(a: Any, s: Any = None, axes: Any = default, norm: Any = None) -> Any:
        return transform(name, a, s, axes, norm)

    return call


def names() -> dict[str, Callable[..., Any]]:
    """The functions of ``cupy.fft`` by name."""
    made = {name: _many(name, kind.axes) if kind.several else _one(name) for name, kind in KINDS.items()}
    return _named(made | composed.hermitian(made), "cupy.fft")


# --- cupyx.scipy.fft and fftpack -------------------------------------------------------------------


def _scipy_one(name: str, function: Any) -> Callable[..., Any]:
    run = _scipy_run({name: function})

    def call(x: Any, n: Any = None, axis: Any = -1, norm: Any = None, overwrite_x: bool = False, *,
             plan: Any = None) -> Any:  # fmt: skip
        return transform(name, x, None if n is None else (n,), (axis,), norm, plan, run, overwrite_x)

    return call


def _scipy_many(name: str, function: Any, default: Any) -> Callable[..., Any]:
    run = _scipy_run({name: function})

    def call(x: Any, s: Any = None, axes: Any = default, norm: Any = None, overwrite_x: bool = False, *,
             plan: Any = None) -> Any:  # fmt: skip
        return transform(name, x, _numbers(s), _numbers(axes), norm, plan, run, overwrite_x)

    return call


def _scipy_run(functions: dict[str, Callable[..., Any]]) -> Callable[..., Any]:
    """SciPy's functions, whose last bits are not NumPy's; steps between callbacks are NumPy's."""

    def run(name: str, a: Any, s: Any, axes: Any, norm: Any) -> Any:
        if name not in functions:
            return _run(name, a, s, axes, norm)
        if KINDS[name].several:
            return functions[name](a, s=s, axes=axes, norm=norm)
        return functions[name](a, n=None if s is None else s[0], axis=axes[0], norm=norm)

    return run


def _numbers(x: Any) -> Any:
    return (x,) if isinstance(x, int) else x


def _pack_one(name: str, function: Any) -> Callable[..., Any]:
    def run(name: str, a: Any, s: Any, axes: Any, norm: Any) -> Any:
        return function(a, None if s is None else s[0], axes[0])

    def call(x: Any, n: Any = None, axis: Any = -1, overwrite_x: bool = False, plan: Any = None) -> Any:
        return transform(name, x, None if n is None else (n,), (axis,), None, plan, run, overwrite_x)

    return call


def _pack_many(name: str, function: Any, default: Any) -> Callable[..., Any]:
    def run(name: str, a: Any, s: Any, axes: Any, norm: Any) -> Any:
        return function(a, s, axes)

    def call(x: Any, shape: Any = None, axes: Any = default, overwrite_x: bool = False, plan: Any = None) -> Any:
        return transform(name, x, _numbers(shape), _numbers(axes), None, plan, run, overwrite_x)

    return call


def _pack_real(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(x: Any, n: Any = None, axis: Any = -1, overwrite_x: bool = False, plan: Any = None) -> Any:
        if plan is not None or plans.get_current_plan() is not None:
            _check(x, None if n is None else (n,), (axis,), KINDS[name], plan, False)
            return function(x, n, axis)
        result = function(x, n, axis)
        plans.remember(x._metadata, None if n is None else (n,), (axis,), KINDS[name].values, False, None)
        return result

    return call


def _named(made: dict[str, Callable[..., Any]], module: str) -> dict[str, Callable[..., Any]]:
    for name, call in made.items():
        call.__name__ = call.__qualname__ = name
        call.__module__ = module
        call.__doc__ = f"CuPy's ``{module}.{name}``, on the current device."
    return made


def scipy_names(functions: dict[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """The functions of ``cupyx.scipy.fft``, as the table has them, with CuPy's checks and plans."""
    made = dict(functions)
    for name, kind in KINDS.items():
        function = functions[name]
        made[name] = _scipy_many(name, function, kind.axes) if kind.several else _scipy_one(name, function)
    made |= composed.scipy_hermitian(made) | composed.recorded(functions)
    return _named(made, "cupyx.scipy.fft")


def fftpack_names(functions: dict[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """The functions of ``cupyx.scipy.fftpack`` the same way."""
    made = {}
    for name, function in functions.items():
        kind = KINDS[name]
        if kind.values != "C2C":
            made[name] = _pack_real(name, function)
        else:
            made[name] = _pack_many(name, function, kind.axes) if kind.several else _pack_one(name, function)
    return _named(made, "cupyx.scipy.fftpack")
