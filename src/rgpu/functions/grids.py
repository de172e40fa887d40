"""``r_ c_ mgrid ogrid ix_``: arrays written as indices."""

from __future__ import annotations

from typing import Any

import numpy as np

from rgpu.client.remote import Remote
from rgpu.functions import creation, dispatch, shapes, views


class _Grid:
    """``mgrid[0:3, 0:2:5j]``: NumPy computes the small axes, they are uploaded and broadcast there."""

    def __init__(self, sparse: bool) -> None:
        self.sparse = sparse

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return creation.array(np.ogrid[key])
        axes = [creation.array(x) for x in np.ogrid[key]]
        if self.sparse:
            return tuple(axes)
        if not axes:
            return creation.empty((0,))
        shape = np.broadcast_shapes(*[a._meta.shape for a in axes])
        return dispatch.call("stack", [views.broadcast_to(a, shape) for a in axes])


class _Joiner:
    """``r_[...]`` and ``c_[...]``: arrays, scalars and slices put one after another along an axis."""

    def __init__(self, axis: int = 0, ndmin: int = 1, trans1d: int = -1) -> None:
        self.axis, self.ndmin, self.trans1d = axis, ndmin, trans1d

    def __len__(self) -> int:
        return 0

    def __getitem__(self, key: Any) -> Any:
        items = key if isinstance(key, tuple) else (key,)
        axis, ndmin, trans1d = self.axis, self.ndmin, self.trans1d
        pieces: list = []
        scalars: list[int] = []
        for number, item in enumerate(items):
            if isinstance(item, str):
                if number:
                    raise ValueError("special directives must be the first entry.")
                if item in ("r", "c"):
                    raise NotImplementedError("matrix directives are not supported")
                axis, ndmin, trans1d = self._directive(item, axis, ndmin, trans1d)
            elif isinstance(item, slice):
                pieces.append(self._placed(creation.array(np.r_[item]), ndmin, trans1d))
            elif isinstance(item, Remote):
                pieces.append(self._placed(item, ndmin, trans1d) if item._meta.ndim else self._scalar(item, ndmin))
            elif np.isscalar(item):
                scalars.append(len(pieces))
                pieces.append(item)
            elif np.ndim(item) == 0:
                raise ValueError(f"unsupported item {item!r}")
            else:
                pieces.append(self._placed(creation.array(item), ndmin, trans1d))
        arrays = [p._meta.dtype for p in pieces if isinstance(p, Remote)]
        values = [pieces[i] for i in scalars]
        if scalars:
            final = np.result_type(*arrays, *values)
            for i in scalars:
                pieces[i] = creation.array(pieces[i], dtype=final, ndmin=ndmin)
        return dispatch.call("concatenate", pieces, axis)

    @staticmethod
    def _scalar(item: Any, ndmin: int) -> Any:
        return views.reshape(item, (1,) * ndmin)

    @staticmethod
    def _directive(item: str, axis: int, ndmin: int, trans1d: int) -> tuple[int, int, int]:
        numbers = [int(x) for x in item.split(",")]
        return tuple([*numbers, *(axis, ndmin, trans1d)[len(numbers) :]])[:3]  # type: ignore[return-value]

    @staticmethod
    def _placed(item: Any, ndmin: int, trans1d: int) -> Any:
        """At least ``ndmin`` axes; where the old ones stand among them is NumPy's rule for ``trans1d``."""
        ndim = item._meta.ndim
        if ndim >= ndmin:
            return item
        item = views.reshape(item, (1,) * (ndmin - ndim) + item._meta.shape)
        if trans1d == -1:
            return item
        missing = ndmin - ndim
        first = trans1d + ndmin - ndim + 1 if trans1d < 0 else trans1d
        order = [*range(missing)]
        order[first:first] = range(missing, ndmin)
        return item.transpose(order)


def ix_(*args: Any) -> tuple:
    """Index arrays that together pick the cross product."""
    made = []
    for number, item in enumerate(args):
        if not isinstance(item, Remote):
            item = creation.array(item)
        if item._meta.ndim != 1:
            raise ValueError("Cross index must be 1 dimensional")
        if item._meta.dtype.kind == "b":
            item = dispatch.call("nonzero", item)[0]
        elif not item._meta.size:
            item = item.astype(np.intp)
        made.append(views.reshape(item, (1,) * number + (item._meta.size,) + (1,) * (len(args) - number - 1)))
    return tuple(made)


NAMES: dict[str, Any] = {
    "mgrid": _Grid(False),
    "ogrid": _Grid(True),
    "r_": _Joiner(),
    "c_": _Joiner(-1, 2, 0),
    "ix_": shapes.named(ix_, "ix_"),
}
