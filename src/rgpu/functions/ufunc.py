"""CuPy's ufunc objects: ``add(a, b, out=, where=, dtype=, casting=)`` and their methods.

Two operands without options take the short way of ``dispatch.binary``; everything else is one
``ufunc.call`` command. NumPy arrays and lists are refused, as CuPy refuses them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rgpu.client import predict
from rgpu.client.quick import quick
from rgpu.client.remote import Remote
from rgpu.functions import creation, dispatch, indexing, views
from rgpu.functions.recording import listener
from rgpu.wire.functions import BY_NAME, Function


class ufunc:  # noqa: N801 - CuPy's name
    """An element-wise function. ``name`` is CuPy's (``cupy_add``), ``types`` NumPy's signatures."""

    def __init__(self, function: Function) -> None:
        self._function = function
        self._numpy = predict.numpy_function(function.name)
        self.__name__ = function.name.rpartition(".")[2]
        self.name = f"cupy_{self.__name__}"
        self.nin: int = getattr(self._numpy, "nin", 1 if function.kind == "unary" else 2)
        self.nout: int = getattr(self._numpy, "nout", 1)
        self.nargs = self.nin + self.nout
        self.__doc__ = f"{self.__name__}: element by element, on the device; see numpy.{self.__name__}."

    def __repr__(self) -> str:
        return f"<ufunc '{self.name}'>"

    @property
    def types(self) -> list[str]:
        return [t for t in getattr(self._numpy, "types", []) if not set(t) & set("gGOMm")]

    @quick(itself=True, numbers=True)
    def __call__(self, *args: Any, out: Any = None, where: Any = True, **options: Any) -> Any:
        nin = self.nin
        if len(args) == nin and out is None and where is True and not options:
            if nin == 2:
                a, b = args
                if type(a) is dispatch.ndarray and type(b) is dispatch.ndarray:
                    return dispatch.binary(self._function, a, b)
                if isinstance(a, Remote) or isinstance(b, Remote):
                    override = _override(self, args)
                    if override is None:
                        return dispatch.binary(self._function, creation.cupy_like(a), creation.cupy_like(b))
                    return override[0]
            elif self.nout == 1 and isinstance(args[0], Remote):
                return dispatch.unary(self._function, args[0])
        return self._general(args, out, where, options)

    def _general(self, args: tuple, out: Any, where: Any, options: dict) -> Any:
        if len(args) > self.nin:
            if out is not None:
                raise ValueError("cannot specify 'out' as both a positional and keyword argument")
            args, out = args[: self.nin], args[self.nin :]
        recorder = listener(args)
        if recorder is not None:
            (target,) = out if isinstance(out, tuple) and len(out) == 1 else (out,)
            options = {key: value for key, value in options.items() if value is not None}
            return recorder.ufunc(self.__name__, args, options if where is True else {"where": where}, target)
        if len(args) < self.nin:
            raise TypeError(
                f"{self.name}() takes from {self.nin} to {self.nargs} positional arguments but {len(args)} were given"
            )
        outs = out if isinstance(out, tuple) else (out,) * (out is not None)
        if len(outs) > self.nout:
            raise ValueError(f"The 'out' tuple must have exactly {self.nout} entries")
        args = tuple([creation.cupy_like(x) for x in args])
        for x in (*args, *([] if where is True else [where])):
            if not isinstance(x, Remote) and not isinstance(x, bool | int | float | complex | np.generic):
                override = getattr(x, "__cupy_override_elementwise_kernel__", None)
                if override is not None:
                    return override(self, *args)
                raise TypeError(f"Unsupported type {type(x)}")
        for x in outs:
            if x is not None and not isinstance(x, Remote):
                raise TypeError("return arrays must be of ArrayType")
        if not any(isinstance(x, Remote) for x in args):
            typed = next((i for i, x in enumerate(args) if isinstance(x, np.generic)), 0)
            args = (*args[:typed], creation.array(args[typed]), *args[typed + 1 :])
        options = {key: value for key, value in options.items() if value is not None}
        operands = tuple(x._metadata if isinstance(x, Remote) else x for x in args)
        limits = {key: options[key] for key in ("dtype", "casting") if key in options}
        if "dtype" in limits:
            limits["dtype"] = np.dtype(limits["dtype"])
        tree = predict.elementwise(self._function.name, operands, **limits)
        if options.get("casting") == "unsafe":
            dispatch.warn_of_lost_parts(args, outs[0].dtype if outs and outs[0] is not None else options.get("dtype"))
        name = self._function.name
        if outs and any(x is not None for x in outs):
            self._check_out(tree, outs, options.get("casting", "same_kind"))
            outs = self._completed(tree, outs)
            if where is not True:
                options["where"] = where
            call_args = (name, *args)
            result = outs if len(outs) > 1 else outs[0]
            with outs[0]._stream.device:
                dispatch.run_internal("ufunc.call", outs[0], *call_args, outs, options)
            return result
        if where is not True:
            options["where"] = where
        return dispatch.call_predicted("ufunc.call", tree, None, name, *args, (), options)

    @staticmethod
    def _completed(tree: Any, outs: tuple) -> tuple:
        """As many outputs as results: those that were left out are made."""
        results = tree if isinstance(tree, tuple) else (tree,)
        outs = outs + (None,) * (len(results) - len(outs))
        stream = next(x._stream for x in outs if x is not None)
        return tuple([views.empty(meta, stream) if x is None else x for meta, x in zip(results, outs)])

    @staticmethod
    def _check_out(tree: Any, outs: tuple, casting: str) -> None:
        results = tree if isinstance(tree, tuple) else (tree,)
        for meta, out in zip(results, outs):
            if out is None:
                continue
            if np.broadcast_shapes(meta.shape, out._metadata.shape) != out._metadata.shape:
                raise ValueError("Out shape is mismatched")
            if not np.can_cast(meta.dtype, out._metadata.dtype, casting):
                raise TypeError(f"output (typecode '{meta.dtype.char}') could not be coerced to provided output "
                                f"parameter (typecode '{out._metadata.dtype.char}') "
                                f"according to the casting rule \"{casting}\"")  # fmt: skip

    # ---- methods ------------------------------------------------------------------------------

    def _method(self, method: str, *args: Any, **kwargs: Any) -> Any:
        name = self._function.name
        out = kwargs.get("out")
        if isinstance(out, tuple):
            kwargs["out"] = out = out[0]
        return dispatch.call(f"ufunc.{method}", name, *args, **kwargs)

    def _along(self, method: str, *arrays: Any, **options: Any) -> Any:
        return dispatch.learn(method, (self.__name__, *arrays), options, True)

    def reduce(self, array: Any, axis: Any = 0, dtype: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        return self._along("ufunc.reduce", array, axis=axis, dtype=dtype, out=out, keepdims=keepdims)

    def accumulate(self, array: Any, axis: int = 0, dtype: Any = None, out: Any = None) -> Any:
        return self._along("ufunc.accumulate", array, axis=axis, dtype=dtype, out=out)

    def reduceat(self, array: Any, indices: Any, axis: int = 0, dtype: Any = None, out: Any = None) -> Any:
        return self._along("ufunc.reduceat", array, indices, axis=axis, dtype=dtype, out=out)

    def outer(self, A: Any, B: Any, **kwargs: Any) -> Any:
        A, B = (x if isinstance(x, Remote) else creation.array(x) for x in (A, B))
        return self(views.reshape(A, A._metadata.shape + (1,) * B._metadata.ndim), B, **kwargs)

    def at(self, a: Any, indices: Any, b: Any = None) -> None:
        if isinstance(a, Remote):
            indexing.check_scattered(a, indices, b)
        dispatch.run_internal("ufunc.at", a, self.__name__, indices, b)


def _override(self: ufunc, args: tuple) -> Any:
    """NumPy's protocol: another class's ``__array_ufunc__`` decides first. (result,) or None."""
    for x in args:
        if not isinstance(x, Remote):
            method = getattr(type(x), "__array_ufunc__", None)
            if method is not None and not isinstance(x, np.ndarray | np.generic):
                result = method(x, self, "__call__", *args)
                if result is not NotImplemented:
                    return (result,)
    return None


UFUNCS: dict[str, ufunc] = {
    name: ufunc(function)
    for name, function in BY_NAME.items()
    if function.kind in ("unary", "binary", "ufunc") and name != "matmul"
}
