"""The pool: the devices of all servers as ordinals 0..n-1 of this process.

Built at first use from RGPU_SERVERS, RGPU_REGISTRY, rgpu.toml or ``connect(...)``; with none of them a local
daemon is started. A device is leased when it is first used. The current device is per thread, as
in CUDA.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
from collections import Counter
from collections.abc import Callable, Container
from dataclasses import replace
from typing import Any

import rgpu.link.stream  # noqa: F401 - their ends come behind ours: they must be given first
import rgpu.link.zmq  # noqa: F401
from rgpu import _native, config, registry
from rgpu.client import profile, silver
from rgpu.client.control import DaemonClient
from rgpu.client.failures import KINDS
from rgpu.client.holding import (
    Holder,
    Part,
    acquire,
    hello_all,
    hello_those_there,
    lend,
    parse_part,
    terms_of,
    visible,
)
from rgpu.client.mirror import Half, Mirror
from rgpu.client.seat import Seat
from rgpu.client.stats import Counters
from rgpu.client.stream import CommandStream, forked, settle
from rgpu.ending import at_end
from rgpu.errors import (
    ConfigError,
    NoSuchDevice,
    ProtocolError,
    RgpuError,
    ServerBusy,
    SessionLost,
)

on_attach: list[Callable[[CommandStream], None]] = []  # told of each new session's stream

_set_current = _native.issue.set_current if _native.issue is not None else lambda stream: None


class Device:
    """One entry of the pool. ``stream`` leases it on first use."""

    def __init__(self, ordinal: int, daemon: DaemonClient, info: dict, settings: config.ClientConfig) -> None:
        self.ordinal, self.daemon, self.info, self.settings = ordinal, daemon, info, settings
        self.index: int = info["index"]
        self.memory_total: int = info["memory_total"]  # more than this is refused before it is sent
        self.memory_leased = self.memory_total
        self.maker = daemon.address, info["kind"]  # of answers that are true of this device's workers
        self.name = f"device {ordinal} ({daemon.address}, {info['kind']}:{self.index})"
        self.pool: Any = None
        self.seat: Any = None  # that its session has, or had first
        self.partner: Seat | None = None  # of a redundant device: where its second worker begins
        self.lease = b""  # what the session is opened under; empty: one of its own
        self.holder: Holder | None = None
        self._stream: CommandStream | None = None
        self.retired = Counters()  # of streams that were closed
        self._lock = threading.RLock()
        self._attaching = False

    def __repr__(self) -> str:
        return f"<{self.name}>"

    @property
    def stream(self) -> CommandStream:
        found = self._stream
        if found is None:
            with self._lock:
                if self._attaching:
                    raise RuntimeError(f"{self} is being leased: a signal's handler that interrupts that cannot use it")
                self._attaching = True
                try:
                    found = self._stream or self._attach()
                finally:
                    self._attaching = False
        return found

    @property
    def attached(self) -> bool:
        return self._stream is not None

    def _attach(self) -> CommandStream:
        wanted = self.settings.redundancy
        name = self.name if wanted == 1 else ""
        seat = Seat(self.daemon, self.info, self.settings, self.lease, self.holder, name)
        stream = CommandStream(
            *seat.open(),
            name=self.name,
            blocking=self.settings.launch_blocking,
            check=self.settings.check_prediction,
            on_silence=self._look_after,
            profile=profile.started(self.settings.profile),
            replay=self.settings.replay,
            uploads=self.settings.upload_cache,
        )
        stream.device, self.seat = self, seat
        stream.on_leave = lambda half: self._leave(stream, half)
        self.memory_total = self.memory_leased = seat.memory_total
        try:
            if wanted > 1:
                self._double(stream)
        except BaseException:
            stream.abort()
            raise
        self._stream = stream
        for tell in on_attach:
            tell(stream)
        return stream

    def _double(self, stream: CommandStream) -> None:
        """A second worker, before there is anything that the first alone has."""
        mirror = self._mirrored(stream)
        half = Half(mirror, self.partner or mirror.find(list(mirror.halves)))
        self.memory_total = self.memory_leased = min(self.memory_leased, half.seat.memory_total)
        mirror.join(half)
        mirror.tell_all()

    def _mirrored(self, stream: CommandStream) -> Mirror:
        """The stream's mirror; one is put in place of the connection where there is none."""
        with stream.lock:
            if stream.mirror is None:
                if stream.counters.recalled:  # what only this worker has is recalled by this one alone
                    stream.flush()
                made = Mirror(stream, self.seat, self.settings.redundancy, self._another, silver.heal)
                stream.mirror = made  # first: whoever reads without the lock looks for it last
                stream.connection = made
        return stream.mirror

    def _another(self, halves: list[Half]) -> Seat:
        """A place on a server that has none of the halves."""
        servers = {half.seat.daemon.address for half in halves}
        return self.pool.another(servers, self.info)

    def _leave(self, stream: CommandStream, half: Half | None) -> None:
        """The server is being drained: go elsewhere, beside the program. The connection's lock is held."""
        threading.Thread(target=self._move, args=(stream, half), name="rgpu-move", daemon=True).start()

    def _move(self, stream: CommandStream, half: Half | None) -> None:
        for pause in itertools.chain(silver.RETRY, itertools.repeat(silver.RETRY[-1])):
            try:
                self.pool.elsewhere({(half or self).daemon.address}, self.info)  # else all would stay as it is
                mirror = self._mirrored(stream)
                leaving = half or mirror.halves[0]
                if leaving in mirror.halves and mirror.failure is None:
                    silver.move(mirror, leaving)
                    self._moved(stream, leaving.seat)
                return
            except (RgpuError, NotImplementedError, TimeoutError) as error:
                if stream.mirror is not None:
                    stream.mirror.note = f"cannot leave: {error}"
            if self.pool.over.wait(pause) or stream.closed:
                return

    def _moved(self, stream: CommandStream, left: Seat) -> None:
        """The first of the workers is where this device is."""
        seat = stream.mirror.halves[0].seat
        self.seat, self.daemon, self.info, self.index = seat, seat.daemon, seat.info, seat.index
        if left.lease == self.lease:
            self.lease = seat.lease
        if self.partner is not None and left.lease == self.partner.lease:
            self.partner = None  # a new session begins wherever there is room
        stream.peers_lost += 1  # introduced anew: the other workers know only the one that was left
        self.pool.left(left)

    def _look_after(self, stream: CommandStream) -> None:
        """A worker's link is down: find out from the daemon what that means."""
        if stream.mirror is not None:
            stream.mirror.look_after()
            return
        since = stream.connection.down_since
        error = self.seat.fate(since) if since is not None else None
        if error is not None:
            stream.lose(error)

    def say_goodbye(self) -> None:
        """Announce that ``close`` follows."""
        if self._stream is not None:
            with contextlib.suppress(SessionLost, ProtocolError):
                self._stream.say_goodbye()

    def close(self, abort: bool = False) -> None:
        """Give the lease back."""
        stream, self._stream = self._stream, None
        if stream is None or forked():
            return
        failed = stream.connection.failure is not None
        stream.abort() if abort or failed else stream.close()
        self.retired.add(counted(stream))

    def __enter__(self) -> Device:
        stack = _thread.__dict__.setdefault("stack", [])
        stack.append(current())
        use(self)
        return self

    def __exit__(self, *_: Any) -> None:
        if stack := _thread.__dict__.get("stack"):  # empty when the pool was closed meanwhile
            use(stack.pop())


