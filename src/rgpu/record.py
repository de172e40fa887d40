"""Records: what ``dataclass(frozen=True)`` gives, for what every command defines when it starts.

dataclasses imports inspect and compiles each method that it makes, which is a tenth of the time of `rgpu-smi -L`.
Knows nothing of what the records are about.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self, dataclass_transform


@dataclass_transform(frozen_default=True)
class Record:
    """Its annotated names are its fields, in order; values on the class are their defaults."""

    fields: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        cls.fields = tuple(cls.__annotations__)

    def __init__(self, *values: Any, **named: Any) -> None:
        found = dict(zip(self.fields, values)) | named
        missing = [name for name in self.fields if name not in found and not hasattr(type(self), name)]
        if missing or len(found) < len(values) + len(named) or not found.keys() <= set(self.fields):
            raise TypeError(f"a {type(self).__name__} is made of {', '.join(self.fields)}")
        self.__dict__.update(found)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a {type(self).__name__} does not change")

    def but(self, **changes: Any) -> Self:
        """The same with other values of these fields."""
        return type(self)(**self.__dict__ | changes)

    def _values(self) -> tuple:
        """What it is compared by."""
        return tuple(getattr(self, name) for name in self.fields)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other._values() == self._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in self.fields)})"
