"""How a message is declared: a class with typed fields becomes encoder, gate and documentation.

A declaration lists its fields as annotations; each annotation is a ``Kind`` that can check a
decoded value. On the wire a message is a msgpack array ``[tag, field, ...]``. The checks here are
the one gate: a handler never sees a value that did not pass its kind.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any, ClassVar

from rgpu.errors import ProtocolError
from rgpu.wire import limits


class Kind:
    """What one field may hold. ``check`` returns the value or raises ProtocolError."""

    name = "any"
    accepts_all = False  # ``check`` need not be called
    bounds = 1, 0  # an integer between them needs no ``check``

    def check(self, x: Any) -> Any:
        raise NotImplementedError

    def __repr__(self) -> str:
        return self.name

    def refuse(self, x: Any) -> ProtocolError:
        return ProtocolError(f"expected {self.name}, got {type(x).__name__} {str(x)[:60]!r}")


class _Int(Kind):
    def __init__(self, name: str, low: int, high: int) -> None:
        self.name, self.low, self.high, self.bounds = name, low, high, (low, high)

    def check(self, x: Any) -> Any:
        if type(x) is not int or not self.low <= x <= self.high:
            raise self.refuse(x)
        return x


class _Exact(Kind):
    def __init__(self, name: str, *types: type) -> None:
        self.name, self.types = name, types

    def check(self, x: Any) -> Any:
        if type(x) not in self.types:
            raise self.refuse(x)
        return x


class Text(Kind):
    """A string of at most ``limit`` characters."""

    def __init__(self, limit: int = limits.TEXT) -> None:
        self.limit, self.name = limit, f"text({limit})"

    def check(self, x: Any) -> Any:
        if type(x) is not str or len(x) > self.limit:
            raise self.refuse(x)
        return x


class Blob(Kind):
    """Bytes carried inside the message; large data travels in frames of its own."""

    def __init__(self, limit: int = limits.INLINE_BYTES) -> None:
        self.limit, self.name = limit, f"bytes({limit})"

    def check(self, x: Any) -> Any:
        if type(x) is not bytes or len(x) > self.limit:
            raise self.refuse(x)
        return x


class Optional(Kind):
    """The inner kind, or nil."""

    def __init__(self, inner: Kind) -> None:
        self.inner, self.name = inner, f"{inner.name}?"

    def check(self, x: Any) -> Any:
        return None if x is None else self.inner.check(x)


class ListOf(Kind):
    """A list of at most ``limit`` values of the inner kind."""

    def __init__(self, inner: Kind, limit: int = limits.LIST) -> None:
        self.inner, self.limit, self.name = inner, limit, f"[{inner.name}]({limit})"

    def check(self, x: Any) -> Any:
        if type(x) not in (list, tuple) or len(x) > self.limit:
            raise self.refuse(x)
        if self.inner.accepts_all:
            return x
        check, (low, high) = self.inner.check, self.inner.bounds
        for item in x:
            if type(item) is not int or not low <= item <= high:
                check(item)
        return x


class MapOf(Kind):
    """A dictionary from short text to values of the inner kind."""

    def __init__(self, inner: Kind, limit: int = limits.LIST) -> None:
        self.inner, self.limit, self.name = inner, limit, f"{{text: {inner.name}}}({limit})"

    def check(self, x: Any) -> Any:
        if type(x) is not dict or len(x) > self.limit:
            raise self.refuse(x)
        for key, value in x.items():
            if type(key) is not str or len(key) > limits.TEXT:
                raise self.refuse(key)
            self.inner.check(value)
        return x


U8 = _Int("u8", 0, 2**8 - 1)
U16 = _Int("u16", 0, 2**16 - 1)
U32 = _Int("u32", 0, 2**32 - 1)
U64 = _Int("u64", 0, 2**64 - 1)
I64 = _Int("i64", -(2**63), 2**63 - 1)
HANDLE = _Int("handle", 1, 2**64 - 1)
BOOL = _Exact("bool", bool)
NUMBER = _Exact("number", int, float)
SCALAR = _Exact("scalar", int, float, str, bytes, bool, type(None))
SHAPE = ListOf(_Int("extent", 0, 2**63 - 1), limits.NDIM)
STRIDES = ListOf(I64, limits.NDIM)
HANDLES = ListOf(HANDLE, limits.HANDLES)


class _Plain(Kind):
    """Telemetry and properties: nil, bool, number, text, and lists and maps of them."""

    name = "plain"

    def check(self, x: Any, depth: int = 0) -> Any:
        kind = type(x)
        if x is None or kind in (bool, int, float):
            return x
        if kind is str and len(x) <= limits.LONG_TEXT:
            return x
        if depth < limits.DEPTH and kind in (list, tuple, dict) and len(x) <= limits.LIST:
            if kind is dict:
                for key in x:
                    if type(key) is not str or len(key) > limits.TEXT:
                        raise self.refuse(key)
                x_items = x.values()
            else:
                x_items = x
            for item in x_items:
                self.check(item, depth + 1)
            return x
        raise self.refuse(x)


PLAIN = _Plain()


def _gate(kinds: list[Kind], explain: Callable[[list], None]) -> Callable[[list], None]:
    """A function that checks the fields of one message; ``explain`` does it again, to say what is wrong.
    Integers within their kinds' bounds, which most fields are, cost no call."""
    checks, bounds = [kind.check for kind in kinds], [kind.bounds for kind in kinds]
    if len(kinds) == 1:
        (check,) = checks

        def gate(values: list) -> None:
            if len(values) != 1:
                explain(values)
            try:
                check(values[0])
            except ProtocolError:
                explain(values)
                raise

    elif len(kinds) == 3:
        (low_a, high_a), (low_b, high_b), (low_c, high_c) = bounds
        check_a, check_b, check_c = checks

        def gate(values: list) -> None:
            if len(values) != 3:
                explain(values)
            a, b, c = values
            try:
                if type(a) is not int or not low_a <= a <= high_a:
                    check_a(a)
                if type(b) is not int or not low_b <= b <= high_b:
                    check_b(b)
                if type(c) is not int or not low_c <= c <= high_c:
                    check_c(c)
            except ProtocolError:
                explain(values)
                raise

    elif len(kinds) == 4:
        (low_a, high_a), (low_b, high_b), (low_c, high_c), (low_d, high_d) = bounds
        check_a, check_b, check_c, check_d = checks

        def gate(values: list) -> None:
            if len(values) != 4:
                explain(values)
            a, b, c, d = values
            try:
                if type(a) is not int or not low_a <= a <= high_a:
                    check_a(a)
                if type(b) is not int or not low_b <= b <= high_b:
                    check_b(b)
                if type(c) is not int or not low_c <= c <= high_c:
                    check_c(c)
                if type(d) is not int or not low_d <= d <= high_d:
                    check_d(d)
            except ProtocolError:
                explain(values)
                raise

    else:

        def gate(values: list) -> None:
            if len(values) != len(checks):
                explain(values)
            try:
                for check, (low, high), value in zip(checks, bounds, values):
                    if type(value) is not int or not low <= value <= high:
                        check(value)
            except ProtocolError:
                explain(values)
                raise

    return gate


