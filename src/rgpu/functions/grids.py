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
            bounds = (key.start, key.stop)
            if any(isinstance(x, Remote) and x._metadata.ndim for x in bounds):
                return _between(key)
            return creation.array(np.ogrid[_host(key)])
        if any(isinstance(x, Remote) and x._metadata.ndim for part in key for x in (part.start, part.stop)):
            return self._among_arrays(key)
        axes = [creation.array(x) for x in np.ogrid[tuple(_host(part) for part in key)]]
        if self.sparse:
            return tuple(axes)
        if not axes:
            return creation.empty((0,))
        shape = np.broadcast_shapes(*[a._metadata.shape for a in axes])
        return dispatch.call("stack", [views.broadcast_to(a, shape) for a in axes])

    def _among_arrays(self, key: tuple) -> Any:
        """Bounds that are device arrays: the points are computed there, each axis broadcast with its bounds."""
        sizes = [int(abs(part.step)) for part in key]
        if any(not isinstance(part.step, complex) for part in key):
            raise ValueError("bounds that are arrays need an imaginary step: the number of points")
        grid = []
        for axis, part in enumerate(key):
            start = 0 if part.start is None else part.start
            step = (part.stop - start) / float(sizes[axis] - 1) if sizes[axis] > 1 else 1
            points = creation.arange(sizes[axis], dtype=float)
            index = tuple([slice(None) if k == axis else None for k in range(len(key))])
            if self.sparse:
                grid.append((points * step + start)[index])
            else:
                grid.append(views.broadcast_to(points[index], sizes) * step + start)
        return tuple(grid) if self.sparse else dispatch.call("stack", grid)


def _host(part: slice) -> slice:
    """A slice with bounds in host memory."""
    return slice(*[x.item() if isinstance(x, Remote) else x for x in (part.start, part.stop, part.step)])


def _between(key: slice) -> Any:
    """Points between bounds that are device arrays, along the last axis."""
    if not isinstance(key.step, complex):
        raise ValueError("bounds that are arrays need an imaginary step: the number of points")
    points = int(abs(key.step))
    step = (key.stop - key.start) / float(points - 1) if points > 1 else key.stop - key.start
    return creation.arange(0, points, 1, float) * step + key.start


class AxisConcatenator:
    """``r_[...]`` and ``c_[...]``: arrays and scalars put one after another along an axis."""

    def __init__(self, axis: int = 0, matrix: bool = False, ndmin: int = 1, trans1d: int = -1) -> None:
        self.axis, self.matrix, self.ndmin, self.trans1d = axis, matrix, ndmin, trans1d

    def __len__(self) -> int:
        return 0

    def __getitem__(self, key: Any) -> Any:
        items = key if isinstance(key, tuple) else (key,)
        pieces: list = []
        for number, item in enumerate(items):
            if isinstance(item, str) and number:
                raise ValueError("special directives must be the first entry.")
            if isinstance(item, str | slice):
                raise NotImplementedError("directives and slices are not supported (CuPy has none)")
            pieces.append(item if type(item) in np.ScalarType else self._placed(item))
        dtypes = [x._metadata.dtype if isinstance(x, Remote) else x for x in pieces]
        final = np.result_type(*dtypes)
        pieces = [
            x if isinstance(x, Remote) else creation.array(x, dtype=final, ndmin=self.ndmin) for x in pieces
        ]
        return dispatch.call("concatenate", pieces, self.axis)

    def _placed(self, item: Any) -> Any:
        """At least ``ndmin`` axes; where the old ones stand among them is NumPy's rule for ``trans1d``."""
        item = creation.array(item, copy=None)
        ndim, ndmin = item._metadata.ndim, self.ndmin
        if ndim >= ndmin:
            return item
        added = ndmin - ndim
        item = views.reshape(item, (1,) * added + item._metadata.shape)
        if self.trans1d == -1:
            return item
        first = self.trans1d + added + 1 if self.trans1d < 0 else self.trans1d
        axes = list(range(ndmin))
        return item.transpose(axes[:first] + axes[added:] + axes[first:added])


def ix_(*args: Any) -> tuple:
    """Index arrays that together pick the cross product."""
    made = []
    for number, item in enumerate(args):
        if not isinstance(item, Remote):
            item = creation.array(item)
        if item._metadata.ndim != 1:
            raise ValueError("Cross index must be 1 dimensional")
        if item._metadata.dtype.kind == "b":
            item = dispatch.call("nonzero", item)[0]
        elif not item._metadata.size:
            item = item.astype(np.intp)
        made.append(views.reshape(item, (1,) * number + (item._metadata.size,) + (1,) * (len(args) - number - 1)))
    return tuple(made)


NAMES: dict[str, Any] = {
    "mgrid": _Grid(False),
    "ogrid": _Grid(True),
    "r_": AxisConcatenator(),
    "c_": AxisConcatenator(-1, ndmin=2, trans1d=0),
    "ix_": shapes.named(ix_, "ix_"),
}
