"""Argument values on the wire: what may stand in a call besides handles.

Plain None, bool, int, float, str and bytes travel as they are. Everything else is an array that
begins with a small tag (``TAGS``), so that no value can be mistaken for another and nothing on
the wire can name code. Decoding is the gate for values: it builds a valid object or refuses.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from rgpu.errors import ProtocolError
from rgpu.wire import limits
from rgpu.wire.declare import Kind, ListOf, MapOf

_NUMPY = tuple(map(int, np.__version__.split(".")[:2]))
OLD_NUMPY = _NUMPY < (2, 1)  #: promotes as no worker does; clients may have it (docs/adr/0007)
if _NUMPY < (1, 26):  # an environment that pip did not make
    raise ImportError(f"rgpu needs NumPy 1.26 or newer, this is {np.__version__}: pip install -U numpy")

LIST, TUPLE, HANDLE, DTYPE, SLICE, COMPLEX, SCALAR, ELLIPSIS, ARRAY, BIGINT, DICT, INT, RESULT = range(13)
TAGS = "list tuple handle dtype slice complex scalar ellipsis array bigint dict int result".split()


class _Value(Kind):
    name = "value"
    accepts_all = True

    def check(self, x: Any) -> Any:
        return x  # ``Decoder`` refuses what is malformed; it sees every value exactly once


class _DType(Kind):
    name = "dtype"

    def check(self, x: Any) -> Any:
        decode_dtype(x)
        return x


class _Operand(Kind):
    """A handle as a bare integer, or a scalar value; the compact form of hot commands."""

    name = "operand"
    bounds = 1, 2**64 - 1

    def check(self, x: Any) -> Any:
        if type(x) is int and x < 1:
            raise self.refuse(x)
        return x


VALUE = _Value()
OPERAND = _Operand()
DTYPE_KIND = _DType()
VALUES = ListOf(VALUE, limits.LIST)
VALUE_MAP = MapOf(VALUE, 256)

_DTYPE_TEXT = re.compile(r"[<>|=]?([?]|[biufcVSU]\d{1,9}|[mM]8\[(Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\])")
_ML_DTYPES = frozenset(
    "bfloat16 int2 int4 uint2 uint4 float4_e2m1fn float6_e2m3fn float6_e3m2fn float8_e3m4 float8_e4m3 "
    "float8_e4m3b11fnuz float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu".split()
)
_dtype_cache: dict[Any, np.dtype] = {}


def encode_dtype(dtype: np.dtype) -> Any:
    """``'<f8'`` for plain dtypes, a nested list for structured ones, a name for ml_dtypes."""
    if dtype.names is not None:
        fields = [[name, encode_dtype(dtype.fields[name][0]), dtype.fields[name][1]] for name in dtype.names]
        return [0, fields, dtype.itemsize, dtype.isalignedstruct]
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return [1, encode_dtype(base), list(shape)]
    if dtype.kind == "V" and dtype.type is not np.void:
        return dtype.name  # bfloat16 and its kin: .str would say '<V2'
    return dtype.str


def decode_dtype(wire: Any) -> np.dtype:
    """The dtype of a wire form; ProtocolError for anything that could hold a Python object."""
    if type(wire) is str:
        found = _dtype_cache.get(wire)
        if found is None:
            found = _checked_dtype(wire)
            if len(_dtype_cache) < 1024:
                _dtype_cache[wire] = found
        return found
    try:
        if type(wire) is list and len(wire) == 4 and wire[0] == 0:
            return _structured(*wire[1:])
        if type(wire) is list and len(wire) == 3 and wire[0] == 1:
            base, shape = wire[1:]
            if type(shape) is list and all(type(n) is int and n >= 0 for n in shape):
                return np.dtype((decode_dtype(base), tuple(shape)))
    except ProtocolError:
        raise
    except Exception as error:  # NumPy refuses in many ways
        raise ProtocolError(f"not a dtype: {error}") from None
    raise ProtocolError(f"not a dtype: {str(wire)[:60]!r}")


def _structured(fields: list, itemsize: int, align: bool) -> np.dtype:
    if type(fields) is not list or len(fields) > limits.FIELDS:
        raise ProtocolError(f"a structured dtype has a list of at most {limits.FIELDS} fields")
    for name, _, offset in fields:
        if type(name) is not str or type(offset) is not int or len(name) > limits.TEXT:
            raise ProtocolError(f"not a field: {str(name)[:20]!r} at {str(offset)[:20]}")
    spec = {
        "names": [name for name, _, _ in fields],
        "formats": [decode_dtype(form) for _, form, _ in fields],
        "offsets": [offset for _, _, offset in fields],
        "itemsize": itemsize,
    }
    return np.dtype(spec, align=bool(align))


def _checked_dtype(text: str) -> np.dtype:
    """Only the forms that ``encode_dtype`` makes: NumPy's own parser accepts whole expressions."""
    if _DTYPE_TEXT.fullmatch(text) is None:
        return _ml_dtype(text)
    try:
        return np.dtype(text)
    except Exception as error:
        raise ProtocolError(f"dtype {text!r} is not allowed: {error}") from None


def _ml_dtype(text: str) -> np.dtype:
    text = text[:64]
    try:
        import ml_dtypes
    except ImportError:
        raise ProtocolError(f"dtype {text!r} is unknown here (ml_dtypes is not installed)") from None
    kind = getattr(ml_dtypes, text, None) if text in _ML_DTYPES else None
    if kind is None:
        raise ProtocolError(f"dtype {text!r} is unknown")
    return np.dtype(kind)