class Pool:
    """All devices that this process sees, in the order of the servers."""

    def __init__(self, settings: config.ClientConfig) -> None:
        self.settings = settings
        self.leases: list[Part] = []  # that this pool asked for, and gives back
        self.devices: list[Device] = []
        self.daemons: list[DaemonClient] = []
        self.embedded: Any = None
        self.holder = Holder()
        self.over = threading.Event()
        try:
            self._fill()
        except BaseException:
            self.close()
            raise

    def _fill(self) -> None:
        """The devices of the servers, or of the lease that the settings name or ask for."""
        settings = self.settings
        held = [parse_part(text) for text in settings.lease]
        terms = None if held else terms_of(settings)
        if terms is not None and registry.used(settings):
            held, self.daemons = lend(settings, terms, _say)
            self._keep(held)
        else:
            named = tuple(dict.fromkeys(part.address for part in held)) or registry.servers(settings)
            for address in named or (config.LOCAL,):
                self._add(address)
        for welcome, daemon in zip(self._hello(some_may_be_gone=registry.used(settings) and not held), self.daemons):
            daemon.name = welcome.name
            for info in welcome.devices:
                self.devices.append(Device(len(self.devices), daemon, info, settings))
        if terms is not None and not held:
            told = _say if settings.wait_for else lambda text: None
            held = acquire(
                self.daemons, terms, wait=settings.wait_for, show=settings.visible_devices, told=told,
                redundancy=settings.redundancy,
            )  # fmt: skip
            self._keep(held)
        if held:
            self._number([self._leased(part, index) for part in held for index in part.devices])
        if settings.visible_devices is not None and terms is None:
            shown = visible(settings.visible_devices, [device.info for device in self.devices])
            self._number([self.devices[position] for position in shown])
        for device in self.devices:
            device.holder, device.pool = self.holder, self
        if settings.redundancy > 1:
            self._pair_up()

    def _pair_up(self) -> None:
        """Each device becomes two, on different servers; those that are left over wait to take a lost one's place."""
        free, pairs = list(self.devices), []
        while free:
            first = free.pop(0)
            others = [d for d in free if d.daemon is not first.daemon and d.info["kind"] == first.info["kind"]]
            if not others:
                continue
            left = Counter(device.daemon for device in free)
            second = max(others, key=lambda device: left[device.daemon])  # so that no server is left over alone
            free.remove(second)
            first.partner = Seat(second.daemon, second.info, self.settings, second.lease, self.holder)
            first.name = f"{first.name[:-1]} and {first.partner.name})"
            pairs.append(first)
        if not pairs:
            raise NoSuchDevice(
                f"redundancy=2 needs devices of one kind on two servers; the pool has {len(self.devices)} on "
                f"{', '.join(str(d.address) for d in self.daemons)}"
            )
        self._number(pairs)

    def another(self, servers: Container[Any], info: dict) -> Seat:
        """A place for a session on some other server than these."""
        daemon, room = self.elsewhere(servers, info)
        return Seat(daemon, room, self.settings, self._lease_on(daemon, room), self.holder)

    def left(self, seat: Seat) -> None:
        """A session has moved away: its lease is given back, unless other devices have theirs under it."""
        used = {lease for d in self.devices for lease in (d.lease, d.partner.lease if d.partner else b"")}
        if seat.lease and seat.lease not in used:
            self.holder.forget(seat.lease)
            self.leases = [part for part in self.leases if part.lease != seat.lease]
            with contextlib.suppress(RgpuError):
                seat.daemon.give_back(seat.lease)

    def elsewhere(self, servers: Container[Any], info: dict) -> tuple[DaemonClient, dict]:
        """A device of the same kind on some other server than these; the least used one. Raises ServerBusy."""
        found: list[tuple[int, int, DaemonClient, dict]] = []
        addresses = [a for a in registry.servers(self.settings) if isinstance(a, config.Address)]
        known = {daemon.address: daemon for daemon in self.daemons}
        for address in dict.fromkeys([*known, *addresses]):
            if address in servers:
                continue
            daemon = known.get(address) or DaemonClient(address, timeout=self.settings.connect_timeout)
            try:
                devices = daemon.hello().devices
            except RgpuError:
                continue
            if daemon not in self.daemons:
                self.daemons.append(daemon)
            found += [
                (room["load"], len(found) + k, daemon, room)
                for k, room in enumerate(devices)
                if room["kind"] == info["kind"] and room["open"]
            ]
        if not found:
            raise ServerBusy(f"no other server has a device ({info['kind']}) for a second worker")
        _, _, daemon, room = min(found, key=lambda each: each[:2])
        return daemon, room

    def _lease_on(self, daemon: DaemonClient, room: dict) -> bytes:
        """What a session there is opened under: like the others', where leases were asked for."""
        terms = terms_of(self.settings)
        if terms is None:
            return b""
        (part,) = acquire([daemon], terms.on((room["index"],)))
        if part.renew:
            self.holder.add(daemon, part.lease, part.renew)
        self.leases.append(part)
        return part.lease

    def _hello(self, some_may_be_gone: bool) -> list[Any]:
        """What the servers say; those of a registry that do not answer are left out."""
        if not some_may_be_gone:
            return hello_all(self.daemons)
        there = hello_those_there(self.daemons, _say)
        for daemon in self.daemons:
            if all(daemon is not one for one, _ in there):
                daemon.abandon()
        self.daemons = [daemon for daemon, _ in there]
        return [welcome for _, welcome in there]

    def _keep(self, held: list[Part]) -> None:
        """Leases that are this pool's: renewed while it lives, given back at its end."""
        self.leases = held
        for part in held:
            if part.renew:
                self.holder.add(self._daemon(part.address), part.lease, part.renew)

    def _add(self, address: Any) -> None:
        if address == config.LOCAL:
            from rgpu.client import embedded

            self.embedded = embedded.EmbeddedDaemon(self.settings.local_devices)
            address = self.embedded.address
        self.daemons.append(DaemonClient(address, timeout=self.settings.connect_timeout))

    def _daemon(self, address: Any) -> DaemonClient:
        return next(daemon for daemon in self.daemons if daemon.address == address)

    def _leased(self, part: Part, index: int) -> Device:
        """The device of a lease."""
        daemon = self._daemon(part.address)
        found = [device for device in self.devices if device.daemon is daemon and device.index == index]
        if not found:
            raise NoSuchDevice(f"rgpu server {part.address} has no device {index} any more, which RGPU_LEASE names")
        found[0].lease = part.lease
        return found[0]

    def _number(self, devices: list[Device]) -> None:
        for ordinal, device in enumerate(devices):
            device.ordinal = ordinal
        self.devices = devices

    def device(self, ordinal: int) -> Device:
        if not 0 <= ordinal < len(self.devices):
            raise NoSuchDevice(
                f"there is no device {ordinal}: the pool has {len(self.devices)} "
                f"(0..{len(self.devices) - 1}) on {', '.join(str(d.address) for d in self.daemons)}"
            )
        return self.devices[ordinal]

    def close(self, abort: bool = False) -> None:
        self.over.set()
        if not abort:
            for device in self.devices:  # all at once: then no worker's last work is waited for in turn
                device.say_goodbye()
        for device in self.devices:
            try:
                device.close(abort)
            except SessionLost:
                pass
        self.holder.close()
        for part in self.leases:
            with contextlib.suppress(RgpuError):
                self._daemon(part.address).give_back(part.lease)
        for daemon in self.daemons:
            daemon.close()
        if self.embedded is not None:
            self.embedded.stop()


