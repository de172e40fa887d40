"""Names of CuPy that need no device: dtype rules, constants, printing, questions about an argument.

Most are NumPy's own objects. Where an argument may be a device array, its layout answers, or its
content is fetched when the answer is in the content (printing). No command is ever issued here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rgpu.client.meta import Meta
from rgpu.client.remote import Remote
from rgpu.functions import creation, dispatch

#: NumPy's own objects under CuPy's names (those this NumPy does not have are left out)
_SAME = """dtype iinfo finfo promote_types issubdtype isdtype mintypecode typename broadcast_shapes ndindex
base_repr binary_repr get_printoptions set_printoptions printoptions iterable index_exp s_""".split()

#: functions that look at layouts and types only: device arrays go in as empty arrays of their dtype
_BY_DTYPE = (
    "result_type can_cast common_type iscomplexobj isrealobj isfortran isscalar".split()
)

#: functions that print: the content is fetched
_PRINTING = "array2string array_repr array_str format_float_positional format_float_scientific".split()


def stand_in(x: Any) -> Any:
    """A host array that has an array's layout (and no content to speak of)."""
    if isinstance(x, Remote):
        meta: Meta = x._metadata
        if meta.f and not meta.c:
            return np.empty((1,) * meta.ndim, meta.dtype) if meta.ndim < 2 else _fortran(meta.dtype)
        return np.empty((), meta.dtype) if not meta.ndim else np.empty((0,) * meta.ndim, meta.dtype)
    return x


def _fortran(dtype: np.dtype) -> np.ndarray:
    return np.empty((2, 2), dtype, "F")


def content(x: Any) -> Any:
    return x.get() if isinstance(x, Remote) else x


def _through(name: str, prepare: Callable[[Any], Any]) -> Callable[..., Any]:
    of_numpy = getattr(np, name)

    def function(*args: Any, **kwargs: Any) -> Any:
        return of_numpy(*map(prepare, args), **{key: prepare(x) for key, x in kwargs.items()})

    function.__name__ = function.__qualname__ = name
    function.__module__ = "cupy"
    function.__doc__ = f"See ``numpy.{name}``; device arrays are accepted."
    return function


def min_scalar_type(a: Any) -> np.dtype:
    """The smallest dtype that holds a host scalar; that of an array, also on a device, is its own."""
    array = creation.cupy_like(a)
    if isinstance(array, Remote):
        return array._metadata.dtype
    if isinstance(a, list | tuple):
        nested = [creation.cupy_like(x) for x in a]
        if any(isinstance(x, Remote) for x in nested):
            return np.result_type(*[min_scalar_type(x) for x in nested])
    return np.min_scalar_type(a)


def can_cast(from_: Any, to: Any, casting: str = "safe") -> bool:
    """Whether a cast between dtypes is allowed by the rule."""
    return np.can_cast(from_._metadata.dtype if isinstance(from_, Remote) else from_, to, casting)


def common_type(*arrays: Any) -> Any:
    """The inexact type that holds them all, by their dtypes alone: ``numpy.float16`` of none, double of integers."""
    kinds = []
    for a in arrays:
        dtype = a._metadata.dtype if isinstance(a, Remote) else a.dtype
        if dtype.kind == "b":
            raise TypeError("can't get common type for non-numeric array")
        kinds.append(np.float64 if dtype.kind in "iu" else dtype.type)
    return np.result_type(np.float16, *kinds).type


def isscalar(element):  # NumPy's signature has no annotations, and programs compare
    """True for numbers and strings; an array is none, whatever it has of axes."""
    return np.isscalar(element)


def isfortran(a: Any) -> bool:
    return a._metadata.f and not a._metadata.c if isinstance(a, Remote) else np.isfortran(a)


def ndim(a: Any) -> int:
    return a._metadata.ndim if isinstance(a, Remote) else np.ndim(a)


def size(a: Any, axis: Any = None) -> int:
    if axis is None:
        return a._metadata.size if isinstance(a, Remote) else np.size(a)
    return shape(a)[axis]


def shape(a: Any) -> tuple[int, ...]:
    return a._metadata.shape if isinstance(a, Remote) else np.shape(a)


def iterable(y: Any) -> bool:
    return y._metadata.ndim > 0 if isinstance(y, Remote) else np.iterable(y)


def get_array_module(*args: Any) -> Any:
    """This package if an argument is a device array, else NumPy."""
    import rgpu

    ours = (isinstance(a, Remote) or hasattr(a, "_rgpu_on_device") for a in args)
    return rgpu if any(ours) else np


def asnumpy(
    a: Any, stream: Any = None, order: str = "C", out: Any = None, *, blocking: bool = True
) -> np.ndarray:
    """The array's content in host memory (waits)."""
    a = creation.cupy_like(a)
    if isinstance(a, Remote):
        return dispatch.ndarray.get(a, stream=stream, order=order, out=out, blocking=blocking)
    if hasattr(a, "__cupy_override_elementwise_kernel__"):
        a = a.get()  # an array of several devices
    result = np.asarray(a, order=order)
    if out is not None:
        out[...] = result
        return out
    return result


