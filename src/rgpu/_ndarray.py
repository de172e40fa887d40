"""``ndarray``: what a user holds in hand. Handle, layout, stream; no data.

Operators become commands through ``functions.dispatch``; views and indices are computed on the
client; only ``get`` and what needs a host value waits. Methods that CuPy also has as functions
come from a table, not from hand-written bodies.
"""

from __future__ import annotations

import importlib
import types
import warnings
from typing import Any

import numpy as np

from rgpu.client import failures, peer, pool, predict
from rgpu.client import meta as layouts
from rgpu.client.quick import quick
from rgpu.client.remote import FIELDS, Remote
from rgpu.functions import creation, dispatch, indexing, mutate, operators, views
from rgpu.functions.flags import Flags
from rgpu.functions.printing import shown
from rgpu.functions.ufunc import UFUNCS

_IMPLICIT = (
    "Implicit conversion to a NumPy array is not allowed. "
    "Please use `.get()` to construct a NumPy array explicitly."
)


class ndarray(Remote):  # noqa: N801 - CuPy's name
    """A multi-dimensional array on a remote device (constructor as CuPy's: shape, dtype, memptr, strides, order)."""

    __slots__ = ()
    __module__ = "cupy"
    __array_priority__ = 100
    __hash__ = None  # type: ignore[assignment]

    def __new__(
        cls,
        shape: Any,
        dtype: Any = float,
        memptr: Any = None,
        strides: Any = None,
        order: str = "C",
        **_: Any,
    ) -> Any:
        shape, order = creation.checked_shape(shape), creation.checked_order(order, "C", "CF")
        if memptr is not None:
            array = memptr._array(cls, shape, np.dtype(dtype), strides, order)
        else:
            meta = layouts.ordered(layouts.fresh(shape, creation.checked_dtype(dtype)), order)
            if strides is not None:
                meta = _strided(meta, strides)
            array = views.empty(meta, pool.current_stream(), cls)
        if cls is not ndarray:
            array.__array_finalize__(None)
        return array

    def __init__(self, *_: Any, **__: Any) -> None:
        """All is done in ``__new__``; subclasses with arguments of their own hand them on."""

    def __array_finalize__(self, obj: Any) -> None:
        """Hook for subclasses, as NumPy's."""

    # ---- what it looks like -------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        return self._metadata.shape

    @shape.setter
    def shape(self, shape: Any) -> None:
        shape = views._complete(shape, self._metadata.size)
        result = views._reshaped(self._metadata.shadow, shape, "C")
        if result is None:
            raise AttributeError("incompatible shape")
        self._become(views.make(self, *layouts.view_of_shadow(result)))  # type: ignore[misc]

    def _become(self, view: Remote) -> None:
        """Take the identity of a view of oneself, for setters that change the layout in place."""
        keep = object.__new__(ndarray)
        for field in FIELDS:
            setattr(keep, field, getattr(self, field))
        for field in FIELDS:
            setattr(self, field, getattr(view, field))
        if self._root is view._root and self._root is self:
            self._root = keep
        view._handle = 0  # it lives on in self
        if keep._root is not None:
            self._root = keep._root

    dtype = property(lambda self: self._metadata.dtype)
    strides = property(lambda self: self._metadata.strides)
    ndim = property(lambda self: self._metadata.ndim)
    size = property(lambda self: self._metadata.size)
    itemsize = property(lambda self: self._metadata.itemsize)
    nbytes = property(lambda self: self._metadata.nbytes)
    base = property(lambda self: self._root)

    @property
    def flags(self) -> Flags:
        return Flags(self._metadata.c, self._metadata.f, self._root is None)

    @property
    def device(self) -> Any:
        from rgpu import cuda

        return cuda.Device(self._stream.device.ordinal)

    @property
    def data(self) -> Any:
        from rgpu.cuda import memory

        return memory.pointer_of(self)

    @property
    @quick(anywhere=True)
    def T(self) -> Any:  # noqa: N802
        return views.apply(np.ndarray.transpose, self) if self._metadata.ndim > 1 else self

    @property
    def mT(self) -> Any:  # noqa: N802
        if self._metadata.ndim < 2:
            raise ValueError("matrix transpose with ndim < 2 is undefined")
        return self.swapaxes(-1, -2)

    @property
    def real(self) -> Any:
        return views.apply(lambda x: x.real, self) if self._metadata.dtype.kind == "c" else self

    @real.setter
    def real(self, value: Any) -> None:
        self.real[...] = value

    @property
    def imag(self) -> Any:
        if self._metadata.dtype.kind == "c":
            return views.apply(lambda x: x.imag, self)
        return creation.zeros(self._metadata.shape, self._metadata.dtype)

    @imag.setter
    def imag(self, value: Any) -> None:
        if self._metadata.dtype.kind != "c":
            raise TypeError("cannot set imag of a real array")
        self.imag[...] = value

    @property
    def flat(self) -> Any:
        from rgpu.functions.iterate import flatiter

        return flatiter(self)

    @flat.setter
    def flat(self, value: Any) -> None:
        self.flat[:] = value

    def __len__(self) -> int:
        if not self._metadata.ndim:
            raise TypeError("len() of unsized object")
        return self._metadata.shape[0]

    def __iter__(self) -> Any:
        if not self._metadata.ndim:
            raise TypeError("iteration over a 0-d array")
        return (self[i] for i in range(self._metadata.shape[0]))

    # ---- to the host (these wait) ---------------------------------------------------------------

    def get(self, stream: Any = None, order: str = "C", out: Any = None, blocking: bool = True) -> np.ndarray:
        """The content as a NumPy array, in order 'C', 'F' or 'A'; ``out`` must fit exactly."""
        meta = self._metadata
        if out is not None:
            if not isinstance(out, np.ndarray):
                raise TypeError(f"Only numpy.ndarray can be obtained from cupy.ndarray (actual: {type(out)})")
            if meta.dtype != out.dtype:
                raise TypeError(f"{out.dtype} array cannot be obtained from {meta.dtype} array")
            if meta.shape != out.shape:
                raise ValueError(f"Shape mismatch. Expected shape: {meta.shape}, actual shape: {out.shape}")
            flags = out.flags
            order = "C" if flags.c_contiguous else "F"
            if order == "F" and not flags.f_contiguous:
                raise RuntimeError("`out` cannot be specified when copying to non-contiguous ndarray")
        else:
            order = (order or "C").upper()
            if order not in ("C", "F", "A"):
                raise ValueError(f"unsupported order: {order}")
            order = "F" if order == "F" or (order == "A" and meta.f and not meta.c) else "C"
            out = np.empty(meta.shape, meta.dtype, order)
        if meta.size:
            self._stream.read(self._handle, out, order, meta.wire)
        return out

    def set(self, arr: Any, stream: Any = None) -> None:
        """Overwrite the content with a NumPy array of the same shape and dtype."""
        meta = self._metadata
        if not isinstance(arr, np.ndarray):
            raise TypeError("Only numpy.ndarray can be set to cupy.ndarray")
        if meta.dtype != arr.dtype:
            raise TypeError(f"{arr.dtype} array cannot be set to {meta.dtype} array")
        if meta.shape != arr.shape:
            raise ValueError(f"Shape mismatch. Old shape: {meta.shape}, new shape: {arr.shape}")
        if not (meta.c or meta.f):
            raise RuntimeError("Cannot set to non-contiguous array")
        if meta.size:
            host = np.ascontiguousarray(arr) if meta.c else np.asfortranarray(arr)
            self._stream.write(self._handle, creation.bytes_of(host if meta.c else host.T))

    def item(self, *args: Any) -> Any:
        if args:
            return self.get().item(*args)
        if self._metadata.size != 1:
            raise ValueError("can only convert an array of size 1 to a Python scalar")
        return self.get().item()

    def tolist(self) -> Any:
        return self.get().tolist()

    def tobytes(self, order: str = "C") -> bytes:
        return self.get().tobytes(order)

    def tofile(self, fid: Any, sep: str = "", format: str = "%s") -> None:
        self.get().tofile(fid, sep, format)

    def dump(self, file: Any) -> None:
        self.get().dump(file)

    def dumps(self) -> bytes:
        return self.get().dumps()

    def __bool__(self) -> bool:
        if self._metadata.size == 1:
            return bool(self.get())
        if self._metadata.size == 0:
            warnings.warn(
                "The truth value of an empty array is ambiguous. Returning False, but in future this will result in "
                "an error. Use `array.size > 0` to check that an array is not empty.",
                DeprecationWarning,
                stacklevel=2,
            )
            return False
        raise ValueError(
            "The truth value of an array with more than one element is ambiguous. Use a.any() or a.all()"
        )

    def __int__(self) -> int:
        return int(self.get())

    def __float__(self) -> float:
        return float(self.get())

    def __complex__(self) -> complex:
        return complex(self.get())

    def __bytes__(self) -> bytes:
        return bytes(self.get())

    def __repr__(self) -> str:
        return shown(self, repr)

    def __str__(self) -> str:
        return shown(self, str)

    def __format__(self, spec: str) -> str:
        return format(self.get(), spec)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise TypeError(_IMPLICIT)

    def __reduce__(self) -> Any:
        return _unpickled, (self.get(order="A"),)  # a function of this module: the process may not have imported cupy

    def __copy__(self) -> Any:
        return self.copy()

    def __deepcopy__(self, memo: Any) -> Any:
        with self._stream.device:
            return self.copy()

    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: Any = None
    ) -> Any:
        """A host copy for ``dl_device=(1, 0)``; the memory itself is on another machine."""
        if dl_device is None or tuple(dl_device) == (1, 0):
            if dl_device is None or copy is False:
                raise BufferError("the data is on a remote device: ask for a host copy with dl_device=(1, 0)")
            return self.get().__dlpack__()
        raise BufferError(f"cannot export a remote array to DLPack device {dl_device}")

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, self._stream.device.ordinal)

    # ---- views and copies -----------------------------------------------------------------------

    def __setitem__(self, index: Any, value: Any) -> None:
        indexing.setitem(self, index, value)

    @quick(anywhere=True)
    def reshape(self, *shape: Any, order: str = "C", copy: bool | None = None) -> Any:
        if isinstance(copy, str):
            raise ValueError("strings are not allowed for 'copy' keyword. Use True/False/None instead.")
        result = views.reshape(self, shape[0] if len(shape) == 1 else shape, order)
        if copy is False and not views.same_memory(self, result):
            raise ValueError("Unable to avoid creating a copy while reshaping.")
        return result.copy() if copy and views.same_memory(self, result) else result

    __class_getitem__ = classmethod(types.GenericAlias)

    def reduced_view(self) -> Any:
        return views.reduced(self)

    def ravel(self, order: str = "C") -> Any:
        return views.ravel(self, order)

    def flatten(self, order: str = "C") -> Any:
        flat = views.ravel(self, order)
        return views.copy(flat, "C", cls=ndarray) if views.same_memory(self, flat) else flat

    @quick(anywhere=True)
    def transpose(self, *axes: Any) -> Any:
        return views.apply(np.ndarray.transpose, self, *axes)

    def swapaxes(self, axis1: int, axis2: int) -> Any:
        return views.apply(np.ndarray.swapaxes, self, axis1, axis2)

    def squeeze(self, axis: Any = None) -> Any:
        return views.apply(np.ndarray.squeeze, self, axis)

    def diagonal(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
        return views.apply(np.ndarray.diagonal, self, offset, axis1, axis2)

    def view(self, *args: Any, dtype: Any = None, type: Any = None) -> Any:  # noqa: A002
        """The same memory as another dtype, another class, or both."""
        for argument in args:
            if isinstance(argument, _TYPE) and issubclass(argument, np.ndarray | Remote) or dtype is not None:
                if type is not None:
                    raise TypeError(
                        "cannot specify the class twice" if dtype is None else "too many arguments"
                    )
                type = argument  # noqa: A001
            else:
                dtype = argument
        if dtype is not None and isinstance(dtype, _TYPE) and issubclass(dtype, Remote):
            dtype, type = None, dtype if type is None else type  # noqa: A001
        if type is not None and not (isinstance(type, _TYPE) and issubclass(type, ndarray)):
            raise (ValueError if isinstance(type, _TYPE) else TypeError)(
                "Type must be a sub-type of ndarray type"
            )
        shadow = self._metadata.shadow if dtype is None else self._metadata.shadow.view(np.dtype(dtype))
        return views.make(self, *layouts.view_of_shadow(shadow), type)  # type: ignore[misc]

    @quick()
    def copy(self, order: str = "C") -> Any:
        order = creation.checked_order(order, "K")
        if self._stream is not pool.current_stream():
            moved = dispatch.to_device(self)
            return (
                moved
                if order in "AK" or (moved._metadata.c if order == "C" else moved._metadata.f)
                else moved.copy(order)
            )
        return views.copy(self, order, cls=ndarray)

    @quick()
    def astype(
        self, dtype: Any, order: str = "K", casting: Any = None, subok: Any = None, copy: bool = True
    ) -> Any:
        """The content as another dtype; with ``copy=False`` the array itself where nothing changes."""
        if casting is not None or subok is not None:
            raise TypeError(f"{'casting' if casting is not None else 'subok'} is not supported yet")
        order, meta = creation.checked_order(order, "K"), self._metadata
        dtype = dtype if dtype is meta.dtype else creation.checked_dtype(dtype)
        if (
            not copy
            and dtype == meta.dtype
            and (
                order == "K"
                or order == "A"
                and (meta.c or meta.f)
                or order == "C"
                and meta.c
                or order == "F"
                and meta.f
            )
        ):
            return self
        if self._stream is not pool.current_stream():
            return dispatch.to_device(self).astype(dtype, order, copy=False)
        loses = meta.dtype.kind == "c" and dtype.kind not in "bc"
        if loses:
            warnings.warn(
                "Casting complex values to real discards the imaginary part",
                np.exceptions.ComplexWarning,
                stacklevel=failures.users_level(),
            )
        return views.copy(self, order, dtype, ndarray, noted=not loses)

    def fill(self, value: Any) -> None:
        value = creation.cupy_like(value)
        if isinstance(value, Remote):
            if value._metadata.ndim:
                raise ValueError("fill() with an array that is not 0-dimensional")
            self[...] = value.astype(self._metadata.dtype, copy=False)
        else:
            indexing.assign(self, value)

    def scatter_add(self, slices: Any, value: Any) -> None:
        UFUNCS["add"].at(self, slices, value)

    def scatter_max(self, slices: Any, value: Any) -> None:
        UFUNCS["maximum"].at(self, slices, value)

    def scatter_min(self, slices: Any, value: Any) -> None:
        UFUNCS["minimum"].at(self, slices, value)

    def toDlpack(self) -> Any:  # noqa: N802
        raise BufferError("the data is on a remote device: use `.get()`, or __dlpack__ with dl_device=(1, 0)")

    def conj(self) -> Any:
        return self.conjugate()

    def conjugate(self) -> Any:
        return UFUNCS["conjugate"](self) if self._metadata.dtype.kind == "c" else self

    def sort(self, axis: int = -1) -> None:
        if not self._metadata.ndim:
            raise np.exceptions.AxisError("Sorting arrays with the rank of zero is not supported")
        self._sortable(axis)
        dispatch.run_internal("ndarray.sort", self, axis)

    def _sortable(self, axis: Any) -> int:
        """The axis of a sort in place, checked now: nobody waits for the worker's objection."""
        if not self._metadata.c:
            raise NotImplementedError("Sorting non-contiguous array is not supported.")
        return predict.axis(axis, self._metadata.ndim)

    def partition(self, kth: Any, axis: int = -1) -> None:
        if not self._metadata.ndim:
            raise np.exceptions.AxisError("Sorting arrays with the rank of zero is not supported")
        extent = self._metadata.shape[self._sortable(axis)]
        for k in kth if isinstance(kth, tuple | list) else (kth,):
            if not -extent <= k < extent:
                raise ValueError(f"kth(={k}) out of bounds {extent}")
        dispatch.run_internal("ndarray.partition", self, kth, axis)

    def put(self, indices: Any, values: Any, mode: str = "wrap") -> None:
        mutate.put(self, indices, values, mode)

    def byteswap(self, inplace: bool = False) -> Any:
        if self._metadata.dtype.names is not None:
            raise TypeError("byteswap is not supported for structured dtypes")
        target = self if inplace else self.copy()
        dispatch.run_internal("ndarray.byteswap", target)
        return target

    @quick()
    def max(self, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        return dispatch.call("max", self, **operators.options(axis=axis, out=out, keepdims=keepdims))


    @property
    def __cuda_array_interface__(self) -> dict:
        """CUDA's description of the array, version 3, or what CUPY_CUDA_ARRAY_INTERFACE_EXPORT_VERSION says. The
        address is one of the pool's: it means something to this package only, and no driver accepts it."""
        from rgpu import cuda
        from rgpu.cuda import addresses

        meta, version = self._metadata, addresses.interface_version
        described = {
            "shape": meta.shape,
            "typestr": meta.dtype.str,
            "descr": meta.dtype.descr,
            "version": version,
            "strides": None if meta.c else meta.strides,
            "data": (self.data.ptr if meta.size else 0, False),
        }
        return described | ({"stream": cuda.get_current_stream().ptr or 1} if version > 2 else {})

    # ---- protocols ------------------------------------------------------------------------------

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        import rgpu

        name, out = ufunc.__name__, kwargs.get("out", ())
        if len(out) > 1:
            raise ValueError("The 'out' parameter must have exactly one array value")
        if out:
            kwargs["out"] = out[0]
        found = UFUNCS.get(name) or getattr(rgpu, name, None)
        if found is None:  # SciPy's ufuncs of special functions
            found = getattr(importlib.import_module("rgpu.cupyx.scipy.special"), name, None)
        if found is not None and method != "__call__":
            found = getattr(found, method, None)
        if found is None:
            return NotImplemented
        for x in (*inputs, *out):
            if not isinstance(x, operators.OPERANDS) and not hasattr(x, "__cupy_get_ndarray__"):
                return NotImplemented
        if name in operators.COMPARISONS.values():
            inputs = tuple(x[()] if isinstance(x, np.ndarray) and not x.ndim else x for x in inputs)
        return found(*inputs, **kwargs)

    def __array_function__(self, func: Any, types: Any, args: tuple, kwargs: dict) -> Any:
        import rgpu

        if not all(issubclass(t, ndarray | np.ndarray) for t in types):
            return NotImplemented
        found: Any = rgpu
        for part in [*func.__module__.split(".")[1:], func.__name__]:
            found = getattr(found, part, None)
            if found is None:
                return NotImplemented
        return NotImplemented if found is func else found(*args, **kwargs)


_TYPE = type  # ``view`` has a parameter of this name


def _strided(meta: Any, strides: Any) -> Any:
    """A layout with strides of the caller's, within the size of a contiguous array."""
    strides = tuple(int(n) for n in strides)
    if len(strides) != meta.ndim:
        raise ValueError("len(shape) != len(strides)")
    if meta.size:
        reach = [(extent - 1) * stride for extent, stride in zip(meta.shape, strides)]
        if sum(n for n in reach if n < 0):
            raise ValueError("ndarray() with strides currently does not allow negative strides")
        end = sum(reach) + meta.itemsize
        if end > meta.nbytes:
            raise ValueError(
                f"ndarray() with strides must stay within a contiguous size of {meta.nbytes} but got {end}."
            )
    return layouts.intern(meta.shape, meta.dtype, strides)


def _unpickled(values: Any) -> Any:
    return creation.array(values)


def to_device(array: Any) -> Any:
    """A copy on the current device, in the source's memory order."""
    if not (array._metadata.c or array._metadata.f):
        array = views.copy(array, "K")  # dense: what travels is bytes
        if not (array._metadata.c or array._metadata.f):
            array = views.copy(array, "C")
    result = views.empty(array._metadata, pool.current_stream(), type(array))
    peer.copy(result, array)
    return result


operators.install(ndarray)
dispatch.ndarray = ndarray
dispatch.plain.add(ndarray)
dispatch.like = creation.cupy_like
dispatch.to_device, dispatch.to_order = to_device, views.copy
