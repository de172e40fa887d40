"""The functions of ``cupyx.scipy`` from the table of declared names.

Element-wise ones learn the dtype of a result once for each combination of operand dtypes; others
learn the layout once for each signature; where the data decides, they wait. Nothing here knows
what a function computes, and the client needs no SciPy.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

import rgpu._ndarray  # noqa: F401 - the class of results
from rgpu import surface
from rgpu.client import failures, pool
from rgpu.client.meta import Meta, fresh
from rgpu.client.predict import scalar_key
from rgpu.client.quick import quick
from rgpu.client.remote import Remote
from rgpu.functions import creation, dispatch
from rgpu.wire.functions import BY_NAME, TABLE

_PREFIX = "cupyx.scipy."
#: options that only choose how a GPU computes
_DEVICE_ONLY = {"plan", "texture_memory", "float64_coords"}
#: modules whose floats are weights, distances and fill values: elsewhere they may be counts (``nperseg=len(x) / 8``)
_OF_WEIGHTS = {f"{_PREFIX}ndimage", f"{_PREFIX}special"}
_dtypes: dict[Any, tuple] = {}
#: what workers warn of, by name; modules enter their own
warning_classes: dict[str, type[Warning]] = {"RuntimeWarning": RuntimeWarning}


class SpecialFunction:
    """An element-wise function of ``cupyx.scipy.special``, with CuPy's ``out=`` and ``dtype=``."""

    def __init__(self, name: str) -> None:
        self.__name__ = name.rpartition(".")[2]
        self.name = f"cupyx_scipy_special_{self.__name__}"
        self._declared = name
        self.__doc__ = f"{self.__name__}: element by element, on the device; see scipy.special."

    def __repr__(self) -> str:
        return f"<ufunc '{self.name}'>"

    def __call__(self, *args: Any, out: Any = None, **options: Any) -> Any:
        for x in args:
            if not isinstance(x, Remote | bool | int | float | complex | np.generic):
                raise TypeError(f"Unsupported type {type(x)}")
        options = {key: value for key, value in options.items() if value is not None}
        if out is not None:
            return _run_into(self._declared, args, {**options, "out": out}, out)
        operands = [x._metadata if isinstance(x, Remote) else x for x in args]
        shape = np.broadcast_shapes(*[x.shape if type(x) is Meta else () for x in operands])
        key = (
            self._declared,
            *[(Meta, x.dtype) if type(x) is Meta else scalar_key(x) for x in operands],
            *[(name, str(value)) for name, value in options.items()],
            (stream := pool.current_stream()).device.maker,
        )
        dtypes = _dtypes.get(key)
        if dtypes is not None:
            tree = tuple(fresh(shape, dtype) for dtype in dtypes)
            return dispatch.call_predicted(
                self._declared, tree if len(tree) > 1 else tree[0], *args, **options
            )
        encoded = dispatch._Arguments(stream, args, options, True)
        result = dispatch.ask(BY_NAME[self._declared], encoded)
        results = result if isinstance(result, tuple) else (result,)
        if all(isinstance(x, Remote) and x._metadata.shape == shape for x in results):
            _dtypes[key] = tuple(x._metadata.dtype for x in results)
        return result


def _run_into(name: str, args: tuple, kwargs: dict, out: Any) -> Any:
    """Run a function that writes into one of its arguments."""
    outs = out if isinstance(out, tuple) else (out,)
    if not all(isinstance(x, Remote) for x in outs):
        raise TypeError("return arrays must be of ArrayType")
    encoded = dispatch._Arguments(outs[0]._stream, args, kwargs, True)
    return dispatch.run(BY_NAME[name], encoded, out)


def _function(name: str) -> Any:
    """The user's callable of a declared function."""
    module, _, short = name.rpartition(".")
    signature = surface.signature(module, short)
    parameters = list(signature.parameters) if signature else []
    outputs = {key: parameters.index(key) for key in ("output", "out", "distances") if key in parameters}
    measures = parameters[:3] == ["input", "labels", "index"]
    kind, exact = BY_NAME[name].kind, module not in _OF_WEIGHTS

    def call(*args: Any, **kwargs: Any) -> Any:
        for key in _DEVICE_ONLY.intersection(kwargs):
            del kwargs[key]
        args = tuple(x.coeffs if hasattr(x, "coeffs") else x for x in args)  # polynomials by value
        for x in (*args, *kwargs.values()):
            if callable(x) and not isinstance(x, type | np.dtype):
                raise NotImplementedError(f"{name} with a Python callable is not available in rgpu")
        if measures and any(isinstance(x, list | tuple | np.ndarray) for x in args[:3]):
            raise TypeError(f"{short}: input, labels and index must be device arrays")
        given = {key: kwargs.get(key, args[place] if place < len(args) else None) for key, place in outputs.items()}
        out = next((x for x in given.values() if isinstance(x, Remote)), None)
        if kind == "scipy_warns":
            encoded = dispatch._Arguments(pool.current_stream(), args, kwargs, True)
            result, cautions = dispatch.ask(BY_NAME[name], encoded)
            for category, message in cautions:
                warnings.warn(message, warning_classes.get(category, UserWarning), stacklevel=failures.users_level())
            return result
        if kind == "scipy_wait":
            encoded = dispatch._Arguments(pool.current_stream(), args, kwargs, True)
            result = dispatch.ask(BY_NAME[name], encoded)
            return result if out is None or "distances" in outputs else out
        if out is not None:
            return _run_into(name, args, kwargs, out)
        return dispatch.learn(name, args, kwargs, exact)

    call.__name__ = call.__qualname__ = short
    call.__module__ = module
    call.__doc__ = f"CuPy's ``{name}``, on the current device."
    if signature:
        call.__signature__ = signature  # type: ignore[attr-defined]
    return quick()(call)


def backend(functions: dict[str, Any]) -> tuple[Any, Any]:
    """The two hooks of a uarray backend, which lets SciPy's own functions run here."""

    def convert(dispatchables: Any, coerce: bool) -> Any:
        values = [x.value for x in dispatchables]
        if coerce:
            arrays = (creation.asarray(x.value) if x.coercible and x.type is np.ndarray else x.value
                      for x in dispatchables)  # fmt: skip
            try:
                values = list(arrays)
            except TypeError:
                return NotImplemented
        pairs = zip(dispatchables, values)
        return values if all(x.type is not np.ndarray or isinstance(v, Remote) for x, v in pairs) else NotImplemented

    def call(method: Any, args: tuple, kwargs: dict) -> Any:
        function = functions.get(method.__name__)
        return NotImplemented if function is None else function(*args, **kwargs)

    return convert, call


def fill(names: dict[str, Any], namespace: str) -> None:
    """Put the declared functions of ``cupyx.scipy.<namespace>`` into a module's dictionary."""
    prefix = f"{_PREFIX}{namespace}."
    for function in TABLE:
        head, _, tail = function.name.rpartition(".")
        if f"{head}." == prefix and function.kind != "object" and tail not in names:
            make = SpecialFunction if function.kind == "special" else _function
            names[tail] = make(function.name)