# ---- names that NumPy 2 removed and CuPy still has ----------------------------------------------


def obj2sctype(rep: Any, default: Any = None) -> Any:
    """The scalar class of an object, or ``default``."""
    if isinstance(rep, type) and issubclass(rep, np.generic):
        return rep
    if isinstance(rep, Remote):
        return rep._metadata.dtype.type
    if isinstance(rep, np.ndarray | np.generic):
        return rep.dtype.type
    try:
        return np.dtype(rep).type
    except (TypeError, ValueError):
        return default


def issctype(rep: Any) -> bool:
    """Whether the argument stands for a scalar data type."""
    if not isinstance(rep, type | np.dtype):
        return False
    found = obj2sctype(rep)
    return found is not None and found is not np.object_


def issubclass_(arg1: Any, arg2: Any) -> bool:
    try:
        return issubclass(arg1, arg2)
    except TypeError:
        return False


def issubsctype(arg1: Any, arg2: Any) -> bool:
    return issubclass(obj2sctype(arg1), obj2sctype(arg2))


def sctype2char(sctype: Any) -> str:
    found = obj2sctype(sctype)
    if found is None:
        raise ValueError("unrecognized type")
    return np.dtype(found).char


def _removed(name: str) -> Callable[..., Any]:
    def function(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(f"{name} is not available with NumPy 2")

    function.__name__ = function.__qualname__ = name
    return function


def make_aligned_dtype(dtype: Any, *, alignment: int = -1, recurse: bool = True) -> np.dtype:
    """A structured dtype padded so that a GPU may read every field: complex numbers by their size."""
    dtype = np.dtype(dtype)
    if dtype.names is None:
        raise ValueError("make_aligned_dtype() only supports structured dtypes.")
    made, least = _aligned(dtype, recurse)
    if alignment == -1 or alignment == least:
        return made
    if alignment < least or alignment & (alignment - 1):
        raise ValueError(f"alignment must be a power of two and at least {least}, not {alignment}")
    spec = {
        "names": made.names,
        "formats": [made.fields[n][0] for n in made.names],
        "offsets": [made.fields[n][1] for n in made.names],
        "itemsize": -(-made.itemsize // alignment) * alignment,
    }
    return np.dtype(spec)


def _aligned(dtype: np.dtype, recurse: bool) -> tuple[np.dtype, int]:
    """The padded dtype and its alignment."""
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        made, alignment = _aligned(base, recurse)
        return np.dtype((made, shape)), alignment
    if dtype.names is None or not recurse:
        return dtype, dtype.itemsize if dtype.kind == "c" else dtype.alignment
    formats, offsets, end, widest = [], [], 0, 1
    for name in dtype.names:
        made, alignment = _aligned(dtype.fields[name][0], recurse)
        offset = -(-end // alignment) * alignment
        formats.append(made)
        offsets.append(offset)
        end, widest = offset + made.itemsize, max(widest, alignment)
    spec = {
        "names": list(dtype.names),
        "formats": formats,
        "offsets": offsets,
        "itemsize": -(-end // widest) * widest,
    }
    return np.dtype(spec), widest


def show_config(*, _full: bool = False) -> None:
    """Print what serves this program."""
    from rgpu._version import __version__
    from rgpu.client import pool

    print(f"rgpu {__version__}, NumPy {np.__version__}")
    for device in pool.get().devices:
        print(f"{device.name}")


def who(vardict: Any = None) -> None:
    """Print the device arrays in a dictionary (default: the caller's variables)."""
    if vardict is None:
        import sys

        vardict = sys._getframe(1).f_globals
    rows = [(name, x) for name, x in vardict.items() if isinstance(x, Remote)]
    if not rows:
        print(f"\nUpper bound on total bytes  =       {0}")
        return
    print(f"{'Name':20s} {'Shape':20s} {'Bytes':>14s}  Type")
    print("=" * 70)
    for name, x in rows:
        print(f"{name:20s} {' x '.join(map(str, x._metadata.shape)):20s} {x._metadata.nbytes:14d}  {x._metadata.dtype}")
    print(f"\nUpper bound on total bytes  =       {sum(x._metadata.nbytes for _, x in rows)}")


def fill(names: dict[str, Any]) -> None:
    """Put the names of this room into a namespace."""
    names.update({name: getattr(np, name) for name in _SAME if hasattr(np, name)})
    names.update({name: _through(name, stand_in) for name in _BY_DTYPE})
    names.update({name: _through(name, content) for name in _PRINTING})
    for name in ("find_common_type", "set_string_function", "get_array_wrap", "disp", "safe_eval"):
        names[name] = getattr(np, name, None) or _removed(name)
    names["format_parser"] = np.rec.format_parser
    names["DataSource"] = np.lib.npyio.DataSource
    for function in (can_cast, common_type, min_scalar_type,
                     isscalar, isfortran, ndim, size, shape, iterable, get_array_module, asnumpy,
                     obj2sctype, issctype, issubclass_, issubsctype, sctype2char, show_config, who,
                     make_aligned_dtype):  # fmt: skip
        function.__module__ = "cupy"
        names[function.__name__] = function