def encode(x: Any, special: Callable[[Any], Any]) -> Any:
    """Wire form of one argument. ``special(x)`` encodes what only the caller knows (arrays,
    handles) or returns None to let this function raise TypeError."""
    kind = type(x)
    if x is None or kind is bool or kind is float or kind is str or kind is bytes:
        return x
    if kind is int:
        return x if -(2**63) <= x < 2**63 else [BIGINT, str(x)]
    if kind is tuple:
        return [TUPLE, *[encode(item, special) for item in x]]
    if kind is list:
        return [LIST, *[encode(item, special) for item in x]]
    found = special(x)
    if found is not None:
        return found
    if kind is slice:
        return [SLICE, encode(x.start, special), encode(x.stop, special), encode(x.step, special)]
    if x is Ellipsis:
        return [ELLIPSIS]
    if isinstance(x, np.dtype):
        return [DTYPE, encode_dtype(x)]
    if isinstance(x, type) and issubclass(x, np.generic):
        return [DTYPE, encode_dtype(np.dtype(x))]
    if kind is type and x in (bool, int, float, complex):
        return [DTYPE, np.dtype(x).str]
    if isinstance(x, np.generic):
        return [SCALAR, encode_dtype(x.dtype), x.tobytes()]
    if isinstance(x, bool | int | float | str):  # subclasses (enums, np.str_) by value
        return encode(next(t for t in (bool, int, float, str) if isinstance(x, t))(x), special)
    if isinstance(x, complex):
        return [COMPLEX, x.real, x.imag]
    if isinstance(x, dict):
        return [DICT, *[encode(item, special) for pair in x.items() for item in pair]]
    if isinstance(x, np.ndarray):
        if x.dtype.hasobject:
            raise TypeError(f"Unsupported dtype {x.dtype}")
        data = np.ascontiguousarray(x)
        if data.nbytes > limits.INLINE_BYTES:
            raise TypeError("arrays of this size must be on the device: use cupy.asarray")
        return [ARRAY, encode_dtype(x.dtype), list(x.shape), data.tobytes()]
    if isinstance(x, range):
        return [LIST, *x]
    if isinstance(x, tuple | list):
        return [TUPLE if isinstance(x, tuple) else LIST, *[encode(item, special) for item in x]]
    raise TypeError(f"Unsupported type {type(x)}")


class Decoder:
    """Builds Python values out of wire values; ``handle`` resolves handles, ``result`` descriptions."""

    def __init__(self, handle: Callable[[Any], Any], result: Callable[..., Any] | None = None) -> None:
        self._handle = handle
        self._result = result

    def __call__(self, x: Any, depth: int = 0) -> Any:
        if type(x) is not list:
            if type(x) not in _PLAIN:
                raise ProtocolError(f"a {type(x).__name__} is not a value")
            return x
        if depth > limits.DEPTH:
            raise ProtocolError("argument nested too deeply")
        if len(x) == 2:
            tag, content = x
            if tag == HANDLE:
                return self._handle(content)  # outside the try: what a handle raises is its own
            if tag == INT and type(content) is int:
                return content
        try:
            return self._tagged(x, depth + 1)
        except (IndexError, TypeError, ValueError, OverflowError) as error:
            raise ProtocolError(f"malformed value: {error}") from None

    def _tagged(self, x: list, depth: int) -> Any:  # noqa: PLR0911 - one branch a tag
        tag = x[0]
        if tag == TUPLE:
            return tuple([self(item, depth) for item in x[1:]])
        if tag == LIST:
            return [self(item, depth) for item in x[1:]]
        if tag == DTYPE:
            return decode_dtype(x[1])
        if tag == SLICE:
            return slice(self(x[1], depth), self(x[2], depth), self(x[3], depth))
        if tag == SCALAR:
            return _exact_array(x[1], [], x[2])[()]
        if tag == COMPLEX:
            return complex(x[1], x[2])
        if tag == ELLIPSIS:
            return Ellipsis
        if tag == ARRAY:
            return _exact_array(x[1], x[2], x[3])
        if tag == BIGINT and type(x[1]) is str and len(x[1]) < 4096:
            return int(x[1])
        if tag == DICT:
            items = [self(item, depth) for item in x[1:]]
            return dict(zip(items[::2], items[1::2], strict=True))
        if tag == RESULT and self._result is not None:
            return self._result(*x[1:])
        raise ProtocolError(f"unknown value tag {str(tag)[:20]!r}")


_PLAIN = frozenset((type(None), bool, int, float, str, bytes))


def _exact_array(dtype: Any, shape: Any, data: Any) -> np.ndarray:
    """An array of its own whose bytes are exactly the data."""
    dtype = decode_dtype(dtype)
    if type(data) is not bytes or type(shape) is not list or len(shape) > limits.NDIM:
        raise ProtocolError("an array is a dtype, a list of extents and bytes")
    if any(type(n) is not int or n < 0 for n in shape) or math.prod(shape) * dtype.itemsize != len(data):
        raise ProtocolError(f"{len(data)} bytes for an array of shape {str(shape)[:60]} and dtype {dtype}")
    if not data:
        return np.empty(shape, dtype)
    return np.frombuffer(data, np.uint8).copy().view(dtype).reshape(shape)
