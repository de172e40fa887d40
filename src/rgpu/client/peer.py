"""Copies from device to device: two commands, and the bytes go from worker to worker.

Two workers are introduced at their first copy, each told a secret that is theirs alone over its own session;
from then on a copy waits for nothing. Workers that cannot reach each other are told apart here, once, and
their copies pass through the client, which ``rgpu.stats()`` says. No array data is looked at here.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np

from rgpu.client.remote import Remote
from rgpu.client.shield import shield
from rgpu.client.stream import CommandStream
from rgpu.errors import RemoteError
from rgpu.wire import ops, values
from rgpu.wire.functions import BY_NAME

_WILDCARDS = ("0.0.0.0", "[::]", "*")

_next_number = itertools.count(1).__next__
_next_token = itertools.count(1).__next__


class Pair:
    """Two sessions that have been introduced, over a link of that ``kind``. ``number`` 0: they cannot reach each
    other, ``why`` not."""

    def __init__(self, a: CommandStream, b: CommandStream) -> None:
        self.lock = threading.RLock()  # both ends see the copies of all threads in one order
        self.number, self.why, self.kind = 0, "", ""
        self._losses = a.peers_lost + b.peers_lost
        for stream in (a, b):
            if getattr(stream, "mirror", None) is not None and stream.mirror.several:
                self.why = f"{stream.name} is redundant"
                return
        for listener, dialer in ((b, a), (a, b)):
            number, secret = _next_number(), os.urandom(16)
            try:
                self.kind = _introduce(number, secret, listener, dialer)
                if self.kind:
                    self.number = number
                    return
                self.why = f"{dialer.name} cannot reach {listener.name}"
            except (RemoteError, NotImplementedError) as error:
                self.why = str(error)
            _submit(listener, "peer.forget", number)

    def current(self, a: CommandStream, b: CommandStream) -> bool:
        """Whether nothing broke since: a lost connection is made anew at the next copy."""
        return self._losses == a.peers_lost + b.peers_lost


def _introduce(number: int, secret: bytes, listener: CommandStream, dialer: CommandStream) -> str:
    """The kind of link that the two have now; empty: the one cannot reach the other."""
    room = ask(dialer, "peer.room")
    places, host = ask(listener, "peer.listen", number, secret, dialer.name[:100], room)
    uris = [uri for place in places for uri in _where(place, listener)]
    return ask(dialer, "peer.connect", number, secret, uris, listener.name[:100], host)


def _where(place: str, listener: CommandStream) -> list[str]:
    scheme, _, rest = place.partition("://")
    if scheme == "shm":
        return [place]
    name, _, port = rest.rpartition(":")
    return [f"{scheme}://{each}:{port}" for each in hosts_of(name, listener)]


def hosts_of(host: str, listener: CommandStream) -> list[str]:
    """Where a worker may be found: at the address it listens on, or at the one its server is known by."""
    known = listener.device.daemon.address.host  # type: ignore[attr-defined]
    known = f"[{known}]" if ":" in known else known
    return [known] if host in _WILDCARDS else list(dict.fromkeys((host, known)))


_pairs: dict[tuple[int, int], Pair] = {}
_members: weakref.WeakValueDictionary[int, CommandStream] = weakref.WeakValueDictionary()
_pairs_lock = threading.RLock()


def pair_of(a: CommandStream, b: CommandStream) -> Pair:
    """The pair of two sessions, introduced at the first call (which waits for both)."""
    key = (a.number, b.number) if a.number < b.number else (b.number, a.number)
    found = _pairs.get(key)
    if found is not None and found.current(a, b):
        return found
    with _pairs_lock:
        found = _pairs.get(key)
        if found is None or not found.current(a, b):
            _forget_closed()
            with _both(a, b):  # neither begins to move: two workers would go to meet one
                found = _pairs[key] = Pair(a, b)
            _members[a.number], _members[b.number] = a, b
    return found


def _forget_closed() -> None:
    """Numbers of streams are given once: pairs of streams that are gone serve nobody."""
    for key in list(_pairs):
        if any((stream := _members.get(number)) is None or stream.closed for number in key):
            del _pairs[key]


def notes(stream: CommandStream | None) -> list[str]:
    """Which devices one cannot reach, and why."""
    number = -1 if stream is None else stream.number
    found = [pair for key, pair in _pairs.items() if number in key and not pair.number]
    return [f"copies pass through the client: {pair.why}" for pair in found]


def links(stream: CommandStream | None) -> dict[int, str]:
    """Number of another device -> the kind of link that copies to and from it take."""
    found = {}
    for key, pair in list(_pairs.items()):
        if stream is not None and stream.number in key and pair.number:
            other = _members.get(key[0] if key[1] == stream.number else key[1])
            if other is not None:
                found[other.device.ordinal] = pair.kind
    return found


def measure(a: CommandStream, b: CommandStream) -> dict[str, Any]:
    """What the link between two devices is worth now: ``link`` (its kind, empty: through the client), ``rtt`` in
    seconds and ``bandwidth`` in bytes a second from the first to the second, both 0.0 without a link. Waits."""
    pair = pair_of(a, b)
    rtt, bandwidth = ask(a, "peer.measure", pair.number) if pair.number else (0.0, 0.0)
    return {"link": pair.kind, "rtt": rtt, "bandwidth": bandwidth}


def copy(target: Remote, source: Remote) -> None:
    """Bytes of ``source`` become those of ``target``; both contiguous, equally laid out, on two devices."""
    sender, receiver, nbytes = source._stream, target._stream, source._metadata.nbytes
    if not nbytes:
        return
    while True:
        pair = pair_of(sender, receiver)
        if not pair.number:
            _relay(target, source)
            return
        with shield, _both(sender, receiver), pair.lock:
            if pair.current(sender, receiver):  # neither has moved to another worker meanwhile
                token = _next_token()
                sender.submit(ops.Send.encode(pair.number, token, source._handle))
                receiver.submit(ops.Receive.encode(pair.number, token, target._handle))
                break
    sender.counters.direct_bytes += nbytes
    sender.flush(deadline=0.0)  # the receiver may be read, and so waited for, at once
    # The source must outlive the command that sends it; freeing it is queued behind that command.


@contextlib.contextmanager
def _both(a: CommandStream, b: CommandStream) -> Iterator[None]:
    """The locks of two streams, in an order that is everybody's."""
    first, second = (a, b) if a.number < b.number else (b, a)
    with first.entry(), second.entry():
        yield


def _relay(target: Remote, source: Remote) -> None:
    """Through the client; the reading waits."""
    nbytes = source._metadata.nbytes
    source._stream.counters.relayed_bytes += nbytes
    host = np.empty(source._metadata.shape, source._metadata.dtype, "C" if source._metadata.c else "F")
    source._stream.read(source._handle, host, "C" if source._metadata.c else "F")
    flat = memoryview(host.reshape(-1, order="A").view(np.uint8))
    target._stream.write(target._handle, flat)


def _encode(args: tuple) -> list:
    return [values.encode(x, lambda _: None) for x in args]


def _submit(stream: CommandStream, function: str, *args: Any) -> None:
    stream.submit(ops.Call.encode(BY_NAME[function].id, [], _encode(args), {}))


_decode = values.Decoder(lambda handle: None)


def ask(stream: CommandStream, function: str, *args: Any) -> Any:
    return _decode(stream.ask(BY_NAME[function].id, _encode(args), {}))
