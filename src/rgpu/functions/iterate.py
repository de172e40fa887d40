"""``a.flat``, ``broadcast``: iteration over arrays without bringing them here."""

from __future__ import annotations

from typing import Any

import numpy as np

from rgpu.client.remote import Remote
from rgpu.functions import views


class flatiter:  # noqa: N801 - CuPy's name
    """The array as if it were one-dimensional, in C order. Slices and integers are indices."""

    __module__ = "cupy"

    def __init__(self, a: Any) -> None:
        self._base, self._index = a, 0

    base = property(lambda self: self._base)

    def __len__(self) -> int:
        return self._base._metadata.size

    def _positions(self, index: Any) -> Any:
        """The index as something that an array of flat positions understands."""
        if isinstance(index, bool) or not isinstance(index, int | np.integer | slice | type(Ellipsis)):
            raise IndexError("unsupported iterator index")
        if isinstance(index, int | np.integer):
            size = len(self)
            if not -size <= index < size:
                raise IndexError(f"index {index} is out of bounds for size {size}")
            return int(index) % size
        return index

    def __getitem__(self, index: Any) -> Any:
        index = self._positions(index)
        if isinstance(index, int):
            return self._base[np.unravel_index(index, self._base._metadata.shape)].copy()
        return views.ravel(self._base)[index].copy()

    def __setitem__(self, index: Any, value: Any) -> None:
        base, index = self._base, self._positions(index)
        if isinstance(value, Remote) and value._metadata.ndim > 1:
            value = views.ravel(value)
        if isinstance(index, int):
            base[np.unravel_index(index, base._metadata.shape)] = value
            return
        where = np.arange(len(self))[index]
        if isinstance(value, Remote) and value._metadata.ndim and value._metadata.size != where.size:
            value = _repeated(value, where.size)
        flat = views.flat_view(base)
        if flat is not None:
            flat[index] = value
        elif where.size:
            base[np.unravel_index(where, base._metadata.shape)] = value

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        if self._index >= len(self):
            raise StopIteration
        self._index += 1
        return self._base[np.unravel_index(self._index - 1, self._base._metadata.shape)]

    def copy(self) -> Any:
        """A one-dimensional copy."""
        return self._base.flatten()

    def _compare(self, name: str, other: Any) -> Any:
        return getattr(views.ravel(self._base), name)(
            views.ravel(other._base) if isinstance(other, flatiter) else other
        )


def _repeated(value: Any, size: int) -> Any:
    from rgpu.functions import dispatch

    if value._metadata.size == 0:
        raise ValueError("Error setting single item of array.")
    return dispatch.call("tile", value, -(-size // value._metadata.size))[:size]


for _name in ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"):
    setattr(flatiter, _name, lambda self, other, _name=_name: self._compare(_name, other))


class broadcast:  # noqa: N801 - CuPy's name
    """What arrays look like when they are broadcast against each other; ``values`` are the views."""

    __module__ = "cupy"

    def __init__(self, *arrays: Any) -> None:
        shape = np.broadcast_shapes(*[a._metadata.shape if isinstance(a, Remote) else () for a in arrays])
        self.shape: tuple[int, ...] = shape
        self.nd = self.ndim = len(shape)
        self.size = int(np.prod(shape))
        self.values = tuple(
            views.broadcast_to(a, shape) if isinstance(a, Remote) and a._metadata.shape != shape else a
            for a in arrays
        )
