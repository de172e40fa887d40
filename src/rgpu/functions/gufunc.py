"""``cupyx.GeneralizedUFunc``: a function of arrays made to loop over all dimensions but those of its signature.

Axes are moved, operands broadcast and outputs made here; the function is the user's and gets device arrays.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from rgpu.client.remote import Remote
from rgpu.functions import creation, dispatch, shapes

_DIMENSIONS = r"\((?:\w+(?:\?|\|1)?(?:,\w+(?:\?|\|1)?)*,?)?\)"
_SIGNATURE = re.compile(rf"(?:{_DIMENSIONS}(?:,{_DIMENSIONS})*,?)?->{_DIMENSIONS}(?:,{_DIMENSIONS})*")


class Dimension(NamedTuple):
    """A core dimension: ``i``, ``i?`` (may be missing) or ``i|1`` (may be 1)."""

    name: str
    optional: bool
    broadcastable: bool


def parse(signature: str) -> tuple[list[tuple], list[tuple], int]:
    """The core dimensions of inputs and outputs, and how many there are. ``->(i)`` has one input without any."""
    if not isinstance(signature, str):
        raise TypeError("Signature is not a string")
    text = signature.replace(" ", "")
    if not _SIGNATURE.fullmatch(text):
        raise ValueError(f"Not a valid gufunc signature: {text}")
    ins, outs = (
        [tuple(_dimension(x) for x in part.split(",") if x) for part in re.findall(r"\((.*?)\)", side) or [""]]
        for side in text.split("->")
    )
    if any(x.broadcastable for part in outs for x in part):
        raise ValueError("Output name cannot indicate |1.")
    return ins, outs, len({x.name for part in (*ins, *outs) for x in part})


def _dimension(text: str) -> Dimension:
    return Dimension(text.rstrip("?").removesuffix("|1"), text.endswith("?"), text.endswith("|1"))


class _Loop(NamedTuple):
    """One combination of types, and its function."""

    ins: tuple
    outs: tuple
    function: Callable[..., Any]

    @property
    def text(self) -> str:
        return f"{''.join(x.char for x in self.ins)}->{''.join(x.char for x in self.outs)}"


class GeneralizedUFunc:
    """``GeneralizedUFunc(func, "(i,j),(j,k)->(i,k)")``: ``func`` called for each element of the other dimensions.

    ``supports_batched``: the function takes all of them at once; ``supports_out``: it takes ``out=``;
    ``signatures``: combinations of types, ``"ii->i"`` or ``("ii->i", another function)``. One output only.
    """

    __module__ = "cupyx"

    def __init__(
        self, func: Callable[..., Any], signature: str, *, name: str | None = None, doc: str | None = None,
        supports_batched: bool = False, supports_out: bool = False, signatures: Sequence[Any] | None = None,
        try_fastcall_func: Callable[..., Any] | None = None,
    ) -> None:  # fmt: skip
        self._func, self._signature = func, signature
        self.__name__ = func.__name__ if name is None else name
        self.__doc__ = func.__doc__ if doc is None else doc
        self._batched, self._takes_out, self._fast = supports_batched, supports_out, try_fastcall_func
        self._ins, self._outs, self._count = parse(signature)
        self.nin, self.nout = len(self._ins), len(self._outs)
        self._loops = [self._loop(*(x if isinstance(x, tuple) else (x, func))) for x in signatures or ()]

    def _loop(self, text: str, function: Callable[..., Any]) -> _Loop:
        ins, arrow, outs = text.replace(" ", "").partition("->")
        if not arrow or len(ins) != self.nin or len(outs) != self.nout:
            raise ValueError(f"signature {text} for dtypes is invalid: {self.nin} inputs and {self.nout} outputs")
        return _Loop(tuple(map(np.dtype, ins)), tuple(map(np.dtype, outs)), function)

    def __call__(
        self, *args: Any, axes: Any = None, axis: Any = None, keepdims: bool = False, casting: Any = "same_kind",
        dtype: Any = None, signature: Any = None, order: str = "K", out: Any = None,
    ) -> Any:  # fmt: skip
        """Apply it. ``axes``: the core axes of each operand; ``axis``: where there is one core dimension."""
        if self._fast is not None:
            found = self._fast(
                *args, axes=axes, axis=axis, keepdims=keepdims, casting=casting, dtype=dtype, signature=signature,
                order=order, out=out,
            )  # fmt: skip
            if found is not NotImplemented:
                return found
        if len(args) != self.nin:
            raise ValueError(f"`func` requires {self.nin} arguments, but {len(args)} given")
        if self.nout != 1:
            raise NotImplementedError("Multiple output gufuncs not supported")
        if order.upper() not in ("C", "F", "A", "K"):
            raise RuntimeError(f"Unknown order {order}")
        given = out[0] if isinstance(out, tuple) and out else out
        if given is not None and not isinstance(given, Remote):
            raise TypeError("`out` must be a tuple or `cupy.ndarray`")
        operands, result, function = self._typed([creation.cupy_like(x) for x in args], dtype, casting, signature)
        in_axes, out_axes, extra = self._axes(axes, axis, keepdims)
        moved, sizes, outer = self._arranged(operands, in_axes)
        if order.upper() == "A":
            fortran = all(x.flags.f_contiguous and not x.flags.c_contiguous for x in operands)
            order = "F" if fortran else "C"
        target, inner = self._target(given, out_axes, sizes, outer, extra, result, order, casting)
        self._apply(function, outer, moved, inner)
        return target

    # ---- types ----------------------------------------------------------------------------------------

    def _typed(self, args: list, dtype: Any, casting: Any, signature: Any) -> tuple[list, np.dtype, Any]:
        """The operands as the chosen loop takes them, the dtype of its result, and its function."""
        if signature is not None:
            loop = self._named(signature)
        elif dtype is not None:
            loop = next((x for x in self._loops if set(x.outs) == {np.dtype(dtype)}), None)
        else:
            fitting = (x for x in self._loops if all(np.can_cast(a.dtype, t, casting) for a, t in zip(args, x.ins)))
            loop = next(fitting, None)
        if loop is None:
            return args, np.result_type(*[x.dtype for x in args]) if dtype is None else np.dtype(dtype), self._func
        for x, kind in zip(args, loop.ins):
            if not np.can_cast(x.dtype, kind, casting):
                raise TypeError(f"Cannot cast {self.__name__} input from {x.dtype} to {kind} by the rule {casting!r}")
        return [x.astype(kind, copy=False) for x, kind in zip(args, loop.ins)], loop.outs[0], loop.function

    def _named(self, signature: Any) -> _Loop:
        if isinstance(signature, tuple):
            if len(signature) != self.nin + self.nout:
                raise TypeError(f"A type-tuple must be specified of length 1 or {self.nin + self.nout}")
            chars = "".join(np.dtype(x).char for x in signature)
            signature = f"{chars[: self.nin]}->{chars[self.nin :]}"
        for loop in self._loops:
            if loop.text == signature or len(signature) == 1 and {x.char for x in loop.outs} == {signature}:
                return loop
        raise TypeError(f"No loop matching the specified signature and casting was found for ufunc {self.__name__}")

    # ---- axes -----------------------------------------------------------------------------------------

    def _axes(self, axes: Any, axis: Any, keepdims: bool) -> tuple[list, Any, int]:
        """Core axes of the inputs, of the output (None: the last), and how many axes of 1 are kept."""
        if axes is not None and axis is not None:
            raise ValueError("Only one of `axis` or `axes` keyword arguments should be given")
        if axes is not None and not isinstance(axes, list):
            raise ValueError("`axes` has to be of type list")
        extra = 0
        if keepdims:
            counts = {len(x) for x in self._ins}
            if len(counts) != 1 or any(self._outs):
                raise ValueError("`keepdims` needs inputs of as many core dimensions each, and scalar outputs")
            extra = counts.pop()
        if axis is not None:
            if not isinstance(axis, int):
                raise ValueError("`axis` argument has to be an integer value")
            if self._count != 1:
                raise ValueError(f"`axis` needs a single core dimension, {self._signature} has {self._count}")
            axes = [(axis,) if part or extra else () for part in (*self._ins, *self._outs)]
        if axes is None:
            return [None] * self.nin, None, extra
        axes = [(x,) if isinstance(x, int) else x for x in axes]
        if len(axes) == self.nin and not any(self._outs):
            axes.append(None)
        if len(axes) != self.nin + self.nout:
            raise ValueError("`axes` has an entry for each input and output; outputs may be left out if all are scalar")
        return axes[: self.nin], axes[self.nin], extra

    @staticmethod
    def _transposed(k: int, axes: Any, ndim: int, core: int) -> tuple | None:
        """The order of axes that puts the core at the end; None where it is there."""
        if axes is None:
            if ndim < core:
                raise ValueError(f"Argument {k} has too few dimensions.")
            return None
        if len(axes) != core:
            raise np.exceptions.AxisError(f"argument {k} has {core} core dimensions, {len(axes)} axes were given")
        last = np.lib.array_utils.normalize_axis_tuple(axes, ndim)
        return (*[d for d in range(ndim) if d not in last], *last)

    def _arranged(self, args: list, axes: list) -> tuple[list, dict, tuple]:
        """Operands with their core at the end, all of it there, and the rest broadcast; the core's sizes."""
        sizes: dict[str, int | None] = {}
        outers, moved = [], []
        for k, (x, chosen, dims) in enumerate(zip(args, axes, self._ins)):
            core = max(sum(not d.optional for d in dims), min(x.ndim, len(dims)))
            order = self._transposed(k, chosen, x.ndim, core)
            if order is not None:
                x = x.transpose(order)
            outer, missing = x.shape[: x.ndim - core], len(dims) - core
            lengths = iter(x.shape[x.ndim - core :])
            shape = []
            for d in dims:
                skipped = d.optional and missing > 0
                missing -= skipped
                length = None if skipped else next(lengths)
                shape.append(1 if length is None else length)
                if not (d.broadcastable and length == 1):
                    self._agree(k, d, length, sizes)
            outers.append(outer)
            moved.append((x.reshape(outer + tuple(shape)) if len(shape) != core else x, tuple(shape)))
        outer = np.broadcast_shapes(*outers)
        wide = shapes.NAMES["broadcast_to"]
        return [x if x.shape == outer + s else wide(x, outer + s) for x, s in moved], sizes, outer

    def _agree(self, k: int, d: Dimension, length: int | None, sizes: dict) -> None:
        if sizes.setdefault(d.name, length) == length:
            return
        if None in (length, sizes[d.name]):
            raise ValueError("An optional core-dimension must be skipped in all or no inputs.")
        raise ValueError(
            f"Input operand {k} has mismatch in its core dimension {d.name} with signature {self._signature} "
            f"({sizes[d.name]} != {length})."
        )

    def _target(self, out: Any, axes: Any, sizes: dict, outer: tuple, extra: int, dtype: np.dtype, order: str,
                casting: Any) -> tuple[Any, Any]:  # fmt: skip
        """The array to return, and the same memory as the function writes it."""
        lengths = [sizes.get(d.name, 1) for d in self._outs[0]]  # a dimension of 1 only is in no table
        present = [n for n in lengths if n is not None] + [1] * extra
        shape = outer + tuple(present)
        moved = self._transposed(self.nin, axes, len(shape), len(present))
        back = None if moved is None else tuple(np.argsort(moved).tolist())
        wanted = shape if back is None else tuple(shape[d] for d in back)
        if out is None:
            out = creation.empty(wanted, dtype, "F" if order.upper() == "F" else "C")
        else:
            if out.shape != wanted:
                raise ValueError(f"Output operand 0 has invalid shape {out.shape} expected {wanted}")
            if not np.can_cast(dtype, out.dtype, casting):
                raise TypeError(f"Cannot cast the output from {dtype} to {out.dtype} by the rule {casting!r}")
        inner = out if moved is None else out.transpose(moved)
        if extra:
            inner = inner[(..., *[0] * extra)]
        elif None in lengths:
            inner = inner[(..., *[None if n is None else slice(None) for n in lengths])]
        return out, inner

    def _apply(self, function: Callable[..., Any], outer: tuple, args: list, out: Any) -> None:
        batched = self._batched or not outer
        for index in [()] if batched else itertools.product(*map(range, outer)):
            target = out if batched else out[(*index, ...)]
            given = args if batched else [x[(*index, ...)] for x in args]
            if self._takes_out:
                function(*given, out=target)
            else:
                found = function(*given)
                dispatch.run_internal("ndarray.astype", target, found if isinstance(found, Remote) else found[0])
