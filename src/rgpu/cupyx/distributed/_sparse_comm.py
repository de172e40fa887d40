"""Sparse matrices between ranks: how large they are first, then their arrays.

The receiver cannot know the sizes, so everything here waits for the device, and says so once. A reduction is
done at one rank, in order of rank. Matrices that receive are changed in place.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from rgpu.cuda import nccl
from rgpu.cupyx.scipy.sparse import spmatrix
from rgpu.functions import creation

_PARTS = 3  # arrays that any format has at most
_OPERATORS = {"sum": lambda a, b: a + b, "prod": lambda a, b: a @ b}  # what `*` means for sparse matrices, as in CuPy


def is_sparse(x: Any) -> bool:
    return isinstance(x, spmatrix)


def _warn() -> None:
    warnings.warn(
        "Using NCCL for transferring sparse matrices waits for the device: their sizes must be known first.",
        UserWarning,
        stacklevel=4,
    )


def _sizes(matrix: Any) -> Any:
    found = [*matrix.shape, *(array.size for array in matrix._arrays())]
    return creation.array(np.array(found + [0] * (2 + _PARTS - len(found)), np.int64))


def _room(model: Any, sizes: Any) -> tuple[tuple, tuple]:
    """(arrays, shape) for what was announced, in the dtypes of the model."""
    rows, columns, *lengths = (int(n) for n in sizes.get())
    arrays = tuple(creation.empty(n, array.dtype) for n, array in zip(lengths, model._arrays()))
    return arrays, (rows, columns)


def _fill(matrix: Any, arrays: tuple, shape: tuple) -> None:
    matrix._set_arrays(arrays)
    matrix._shape = shape


def _like(model: Any) -> Any:
    return type(model)._of([creation.empty(0, array.dtype) for array in model._arrays()], (0, 0))


def _places(out_array: list, like: list) -> dict[int, Any]:
    """By rank the matrices that results go to: those of the list, which is filled up as CuPy fills an empty one."""
    out_array.extend(_like(matrix) for matrix in like[len(out_array) :])
    return dict(enumerate(out_array[: len(like)]))


class SparseCommunicator:
    """The operations on sparse matrices; the first argument is the backend."""

    @staticmethod
    def _dense() -> Any:
        from rgpu.cupyx.distributed._nccl_comm import _Dense

        return _Dense

    @classmethod
    def send(cls, comm: Any, array: Any, peer: int, stream: Any = None) -> None:
        dense = cls._dense()
        dense.send(comm, _sizes(array), peer, stream)
        for part in array._arrays():
            dense.send(comm, part, peer, stream)

    @classmethod
    def recv(cls, comm: Any, out_array: Any, peer: int, stream: Any = None) -> None:
        _warn()
        dense, sizes = cls._dense(), creation.zeros(2 + _PARTS, np.int64)
        dense.recv(comm, sizes, peer, stream)
        arrays, shape = _room(out_array, sizes)
        for part in arrays:
            dense.recv(comm, part, peer, stream)
        _fill(out_array, arrays, shape)

    @classmethod
    def send_recv(cls, comm: Any, in_array: Any, out_array: Any, peer: int, stream: Any = None) -> None:
        cls._exchange(comm, {peer: in_array}, {peer: out_array}, stream)

    @classmethod
    def _exchange(cls, comm: Any, outgoing: dict, incoming: dict, stream: Any) -> None:
        """Matrices to and from several ranks: all sizes at once, then all arrays at once."""
        _warn()
        dense = cls._dense()
        sizes = {peer: creation.zeros(2 + _PARTS, np.int64) for peer in incoming}
        own = {peer: _sizes(matrix) for peer, matrix in outgoing.items()}
        nccl.groupStart()
        for peer in outgoing:
            dense.send(comm, own[peer], peer, stream)
        for peer in incoming:
            dense.recv(comm, sizes[peer], peer, stream)
        nccl.groupEnd()
        room = {peer: _room(matrix, sizes[peer]) for peer, matrix in incoming.items()}
        nccl.groupStart()
        for peer, matrix in outgoing.items():
            for part in matrix._arrays():
                dense.send(comm, part, peer, stream)
        for peer in incoming:
            for part in room[peer][0]:
                dense.recv(comm, part, peer, stream)
        nccl.groupEnd()
        for peer, matrix in incoming.items():
            _fill(matrix, *room[peer])

    @classmethod
    def broadcast(cls, comm: Any, in_out_array: Any, root: int = 0, stream: Any = None) -> None:
        _warn()
        dense, mine = cls._dense(), comm.rank == root
        sizes = _sizes(in_out_array) if mine else creation.zeros(2 + _PARTS, np.int64)
        dense.broadcast(comm, sizes, root, stream)
        arrays, shape = (in_out_array._arrays(), in_out_array.shape) if mine else _room(in_out_array, sizes)
        for part in arrays:
            dense.broadcast(comm, part, root, stream)
        if not mine:
            _fill(in_out_array, arrays, shape)

    @classmethod
    def reduce(
        cls, comm: Any, in_array: Any, out_array: Any, root: int = 0, op: str = "sum", stream: Any = None
    ) -> None:
        if op not in _OPERATORS:
            raise ValueError(f"sparse matrices are reduced with {' or '.join(map(repr, _OPERATORS))}, not {op!r}")
        if comm.rank != root:
            cls.send(comm, in_array, root, stream)
            return
        parts = {peer: _like(in_array) for peer in range(comm._n_devices) if peer != root}
        for peer, part in parts.items():
            cls.recv(comm, part, peer, stream)
        parts[root] = in_array
        total = parts[0]
        for peer in range(1, comm._n_devices):
            total = _OPERATORS[op](total, parts[peer])
        total = total.asformat(out_array.format)
        _fill(out_array, total._arrays(), total.shape)

    @classmethod
    def all_reduce(cls, comm: Any, in_array: Any, out_array: Any, op: str = "sum", stream: Any = None) -> None:
        cls.reduce(comm, in_array, out_array, 0, op, stream)
        cls.broadcast(comm, out_array, 0, stream)

    @classmethod
    def reduce_scatter(
        cls, comm: Any, in_array: Any, out_array: Any, count: int, op: str = "sum", stream: Any = None
    ) -> None:
        for root in range(comm._n_devices):
            cls.reduce(comm, in_array[root], out_array, root, op, stream)

    @classmethod
    def all_gather(cls, comm: Any, in_array: Any, out_array: Any, count: int, stream: Any = None) -> None:
        everyone = range(comm._n_devices)
        incoming = _places(out_array, [in_array] * comm._n_devices)
        cls._exchange(comm, dict.fromkeys(everyone, in_array), incoming, stream)

    @classmethod
    def scatter(cls, comm: Any, in_array: Any, out_array: Any, root: int = 0, stream: Any = None) -> None:
        outgoing = {peer: in_array[peer] for peer in range(comm._n_devices)} if comm.rank == root else {}
        cls._exchange(comm, outgoing, {root: out_array}, stream)

    @classmethod
    def gather(cls, comm: Any, in_array: Any, out_array: Any, root: int = 0, stream: Any = None) -> None:
        incoming = _places(out_array, [in_array] * comm._n_devices) if comm.rank == root else {}
        cls._exchange(comm, {root: in_array}, incoming, stream)

    @classmethod
    def all_to_all(cls, comm: Any, in_array: Any, out_array: Any, stream: Any = None) -> None:
        incoming = _places(out_array, in_array)
        cls._exchange(comm, {peer: in_array[peer] for peer in incoming}, incoming, stream)