def _say(text: str) -> None:
    print(f"rgpu: {text}", file=sys.stderr, flush=True)


_pool: Pool | None = None
_ended = False  # the process is
_pool_lock = threading.RLock()


class _Thread(threading.local):
    """What is current for a thread."""

    stream: Any = None


_thread = _Thread()


def get() -> Pool:
    """The pool of this process, built at first use."""
    global _pool
    if _pool is None:
        # A finalizer that computes, or a daemon thread: no thread can be had any more, which servers are asked by.
        if sys.is_finalizing() or (_ended and threading.current_thread() is not threading.main_thread()):
            raise SessionLost("the interpreter is ending, and has given back its devices")
        with _pool_lock:
            if _pool is None:
                settle()
                _pool = Pool(config.load_client())
                if not _pool.devices:
                    raise ConfigError("the servers of the pool have no devices")
                _close_with_child()
    return _pool


def connect(*servers: Any, **settings: Any) -> Pool:
    """Use these servers (``"host:port"``, ``"local"``, or one list of them) from now on, in place of RGPU_SERVERS.

    Arrays of an earlier connection are gone. Keyword arguments are client settings of rgpu.toml, such as
    ``connect_timeout=5`` or ``registry="etcd://host:2379"``, which names the servers.
    ``gpus=2, memory="8GiB", compute=0.25`` lease parts of so many devices, all or none:
    ``memory`` of each (bytes, or a part like ``0.5``), ``compute`` share of each, ``filters=["name=*A100*"]``,
    ``placement`` spread, binpack or same-host, ``wait_for="60s"`` in the queue. They are given back by ``close``.
    ``redundancy=2``: each device is two workers on two servers that run the same commands; the loss of one costs
    nothing but time, and results on which they do not agree raise Divergence.
    Raises NoSuchDevice, QuotaExceeded, ServerBusy or ServerUnavailable.
    """
    global _pool
    if servers:
        given = servers[0] if len(servers) == 1 else servers
        settings["servers"] = given if isinstance(given, str) else list(given)
    elif settings.get("registry"):
        settings.setdefault("servers", [])  # not those of RGPU_SERVERS
    with _pool_lock:
        settle()
        made = Pool(config.load_client(settings))
        close()
        _pool = made
        _close_with_child()
    return made