class _Record:
    """A message's named tuple, made when it is first asked for: a program needs few of a hundred, and each takes as
    long as importing a small module."""

    _made: ClassVar[dict[type, type]] = {}

    def __get__(self, _instance: Any, owner: type[Message]) -> type:
        made = namedtuple(owner.__name__, [field for field, _ in owner.fields])
        owner.Record = self._made.setdefault(owner, made)  # of two threads that make it, one wins
        return owner.Record


class Message:
    """Base of one family of messages (commands, replies, control). Subclass it with a tag::

        class Free(Command, tag=3):
            handles: HANDLES

    ``Free.encode(handles=[1, 2])`` gives the tuple that goes on the wire; ``family.decode`` gives
    a named tuple back. A tag is never used twice in a family.
    """

    tag: ClassVar[int]
    fields: ClassVar[tuple[tuple[str, Kind], ...]]
    Record: ClassVar[Any] = _Record()
    reply: ClassVar[type | None] = None
    registry: ClassVar[dict[int, type]]
    gate: ClassVar[Callable[[list], None]]  # ``check_fields``, faster

    def __init_subclass__(cls, tag: int | None = None, reply: type | None = None, **kw: Any) -> None:
        super().__init_subclass__(**kw)
        if tag is None:  # a family
            cls.registry = {}
            return
        if tag in cls.registry:
            raise TypeError(f"tag {tag} of {cls.__name__} is taken by {cls.registry[tag].__name__}")
        cls.tag, cls.reply = tag, reply
        cls.fields = tuple(cls.__annotations__.items())
        for field, kind in cls.fields:
            if not isinstance(kind, Kind):
                raise TypeError(f"{cls.__name__}.{field} is not declared with a Kind")
        cls.registry[tag] = cls
        cls.gate = staticmethod(_gate([kind for _, kind in cls.fields], cls.check_fields))  # type: ignore[assignment]

    @classmethod
    def encode(cls, *args: Any, **kw: Any) -> tuple:
        """The wire form ``(tag, field, ...)``; fields by position or by name, none missing."""
        return (cls.tag, *cls.Record(*args, **kw))

    @classmethod
    def check_fields(cls, values: list) -> None:
        """Raise ProtocolError unless ``values`` (without the tag) fit the declaration."""
        if len(values) != len(cls.fields):
            raise ProtocolError(f"{cls.__name__} has {len(cls.fields)} fields, got {len(values)}")
        for (field, kind), value in zip(cls.fields, values):
            try:
                kind.check(value)
            except ProtocolError as error:
                raise ProtocolError(f"{cls.__name__}.{field}: {error}") from None

    @classmethod
    def decode(cls, message: Any) -> Any:
        """Check a decoded array against the family and return its named tuple."""
        if type(message) not in (list, tuple) or not message or type(message[0]) is not int:
            raise ProtocolError(f"a {cls.__name__.lower()} must be an array that begins with its tag")
        declared = cls.registry.get(message[0])
        if declared is None:
            raise ProtocolError(f"unknown {cls.__name__.lower()} tag {message[0]}")
        values = message[1:]
        declared.gate(values)
        return declared.Record(*values)

    @classmethod
    def describe(cls) -> list[str]:
        """One line per message of the family, for the fingerprint and docs/protocol.md."""
        lines = []
        for tag, declared in sorted(cls.registry.items()):
            fields = ", ".join(f"{field}: {kind.name}" for field, kind in declared.fields)
            reply = f" -> {declared.reply.__name__}" if declared.reply else ""
            lines.append(f"{cls.__name__} {tag} {declared.__name__}({fields}){reply}")
        return lines
