"""Communicators: the collectives of NCCL between workers, each rank in the order of its own commands.

Ranks meet at the store of rank 0 and connect to each other when they first have something to say. On CUDA
workers that all have NCCL it does the work (``cupy_collective``); everywhere else ``rings`` does. The loss of
one rank is told to every other one at once: no rank waits for what cannot come any more.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from rgpu.errors import PeerLost, ProtocolError
from rgpu.server import rings
from rgpu.server.host import host_id
from rgpu.server.meeting import SIZE, Store, Visitor
from rgpu.server.peer import Pair
from rgpu.server.table import Poison

MEETING = 60.0  # seconds that a rank waits for the others to join
UNUSED = 32  # meeting places of a worker to which nobody has come yet; of more the oldest ends
_SMALL = 64 << 10  # bytes up to which a broadcast or reduce takes a tree
_REMOTE_ERROR, _INVALID_ARGUMENT, _INVALID_USAGE = 6, 4, 5
_PROBE = 256 << 10  # bytes of the messages that measure a link, which may be a slow one
_PROBE_NEAR = 2 << 20  # within a host: more, so that a moment's wait for a processor does not pass for a slow memory
_PROBES = 4  # in a row; the best of _ROWS counts, for a host that was busy for a moment is no slow link
_ROWS = 3

#: NCCL's numbers of types and of reductions
TYPES = ["i1", "u1", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "bfloat16"]
REDUCTIONS = [np.add, np.multiply, np.maximum, np.minimum, np.add]
_AVERAGE = 4
OPERATIONS = "all_reduce reduce broadcast reduce_scatter all_gather send receive".split()


class NcclError(RuntimeError):
    """Rebuilt on the client: NCCL's status and a sentence."""


def dtype_of(number: int) -> np.dtype:
    """The dtype of NCCL's number; NcclError for a wrong one."""
    if not 0 <= number < len(TYPES):
        raise NcclError(_INVALID_ARGUMENT, f"NCCL_ERROR_INVALID_ARGUMENT: there is no type {number}")
    if TYPES[number] == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(TYPES[number])