def _close_with_child() -> None:
    spawning = sys.modules.get("multiprocessing")
    if spawning is not None and spawning.parent_process() is not None:  # one that was forked ends without atexit
        spawning.util.Finalize(None, close, exitpriority=0)


def close() -> None:
    """Give every lease back and stop an embedded daemon. Runs by itself at exit."""
    global _pool, _thread
    if forked():
        return  # the parent's; its lock may be held by a thread that is not here
    with _pool_lock:
        pool, _pool = _pool, None
        _thread = _Thread()  # every thread's current device
        if pool is not None:
            pool.close()


def _end() -> None:
    global _ended
    _ended = True
    close()


at_end(_end)


def current() -> Device:
    """The current device of this thread."""
    found = _thread.__dict__.get("device")
    if found is None:
        found = get().device(0)
    return found


def thread_has_device() -> bool:
    """Whether this thread has used a device."""
    return "device" in _thread.__dict__


def current_stream() -> CommandStream:
    """The command stream of the current device."""
    stream = _thread.stream
    if stream is None or stream.closed:
        stream = _thread.stream = current().stream
        _set_current(stream)
    return stream


def use(device: Device) -> None:
    """Make a device current for this thread."""
    local = _thread
    local.device = device
    local.__dict__.pop("stream", None)  # leased when something is done on it
    _set_current(None)


