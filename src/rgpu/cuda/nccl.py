"""``cupy.cuda.nccl``: collectives between the devices of the pool, of one process or of several.

A communicator is an object of the worker whose device was current; its operations are commands in the order
of a stream, and no data passes the client. A unique id says where the workers meet and holds the secret that lets
them. Operations inside a group leave at its end, in rounds: what sends before what receives, and long data in parts.
"""

from __future__ import annotations

import functools
import itertools
import secrets
import threading
from typing import Any

from rgpu import surface
from rgpu.client import follow, pool
from rgpu.client.peer import hosts_of
from rgpu.cuda import addresses, copying, handles, issue
from rgpu.cuda.errors import library_error
from rgpu.wire import ops

available = True
_VERSION = 22703
UNIQUE_ID_BYTES = 128
_ERRORS = {
    0: "NCCL_ERROR_SUCCESS: no error",
    1: "NCCL_ERROR_UNHANDLED_CUDA_ERROR: unhandled cuda error",
    2: "NCCL_ERROR_SYSTEM_ERROR: unhandled system error",
    3: "NCCL_ERROR_INTERNAL_ERROR: internal error",
    4: "NCCL_ERROR_INVALID_ARGUMENT: invalid argument",
    5: "NCCL_ERROR_INVALID_USAGE: invalid usage",
    6: "NCCL_ERROR_REMOTE_ERROR: remote process exited or there was a network error",
}
_ITEMSIZES = (1, 1, 4, 4, 8, 8, 2, 4, 8, 2)  # by NCCL's number of a type
_ALL_REDUCE, _REDUCE, _BROADCAST, _REDUCE_SCATTER, _ALL_GATHER, _SEND, _RECEIVE = range(7)
_PART = 64 << 20  # bytes of a message that a group sends before it receives as much
_MAGIC = b"rgpu"

NcclError = library_error("NcclError", "cupy_backends.cuda.libs.nccl", _ERRORS)


def check_status(status: int) -> None:
    if status:
        raise NcclError(status)


def get_version() -> int:
    return _VERSION


def get_build_version() -> int:
    return _VERSION


def get_unique_id() -> bytes:
    """128 bytes for all ranks of one communicator: where its workers meet (at the current device's), and the
    secret that lets them in."""
    stream = issue.here()
    secret, place = issue.ask(stream, "nccl.meet")
    host, _, port = place.rpartition(":")
    text = b",".join(f"{name}:{port}".encode() for name in hosts_of(host, stream))
    found = _MAGIC + secret + text
    if len(found) > UNIQUE_ID_BYTES:
        found = _MAGIC + secret + text.split(b",")[-1]
    return found.ljust(UNIQUE_ID_BYTES, b"\0")


def _opened(unique_id: Any) -> tuple[bytes, list[str]]:
    if not isinstance(unique_id, bytes):
        raise TypeError(f"Argument 'commId' has incorrect type (expected bytes, got {type(unique_id).__name__})")
    if len(unique_id) != UNIQUE_ID_BYTES:
        raise ValueError(f"commId length {len(unique_id)} != {UNIQUE_ID_BYTES}.")
    if unique_id[:4] != _MAGIC:
        raise NcclError(4)
    return unique_id[4:20], unique_id[20:].rstrip(b"\0").decode().split(",")


# ---- groups ---------------------------------------------------------------------------------------


class _Group(threading.local):
    depth = 0

    def __init__(self) -> None:
        self.waiting: list[tuple] = []


_group = _Group()


def groupStart() -> None:
    """Operations from here on leave together, at the matching ``groupEnd``."""
    _group.depth += 1


def groupEnd() -> None:
    if not _group.depth:
        raise NcclError(5)
    _group.depth -= 1
    if _group.depth:
        return
    waiting, _group.waiting = _group.waiting, []
    talking = {comm for _, comm, operation, *_ in waiting if operation in (_SEND, _RECEIVE)}
    for comm in talking:
        issue.submit(comm._stream, "nccl.group", True)
    # Of all the ways to order a group, sending first is the one in which nobody waits for a later one; and a worker
    # takes a part of what is sent from each peer before it must have received its own.
    try:
        for _, comm, *operation in sorted(waiting, key=lambda each: (each[0], each[2] == _RECEIVE)):
            comm._issue(*operation)
    finally:
        for comm in talking:
            issue.submit(comm._stream, "nccl.group", False)
            comm._stream.flush(deadline=0.0)