class Communicator:
    """One rank of ``size``. Everything but ``abort`` belongs to one thread at a time."""

    def __init__(self, peers: Any, size: int, rank: int, secret: bytes, places: list[str], client: str = "") -> None:
        if not 0 <= rank < size:
            raise NcclError(_INVALID_ARGUMENT, f"NCCL_ERROR_INVALID_ARGUMENT: rank {rank} of {size}")
        self._begin(peers, size, rank, secret, Visitor(places, secret, MEETING, peers.meeting, rank, peers.away))
        peers.visitors.add(self._visitor)
        try:
            self._meet(client)
        except BaseException as error:
            self.abort(self._why(error))
            raise

    def _begin(self, peers: Any, size: int, rank: int, secret: bytes, visitor: Any) -> None:
        self.size, self.rank, self._secret = size, rank, secret
        self._peers, self._visitor = peers, visitor
        self.error: str = ""
        self.latest: Promise | None = None  # what was issued beside the commands
        self._dialled: Pair | None = None  # not heard by the other end yet
        self._splits = 0
        self._pairs: dict[int, Pair] = {}
        self._sent: dict[int, int] = {}
        self._received: dict[int, int] = {}
        self._costs: rings.Costs | None = None
        self._left = threading.Lock()  # held: this rank has let go
        self.ways: deque[str] = deque(maxlen=16)  # which way the latest all-reduces went
        visitor.watch(self._told)

    def _meet(self, client: str) -> None:
        """Tell the others who is here, on whose behalf, and hear of them."""
        self._visitor.put(SIZE, str(self.size))
        self._visitor.put(f"member/{self.rank}", "\n".join((host_id(), self._peers.room, client)))
        members = [self._visitor.take(f"member/{other}").split("\n", 2) for other in range(self.size)]
        self.hosts, self.rooms, clients = (list(known) for known in zip(*members))
        self._visitor.shared = len(set(clients)) > 1
        self.order = [other for ranks in rings.by_host(self.hosts) for other in ranks]

    # ---- talking to a rank -----------------------------------------------------------------------

    def _pair(self, peer: int) -> Pair:
        found = self._pairs.get(peer)
        if found is None:
            if self._left.locked():
                raise PeerLost(self.error or "the communicator has ended")
            found = self._connect(peer)
        return found

    def _keep(self, peer: int, pair: Pair) -> Pair:
        self._pairs[peer] = pair
        self._peers.others.add(pair)
        if self.error:  # told while it was made
            pair.connection.fail(PeerLost(self.error))
        return pair

    def _connect(self, peer: int) -> Pair:
        """The lower rank listens and says where, the higher one comes."""
        low, high = sorted((self.rank, peer))
        secret = hashlib.blake2b(b"%d/%d" % (low, high), key=self._secret, digest_size=16).digest()
        name = f"rank {peer}"
        if self.rank == low:
            places, pair = self._peers.open(secret, name, self.rooms[peer])
            self._keep(peer, pair)
            pair.meet(self.hosts[peer])
            self._visitor.put(f"pair/{low}/{high}", " ".join(places).replace("0.0.0.0", self._visitor.host))
            return pair
        places = self._visitor.take(f"pair/{low}/{high}").split()
        pair = self._peers.dial(secret, places, name, self.hosts[peer], self._dialling)
        self._dialled = None
        if pair is None:
            raise PeerLost(f"rank {peer} cannot be reached from rank {self.rank} at {' or '.join(places)}")
        return self._keep(peer, pair)

    def _dialling(self, pair: Pair) -> None:
        self._dialled = pair
        if self.error:
            pair.connection.fail(PeerLost(self.error))

    def send(self, peer: int, array: np.ndarray) -> None:
        """What ``rings`` calls. In pieces, so that a copy of each may leave while the array changes."""
        pair, flat = self._pair(peer), memoryview(array.reshape(-1).view(np.uint8))
        for start in range(0, len(flat), rings.PIECE):
            number = self._sent[peer] = self._sent.get(peer, 0) + 1
            pair.send(number, flat[start : start + rings.PIECE])

    def receive(self, peer: int, array: np.ndarray) -> None:
        pair, flat = self._pair(peer), memoryview(array.reshape(-1).view(np.uint8))
        for start in range(0, len(flat), rings.PIECE):
            number = self._received[peer] = self._received.get(peer, 0) + 1
            pair.receive(number, flat[start : start + rings.PIECE])

    def costs(self) -> rings.Costs:
        """What messages and bytes cost, measured once and the same for all ranks: within the hosts, in all of them at
        once, and then between the first ranks of the hosts."""
        if self._costs is None:
            hosts = rings.by_host(self.hosts)
            near = self._measure(next(ranks for ranks in hosts if self.rank in ranks), _PROBE_NEAR)
            firsts = [ranks[0] for ranks in hosts]
            far = self._measure(firsts, _PROBE)
            if all(far):
                after = firsts[(firsts.index(self.rank) + 1) % len(firsts)]
                self._peers.measured(self.hosts[after], 2 * far[0], 1 / far[1])
            mine = np.array([*near, *far])
            rings.doubling_all_reduce(self, self.order, mine, np.maximum)
            known = rings.Costs()
            self._costs = rings.Costs(*(float(m) if m else k for m, k in zip(mine, known)))
        return self._costs

    def _measure(self, ranks: list[int], probe: int) -> tuple[float, float]:
        """(alpha, beta) between the neighbours of a ring; 0 where this rank is not in it, or alone."""
        if len(ranks) < 2 or self.rank not in ranks:
            return 0.0, 0.0
        me = ranks.index(self.rank)
        after, before = ranks[(me + 1) % len(ranks)], ranks[me - 1]
        alpha, whole = (self._exchange(after, before, nbytes) for nbytes in (8, probe))
        alpha = max(1e-6, alpha)
        return alpha, max(1e-12, (whole - alpha) / probe)

    def _exchange(self, after: int, before: int, nbytes: int) -> float:
        """Seconds of a message of this size, all ranks sending at once as in the ring itself. Of several in a row,
        after one that nobody counts: who begins later than its neighbour finds the first one there already."""
        array, rows = np.zeros(nbytes, np.uint8), []
        for turn in range(_ROWS * _PROBES + 1):
            if turn % _PROBES == 1:
                began = time.perf_counter()
            self.send(after, array)
            self.receive(before, array)
            if turn and not turn % _PROBES:
                rows.append((time.perf_counter() - began) / _PROBES)
        return min(rows)

    # ---- collectives ------------------------------------------------------------------------------

    def check(self, name: str, source: Any, target: Any, dtype: np.dtype, root: int) -> None:
        """Refuse what no rank could do; that ends nothing."""
        sizes = [None if x is None else x.nbytes for x in (source, target)]
        wanted = {
            "all_reduce": (1, 1), "reduce": (1, self.rank == root), "broadcast": (self.rank == root, 1),
            "reduce_scatter": (self.size, 1), "all_gather": (1, self.size), "send": (1, 0), "receive": (0, 1),
        }[name]  # fmt: skip
        units = [None if nbytes is None else nbytes / factor for nbytes, factor in zip(sizes, wanted) if factor]
        if None in units or len(set(units)) > 1 or units[0] % dtype.itemsize or not 0 <= root < self.size:
            raise NcclError(
                _INVALID_ARGUMENT,
                f"NCCL_ERROR_INVALID_ARGUMENT: {name} from {sizes[0]} to {sizes[1]} bytes of {dtype}, root {root} "
                f"of {self.size}",
            )

    def launch(self, *_: Any) -> bool:
        """Whether somebody else does the operation, on the device; see ``cupy_collective``."""
        return False

    def run(self, name: str, source: Any, target: Any, op: int, root: int) -> None:
        """One operation on flat host arrays; ``source`` is never changed, ``target`` may be it."""
        if self.error:
            raise NcclError(_INVALID_USAGE, f"NCCL_ERROR_INVALID_USAGE: this communicator was aborted: {self.error}")
        try:
            getattr(self, f"_{name}")(source, target, REDUCTIONS[op], root)
            if op == _AVERAGE and target is not None and name in ("all_reduce", "reduce", "reduce_scatter"):
                np.divide(target, self.size, out=target, casting="unsafe")
        except Exception as error:
            self.abort(self._why(error))
            raise NcclError(_REMOTE_ERROR, f"NCCL_ERROR_REMOTE_ERROR: {self.error}") from error

    def _why(self, error: BaseException) -> str:
        if isinstance(error, Poison):
            return " ".join(map(str, error.arguments)) or error.kind
        if isinstance(error, PeerLost):  # it names who is lost
            return str(error) if str(error).startswith("rank ") else f"{error} (says rank {self.rank})"
        return f"rank {self.rank}: {error}"

    def _all_reduce(self, source: np.ndarray, target: np.ndarray, op: Any, root: int) -> None:
        _assign(target, source)
        if self.size > 1:
            self.ways.append(rings.all_reduce(self, self.hosts, self.costs(), target, op))

    def _reduce(self, source: np.ndarray, target: np.ndarray, op: Any, root: int) -> None:
        work = source.copy() if self.rank != root else target
        if work is target:
            _assign(target, source)
        rings.reduce(self, self.order, root, work, op, work.nbytes <= _SMALL)

    def _broadcast(self, source: np.ndarray, target: np.ndarray, op: Any, root: int) -> None:
        if self.rank == root:
            _assign(target, source)
        rings.broadcast(self, self.order, root, target, target.nbytes <= _SMALL)

    def _reduce_scatter(self, source: np.ndarray, target: np.ndarray, op: Any, root: int) -> None:
        target[...] = rings.reduce_scatter(self, self.order, source.copy(), op)

    def _all_gather(self, source: np.ndarray, target: np.ndarray, op: Any, root: int) -> None:
        rings.all_gather(self, self.order, source.copy(), target)

    def _send(self, source: np.ndarray, target: Any, op: Any, root: int) -> None:
        if root == self.rank:  # to oneself, within a group: kept until it is received
            self._own_mail().append(source.copy())
        else:
            self.send(root, source)

    def _receive(self, source: Any, target: np.ndarray, op: Any, root: int) -> None:
        if root == self.rank:
            target[...] = self._own_mail().popleft()
        else:
            self.receive(root, target)

    def _own_mail(self) -> deque:
        mail: deque = self.__dict__.setdefault("_mail", deque())
        return mail

    # ---- others of its kind, and the end ----------------------------------------------------------------

    def split(self, color: int, key: int) -> Communicator:
        """The communicator of all ranks with this color, ordered by key. All ranks call it."""
        self._splits += 1
        prefix = f"split/{self._splits}"
        self._visitor.put(f"{prefix}/{self.rank}", f"{color} {key}")
        said = [self._visitor.take(f"{prefix}/{rank}").split() for rank in range(self.size)]
        members = sorted((int(k), rank) for rank, (c, k) in enumerate(said) if int(c) == color)
        ranks = [rank for _, rank in members]
        return _Part(self, ranks, f"{prefix}/{color}")

    def _told(self, why: str) -> None:
        """Another rank aborted: nothing more will come of anything."""
        self.error = self.error or why
        for pair in (*self._pairs.values(), self._dialled):
            if pair is not None:
                pair.connection.fail(PeerLost(why))
        self._let_go()

    def abort(self, why: str) -> None:
        """Every other rank hears of it, whatever it waits for. ``error`` is then what went wrong first, anywhere."""
        if self.error:
            return
        why = why[:1000] or "aborted"
        for pair in list(self._pairs.values()):  # first, for the meeting place may be gone, and that takes a second
            pair.give_up(why)
        self.error = self.error or self._visitor.abort(why)
        self._aside(self._let_go)

    def close(self) -> None:
        """What was sent still arrives. The others are not told: they may go on, but not with this rank."""
        if all(pair.delivered() or not pair.usable for pair in list(self._pairs.values())):
            self._let_go()
        else:
            self._aside(self._deliver)

    def _deliver(self) -> None:
        deadline = time.monotonic() + MEETING
        for pair in list(self._pairs.values()):
            pair.deliver(deadline)
        self._let_go()

    def _let_go(self) -> None:
        """Of the connections to other ranks and to the meeting place."""
        if not self._left.acquire(blocking=False):
            return
        for pair in list(self._pairs.values()):
            pair.close(1.0)
        self._pairs = {}
        self._visitor.close()

    @property
    def ended(self) -> bool:
        return self._left.locked()

    def __del__(self) -> None:
        """Freed by its client, or with the last thing that was issued on it."""
        with contextlib.suppress(AttributeError):  # it never began
            if not self.ended:
                self._aside(self.close)

    @staticmethod
    def _aside(work: Callable[[], None]) -> None:
        """In a thread of its own: it may wait for the other ranks a little, and commands need not."""
        with contextlib.suppress(RuntimeError):  # the process ends, and all of this with it
            threading.Thread(target=work, name="rgpu-collective-end", daemon=True).start()


