"""``ElementwiseKernel`` and ``ReductionKernel``: CuPy's classes, with results known before they exist.

Types and shapes are decided here as CuPy decides them; the worker gets the texts once and then handles,
arrays and scalars. Constructing compiles nothing and needs no device.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

from rgpu.client.meta import broadcast, fresh
from rgpu.client.predict import axes as axis_rules
from rgpu.client.quick import quick
from rgpu.client.remote import Remote
from rgpu.functions.kernels import headers, launch
from rgpu.wire.kernels import c_type, parse


class _Kernel:
    """Parameters, and the source that is shown for them."""

    nin: int
    nout: int
    nargs: int
    in_params: tuple
    out_params: tuple
    name: str

    def _parameters(self, in_params: str, out_params: str, name: str) -> None:
        self.name = self.__name__ = launch.checked_name(name)
        self.in_params, self.out_params = parse(in_params, True), parse(out_params, False)
        self.params = self.in_params + self.out_params
        self.nin, self.nout = len(self.in_params), len(self.out_params)
        self.nargs = self.nin + self.nout
        self._cached_codes: dict[tuple, str] = {}

    @property
    def cached_codes(self) -> dict:
        """Source by argument types, of the types this kernel was called with."""
        if not self._cached_codes:
            warnings.warn(
                "No codes are cached because compilation is deferred until the first function call.",
                stacklevel=2,
            )
        return dict(self._cached_codes)

    @property
    def cached_code(self) -> str:
        if len(self._cached_codes) > 1:
            warnings.warn(
                "The input types of the kernel could not be inferred. Please use `.cached_codes` instead.",
                stacklevel=2,
            )
        return next(iter(self._cached_codes.values()))

    def _remember(self, arrays: list, types: list, body: str, preamble: str) -> None:
        key = tuple(x._metadata.dtype for x in arrays)
        if key not in self._cached_codes:
            letters = {p.type: c_type(t) for p, t in zip(self.params, types) if p.dtype is None}
            lines = [f"typedef {name} {letter};" for letter, name in sorted(letters.items())]
            parameters = ", ".join(
                f"{p.type if p.dtype is None else c_type(p.dtype)} {p.name}" for p in self.params
            )
            head = f'extern "C" __global__ void {self.name}({parameters}, CIndexer _ind)'
            self._cached_codes[key] = "\n".join((*lines, preamble, f"{head} {{\n{body}\n}}"))

    def _arguments(self, args: tuple) -> tuple[list, list]:
        """Inputs and given outputs."""
        arguments = launch.converted(args)
        inputs, outputs = arguments[: self.nin], arguments[self.nin :]
        if any(not isinstance(x, Remote) for x in outputs):
            raise TypeError("Output arguments type must be cupy.ndarray")
        return inputs, outputs

    def _typed(self, inputs: list, outputs: list) -> tuple[list, list]:
        dtypes = [
            [x._metadata.dtype if isinstance(x, Remote) else None for x in side] for side in (inputs, outputs)
        ]
        ins, outs = launch.resolve_types(self.in_params, self.out_params, *dtypes)
        typed = [x if isinstance(x, Remote) else launch.scalar(x, t) for x, t in zip(inputs, ins)]
        return typed, outs


class ElementwiseKernel(_Kernel):
    """A loop over the elements of broadcast arrays, its body written in CUDA C++."""

    __module__ = "cupy"

    def __init__(
        self, in_params: str, out_params: str, operation: str, name: str = "kernel", reduce_dims: bool = True,
        preamble: str = "", no_return: bool = False, return_tuple: bool = False, **kwargs: Any,
    ) -> None:  # fmt: skip
        self._parameters(in_params, out_params, name)
        if any(p.name == "i" for p in self.params):
            raise ValueError("Can not use 'i' as a parameter name")
        self.operation, self.reduce_dims, self.preamble = operation, reduce_dims, preamble
        self.no_return, self.return_tuple, self.kwargs = no_return, return_tuple, kwargs
        options = {key: kwargs.pop(key, "") for key in ("loop_prep", "after_loop")}
        options["options"] = tuple(kwargs.pop("options", ()))
        if kwargs:
            raise TypeError(f"Wrong arguments {kwargs}")
        self.kwargs = {key: value for key, value in options.items() if value}
        text = headers.inlined(preamble, options["options"])
        self._content = (in_params, out_params, operation, name, reduce_dims, text, *options.values())
        self._plans: dict[tuple, tuple] = {}
        self._encoded: dict[tuple, launch.Encoded] = {}

    @quick(itself=True)
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run it; ``size=`` where only raw arrays are given, ``block_size=`` and ``stream=`` as CuPy's."""
        if not kwargs:
            encoded = self._encoded.get(launch.signature(args))
            if encoded is not None:
                return self._result(encoded.run(args))
        size, block_size = kwargs.pop("size", -1), kwargs.pop("block_size", 128)
        stream = kwargs.pop("stream", None)
        if kwargs:
            raise TypeError(f"Wrong arguments {kwargs}")
        if block_size <= 0:
            raise ValueError("block_size must be greater than zero")
        if len(args) not in (self.nin, self.nargs):
            raise TypeError(
                f"Wrong number of arguments for {self.name!r}. It must be either {self.nin} or {self.nargs} "
                f"(with outputs), but given {len(args)}."
            )
        for arg in args:
            override = getattr(arg, "__cupy_override_elementwise_kernel__", None)
            if override is not None:
                return override(self, *args)
        if stream is not None:
            with stream:
                return self._launch(args, size)
        return self._launch(args, size)

    def _launch(self, args: tuple, size: int) -> Any:
        arguments = launch.converted(args)
        key = (size, *[x._metadata if isinstance(x, Remote) else type(x) for x in arguments])
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) > 1024:  # a program of endless shapes must not leak them
                self._plans.clear()
            plan = self._plans[key] = self._plan(arguments, size)
        types, made, empty = plan
        outputs = arguments[self.nin :]
        if empty and outputs:
            return self._result(outputs)
        typed = tuple([x if isinstance(x, Remote) else launch.scalar(x, t) for x, t in zip(arguments, types)])
        stream = launch.place(outputs)
        kernel = launch.kernel(stream, "kernel.elementwise", *self._content)
        name = "kernel.elementwise.launch"
        if made and size == -1 and (key := launch.signature(args)) is not None:
            if len(self._encoded) > 1024:
                self._encoded.clear()
            self._encoded[key] = launch.Encoded(name, kernel, made, size)
        return self._result(launch.submit(name, stream, made, made or outputs, kernel, typed, size))

    def _plan(self, arguments: list, size: int) -> tuple[list, list, bool]:
        """What the layouts decide: types of the inputs, new outputs, whether there is nothing to do."""
        inputs, outputs = self._arguments(tuple(arguments))
        walked = [x for p, x in zip(self.params, (*inputs, *outputs)) if isinstance(x, Remote) and not p.raw]
        if size != -1 and walked:
            raise ValueError("Specified 'size' can be used only if all of the ndarray are 'raw'.")
        if size == -1 and not walked:
            raise ValueError("Loop size is undecided.")
        shape = (size,) if size != -1 else broadcast(*[x._metadata.shape for x in walked])
        typed, out_types = self._typed(inputs, outputs)
        if not outputs and size == -1 and any(p.raw for p in self.out_params):
            raise ValueError("Output array size is Undecided")
        for p, x in zip(self.out_params, outputs):
            if not p.raw and x._metadata.shape != shape:
                raise ValueError("Out shape is mismatched")
        made = [] if outputs else [fresh(shape, dtype) for dtype in out_types]
        arrays = [x for x in (*typed, *outputs) if isinstance(x, Remote)]
        types = [x._metadata.dtype if isinstance(x, Remote) else x.dtype for x in typed]
        self._remember(arrays, types + out_types, self.operation, self.preamble)
        return types, made, 0 in shape

    def _result(self, results: list) -> Any:
        if self.no_return:
            return None
        return results[0] if self.nout == 1 and not self.return_tuple else tuple(results)