@functools.cache
def _client() -> str:
    """This process, among those whose devices are in a communicator."""
    return secrets.token_hex(8)


class NcclConfig:
    """``split_share`` is NCCL's: whether a split communicator may share its parent's resources."""

    def __init__(self, split_share: int = 0) -> None:
        self.split_share = split_share


_serials = itertools.count(1).__next__


class NcclCommunicator:
    """One rank of a communicator, on the current device."""

    def __init__(self, ndev: int, commId: bytes, rank: int, config: NcclConfig | None = None) -> None:
        secret, places = _opened(commId)
        if not 0 <= rank < ndev:
            raise NcclError(4)
        self._take(issue.here(), ndev, rank)
        self._held: Any = issue.Held(self._stream, "nccl.join", ndev, rank, secret, places, _client())
        self._stream.flush(deadline=0.0)

    def _take(self, stream: Any, size: int | None, rank: int | None) -> None:
        self._stream, self._size, self._rank = stream, size, rank
        self._device, self._serial = issue.ordinal(stream), _serials()

    @staticmethod
    def initAll(devices: Any) -> list[NcclCommunicator]:
        """A communicator for each device: a list of numbers, or how many."""
        numbers = list(range(devices)) if isinstance(devices, int) else list(devices)
        if len(set(numbers)) < len(numbers):
            raise NcclError(5)
        found, before = pool.get(), pool.current()
        made = []
        try:
            for rank, number in enumerate(numbers):
                pool.use(found.device(number))
                if not rank:
                    unique_id = get_unique_id()
                made.append(NcclCommunicator(len(numbers), unique_id, rank))
        finally:
            pool.use(before)
        return made

    def __repr__(self) -> str:
        return f"<NcclCommunicator rank {self._rank} of {self._size} on device {self._device}>"

    @property
    def comm(self) -> int:
        """An integer that stands for it."""
        return 0 if self._held is None else self._held.pointer

    def destroy(self) -> None:
        """Forget it; what was issued is still done."""
        held, self._held = self._held, None
        if held is not None:
            issue.submit(self._stream, "nccl.close", held)

    def abort(self) -> None:
        """End it now: every other rank gets an error."""
        held, self._held = self._held, None
        if held is not None:
            issue.submit(self._stream, "nccl.abort", held)
            self._stream.flush(deadline=0.0)

    def device_id(self) -> int:
        return self._device

    def rank_id(self) -> int:
        if self._rank is None:
            self._ask_state()
        return self._rank  # type: ignore[return-value]

    def size(self) -> int:
        if self._size is None:
            self._ask_state()
        return self._size  # type: ignore[return-value]

    def _ask_state(self) -> list:
        state = issue.ask(self._stream, "nccl.state", self._live())
        self._size, self._rank = state[:2]
        return state

    def _live(self) -> Any:
        if self._held is None:
            raise NcclError(4)
        return self._held

    def check_async_error(self) -> None:
        """Raise what ended the communicator, if anything did (waits for what was issued)."""
        error = self._ask_state()[2]
        if error:
            raise NcclError(6, f"{_ERRORS[6]} ({error})")

    def commSplit(self, color: int, key: int, config: NcclConfig | None = None) -> NcclCommunicator | None:
        """The communicator of the ranks with the same color, in order of their keys; None for color -1."""
        part = object.__new__(NcclCommunicator)
        part._take(self._stream, None, None)
        part._held = issue.Held(self._stream, "nccl.split", self._live(), color, key)
        self._stream.flush(deadline=0.0)
        return part if color >= 0 else None

    # ---- operations: pointers, counts of elements, NCCL's numbers, the integer of a stream -----------

    def allReduce(self, sendbuf: int, recvbuf: int, count: int, datatype: int, op: int, stream: int) -> None:
        self._do(_ALL_REDUCE, (sendbuf, count), (recvbuf, count), datatype, op, 0, stream)

    def reduce(
        self, sendbuf: int, recvbuf: int, count: int, datatype: int, op: int, root: int, stream: int
    ) -> None:
        target = (recvbuf, count) if self.rank_id() == root else None
        self._do(_REDUCE, (sendbuf, count), target, datatype, op, root, stream)

    def broadcast(self, sendbuff: int, recvbuff: int, count: int, datatype: int, root: int, stream: int) -> None:
        source = (sendbuff, count) if self.rank_id() == root else None
        self._do(_BROADCAST, source, (recvbuff, count), datatype, 0, root, stream)

    def bcast(self, buff: int, count: int, datatype: int, root: int, stream: int) -> None:
        self.broadcast(buff, buff, count, datatype, root, stream)

    def reduceScatter(
        self, sendbuf: int, recvbuf: int, recvcount: int, datatype: int, op: int, stream: int
    ) -> None:
        source = (sendbuf, recvcount * self.size())
        self._do(_REDUCE_SCATTER, source, (recvbuf, recvcount), datatype, op, 0, stream)

    def allGather(self, sendbuf: int, recvbuf: int, count: int, datatype: int, stream: int) -> None:
        self._do(_ALL_GATHER, (sendbuf, count), (recvbuf, count * self.size()), datatype, 0, 0, stream)

    def send(self, sendbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
        self._do(_SEND, (sendbuf, count), None, datatype, 0, peer, stream)

    def recv(self, recvbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
        self._do(_RECEIVE, None, (recvbuf, count), datatype, 0, peer, stream)

    def _do(
        self, operation: int, source: tuple | None, target: tuple | None, datatype: int, op: int, root: int, stream: int
    ) -> None:
        if not 0 <= datatype < len(_ITEMSIZES) or not 0 <= op < 5 or root < 0:
            raise NcclError(4)
        self._live()
        itemsize = _ITEMSIZES[datatype]
        if not _group.depth:
            views = [self._bytes(place, itemsize) for place in (source, target)]
            self._issue(operation, views, datatype, op, root, stream)
            return
        parts = [(source, target)]
        if operation in (_SEND, _RECEIVE):
            pointer, count = source or target  # type: ignore[misc]
            step = _PART // itemsize
            mine = [(int(pointer) + at * itemsize, min(step, count - at)) for at in range(0, count, step)]
            parts = [(part, None) if source else (None, part) for part in mine]
        for round_, places in enumerate(parts):
            views = [self._bytes(place, itemsize) for place in places]
            _group.waiting.append((round_, self, operation, views, datatype, op, root, stream))

    def _bytes(self, place: tuple | None, itemsize: int) -> Any:
        if place is None:
            return None
        pointer, nbytes = int(place[0]), int(place[1]) * itemsize
        if not nbytes:
            return b""
        root, offset = addresses.find(pointer)
        if root._stream is not self._stream:
            raise NcclError(4, f"{_ERRORS[4]} (the array is on device {issue.ordinal(root._stream)}, "
                               f"the communicator on device {self._device})")  # fmt: skip
        return copying.device_bytes(root, offset, copying.Rectangle(nbytes, 1, nbytes))

    def _issue(self, operation: int, views: list, datatype: int, op: int, root: int, stream: int) -> None:
        if b"" in [view for view in views if isinstance(view, bytes)]:
            return  # nothing to move, for any rank
        source, target = (None if view is None else view._handle for view in views)
        held = handles.stream(stream)[1] if stream not in handles.DEFAULT_STREAMS else None
        with follow.on(self._stream, handles.handle_of(held)):
            self._stream.submit(
                ops.Collective.encode(self._live().handle, operation, source, target, datatype, op, root)
            )
        self._stream.flush(deadline=0.0)  # the other ranks wait for it


__getattr__, __dir__ = surface.face(__name__)