class _Part(Communicator):
    """A communicator of some ranks of another, which meet at the same place."""

    def __init__(self, whole: Communicator, ranks: list[int], name: str) -> None:
        secret = hashlib.blake2b(name.encode(), key=whole._secret, digest_size=16).digest()
        self.hosts, self.rooms = ([known[rank] for rank in ranks] for known in (whole.hosts, whole.rooms))
        self.order = [other for found in rings.by_host(self.hosts) for other in found]
        visitor = _Under(whole._visitor, name)
        self._begin(whole._peers, len(ranks), ranks.index(whole.rank), secret, visitor)


class _Under:
    """A part of a store: keys below a name."""

    def __init__(self, visitor: Any, name: str) -> None:
        self._visitor, self._name, self.host = visitor, name, visitor.host

    def put(self, key: str, text: str) -> None:
        self._visitor.put(f"{self._name}/{key}", text)

    def take(self, key: str) -> str:
        return self._visitor.take(f"{self._name}/{key}")

    def abort(self, why: str) -> str:
        return self._visitor.abort(why)

    def watch(self, told: Callable[[str], None]) -> None:
        self._visitor.watch(told)

    def close(self) -> None:
        self._visitor.close()


def _assign(target: np.ndarray, source: np.ndarray) -> None:
    if target.ctypes.data != source.ctypes.data:
        target[...] = source