def reset() -> None:
    """Forget lost sessions: the next use of each device gets a new one. Their arrays are gone."""
    for device in get().devices:
        if device.attached and device.stream.connection.failure is not None:
            device.close(abort=True)


def refuse(nbytes: int, device: Device) -> None:
    """Raise OutOfMemoryError for what the device could not hold even when empty."""
    raise KINDS.get("OutOfMemoryError", MemoryError)(nbytes, 0, device.memory_total)


def stats() -> dict:
    """Counters since the pool was built: commands (replayed: those that left as repetitions), round_trips, batches,
    bytes_sent, bytes_received, bytes copied between devices (direct_bytes, and relayed_bytes through the client),
    uploads that were not sent because the worker had them (recalled, recalled_bytes), and the same by device under
    ``devices``, with ``notes`` on what is worth a remark and ``links`` to the devices it has exchanged copies with.
    CUDA devices that something was repeated on are asked for the ``graphs`` they made of it, which waits."""
    from rgpu.client import peer

    result: dict[str, Any] = vars(Counters()) | {"devices": []}
    for device in _pool.devices if _pool is not None else ():
        total, stream = Counters(), device._stream
        total.add(device.retired)
        if stream is not None:
            total.add(counted(stream))
        for name, value in vars(total).items():
            result[name] += value
        told = {"device": device.ordinal, "server": str(device.daemon.address), **vars(total), **_halves(stream)}
        told |= {"notes": peer.notes(stream), "links": peer.links(stream)}
        result["devices"].append(told | _graphs(device.info["kind"], stream))
    return result


def _graphs(kind: str, stream: CommandStream | None) -> dict[str, Any]:
    """What a CUDA device made of repetitions: graphs captured and launched, segments refused, commands that launches
    stood for."""
    if kind != "cuda" or stream is None or not stream.replayed or stream.connection.failure is not None:
        return {}
    from rgpu.client import peer

    return {"graphs": dict(zip(("captured", "launched", "refused", "commands"), peer.ask(stream, "session.graphs")))}


def _halves(stream: CommandStream | None) -> dict[str, Any]:
    """How a redundant device is."""
    mirror = None if stream is None else stream.mirror
    if mirror is None:
        return {}
    return {"redundancy": len(mirror.whole), "takeovers": mirror.takeovers, "degraded": mirror.note}


def counted(stream: CommandStream) -> Counters:
    """A stream's counters, with the bytes that its link counted."""
    link = stream.connection.stats
    return replace(
        stream.counters,
        commands=stream.left,
        batches=stream.batch,
        replayed=stream.replayed,
        bytes_sent=link["bytes_sent"],
        bytes_received=link["bytes_received"],
    )