class ReductionKernel(_Kernel):
    """Map, reduce and post-map over some axes of broadcast arrays, written as CUDA C++ expressions."""

    __module__ = "cupy"

    def __init__(
        self, in_params: str, out_params: str, map_expr: str, reduce_expr: str, post_map_expr: str,
        identity: Any, name: str = "reduce_kernel", reduce_type: str | None = None, reduce_dims: bool = True,
        preamble: str = "", options: tuple = (),
    ) -> None:  # fmt: skip
        self._parameters(in_params, out_params, name)
        self.identity = "" if identity is None else str(identity)
        self.map_expr, self.reduce_expr, self.post_map_expr = map_expr, reduce_expr, post_map_expr
        self.reduce_dims, self.preamble, self.options = reduce_dims, preamble, options
        first = self.out_params[0]
        self.reduce_type = reduce_type or (first.type if first.dtype is None else c_type(first.dtype))
        texts = (map_expr, reduce_expr, post_map_expr, self.identity)
        preamble = headers.inlined(preamble, options)
        self._content = (in_params, out_params, *texts, name, reduce_type, preamble, tuple(options))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run it over ``axis`` (None: all of them), with ``keepdims`` and ``out`` as NumPy's reductions."""
        out, axis, keepdims = kwargs.pop("out", None), kwargs.pop("axis", None), kwargs.pop("keepdims", False)
        stream = kwargs.pop("stream", None)
        if kwargs:
            raise TypeError(f"Wrong arguments {kwargs}")
        if len(args) not in (self.nin, self.nargs):
            raise TypeError(f"Wrong number of arguments for {self.name}")
        if out is not None:
            if self.nout != 1:
                raise NotImplementedError("out= of a kernel with several outputs")
            if len(args) > self.nin:
                raise ValueError("cannot specify 'out' as both a positional and keyword argument")
            args = (*args, out)
        if stream is not None:
            with stream:
                return self._launch(args, axis, keepdims)
        return self._launch(args, axis, keepdims)

    def _launch(self, args: tuple, axis: Any, keepdims: bool) -> Any:
        inputs, outputs = self._arguments(args)
        walked = [x for p, x in zip(self.in_params, inputs) if isinstance(x, Remote) and not p.raw]
        if not walked:
            raise ValueError("Loop size is undecided.")
        shape = broadcast(*[x._metadata.shape for x in walked])
        axes = tuple(sorted(axis_rules.normalize(axis, len(shape))))
        typed, out_types = self._typed(inputs, outputs)
        if keepdims:
            out_shape = tuple(1 if d in axes else extent for d, extent in enumerate(shape))
        else:
            out_shape = tuple(extent for d, extent in enumerate(shape) if d not in axes)
        if not outputs and any(p.raw for p in self.out_params):
            raise ValueError("Output array size is Undecided")
        for p, x in zip(self.out_params, outputs):
            if not p.raw and x._metadata.shape != out_shape:
                raise ValueError("Out shape is mismatched")
        if not self.identity and 0 in shape and math.prod(out_shape):
            raise ValueError(f"zero-size array to reduction operation {self.name} which has no identity")
        made = [] if outputs else [fresh(out_shape, dtype) for dtype in out_types]
        stream = launch.place(outputs)
        types = [x._metadata.dtype if isinstance(x, Remote) else x.dtype for x in typed] + out_types
        self._remember([x for x in (*typed, *outputs) if isinstance(x, Remote)], types, self.map_expr, self.preamble)
        kernel = launch.kernel(stream, "kernel.reduction", *self._content)
        results = launch.submit(
            "kernel.reduction.launch",
            stream,
            made,
            made or outputs,
            kernel,
            tuple(typed),
            axes,
            bool(keepdims),
        )
        return results[0] if self.nout == 1 else tuple(results)