# ---- in the order of the commands, or beside them --------------------------------------------------------


class Promise:
    """An operation that runs beside the commands, until somebody waits for it. ``ended``: when it was;
    ``away``: around the waiting."""

    def __init__(self, work: Callable[[], None], away: Callable[[], Any] = contextlib.nullcontext) -> None:
        self._work, self._away, self._done = work, away, threading.Event()
        self._error: BaseException | None = None
        self.on_error: Callable[[BaseException], None] = lambda error: None
        self.ended = 0.0

    @property
    def done(self) -> bool:
        return self._done.is_set()

    @property
    def failed(self) -> bool:
        return self._error is not None

    def run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self._error = error
        finally:
            self.ended = time.perf_counter()
            del self._work  # and with it what it holds
            self._done.set()

    def wait(self) -> None:
        """Raises what the operation raised, to the first who waits."""
        if not self._done.is_set():
            with self._away():
                self._done.wait()
        error, self._error = self._error, None
        if error is not None:
            self.on_error(error)
            raise error


class Runner:
    """One thread that runs promises in order. ``away``: around waiting for them, and so for other workers."""

    def __init__(self) -> None:
        self.away: Callable[[], Any] = contextlib.nullcontext
        self._waiting: deque[Promise] = deque()
        self.started: list[Promise] = []  # that nobody has waited for
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def start(self, work: Callable[[], None], stream: Any) -> Promise:
        """Run it when everything before has run; it counts among what is pending on the stream."""
        promise = Promise(work, self.away)
        self.started = [other for other in self.started if not other.done or other.failed] + [promise]
        stream.pending = [other for other in stream.pending if not other.done or other.failed] + [promise]
        with self._changed:
            self._waiting.append(promise)
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="rgpu-collectives", daemon=True)
                self._thread.start()
        return promise

    def finish(self) -> None:
        """Wait for all of them; raises what went wrong."""
        while self.started:
            self.started.pop(0).wait()

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._waiting and not self._changed.wait_for(lambda: self._waiting, timeout=5.0):
                    self._thread = None
                    return
                promise = self._waiting.popleft()
            promise.run()


def run(executor: Any, handle: int, operation: int, places: tuple, dtype: int, reduction: int, root: int) -> None:
    """One ``Collective`` command. What it sends is copied: arrays may change when it returns."""
    comm = executor.table.get(handle)
    if not isinstance(comm, Communicator):
        raise ProtocolError(f"a {type(comm).__name__} stands where a communicator must")
    if operation >= len(OPERATIONS) or reduction >= len(REDUCTIONS):
        raise NcclError(_INVALID_ARGUMENT, "NCCL_ERROR_INVALID_ARGUMENT: no such operation")
    name, kind = OPERATIONS[operation], dtype_of(dtype)
    try:
        source, target = (None if place is None else executor.array(executor.table.get(place)) for place in places)
    except Poison as poison:
        comm.abort(f"rank {comm.rank} has nothing to give: {poison.kind}: {' '.join(map(str, poison.arguments))}")
        raise
    comm.check(name, source, target, kind, root)
    if comm.launch(name, source, target, kind, dtype, reduction, root):
        return
    promise = executor.backend.collective(
        lambda given, taken: comm.run(name, given, taken, reduction, root), source, target, kind
    )
    comm.latest = promise
    if promise is not None and places[1] is not None:
        table, memory = executor.table, executor.table.root(places[1]) or places[1]
        promise.on_error = lambda error: table.poison_memory(memory, executor.describe_error(error, (0, 0)))


# ---- what a client may ask for; the first argument is the backend -----------------------------------------


def _meet(backend: Any) -> list:
    """A new meeting place at this worker: ``[secret, where]``."""
    uri, stores = backend.peers.place(), backend.peers.stores
    stores[:] = [store for store in stores if not store.ended]
    for store in [store for store in stores if store.unused][: 1 - UNUSED]:
        store.close(0.0)
    store = Store(uri, backend.peers.meeting)
    stores.append(store)
    return [store.secret, store.endpoint.partition("://")[2]]


def _join(backend: Any, *args: Any) -> Any:
    return _or_nccl_error(backend.communicator, backend.peers, *args)


def _close(comm: Communicator) -> None:
    """Forget it. What was issued beside the commands is still done: what it holds last ends it."""
    if comm.latest is None or comm.latest.done:
        comm.close()


def _or_nccl_error(make: Callable[..., Any], *args: Any) -> Any:
    """A communicator; what keeps its members from meeting is an error of NCCL's."""
    try:
        return make(*args)
    except (PeerLost, TimeoutError) as error:
        raise NcclError(_REMOTE_ERROR, f"NCCL_ERROR_REMOTE_ERROR: {error}") from error


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "nccl.meet": _meet,
    "nccl.join": _join,
    "nccl.group": lambda backend, on: backend.group(on),
    "nccl.split": lambda backend, comm, color, key: _or_nccl_error(comm.split, color, key),
    "nccl.abort": lambda backend, comm, why="aborted by its owner": comm.abort(why),
    "nccl.close": lambda backend, comm: _close(comm),
    "nccl.state": lambda backend, comm: [comm.size, comm.rank, comm.error, list(comm.ways), [*(comm._costs or ())]],
}
