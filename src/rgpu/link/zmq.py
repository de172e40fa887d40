"""Links over ZeroMQ: DEALER on the client's side, ROUTER on the worker's, tcp or ipc.

The only module that imports zmq. ZeroMQ loses messages silently when it replaces a connection: this
module reports the change ("down", "up") and never pretends otherwise. One context a process, never
used across a fork. No socket is touched outside its lock; nobody sleeps inside it.
"""

import contextlib
import os
import selectors
import struct
import threading
import time
import weakref

import zmq

from rgpu.ending import at_end
from rgpu.errors import ConfigError, ForkError, ProtocolError, ServerUnavailable
from rgpu.link import curve
from rgpu.link.base import COPY_BELOW, Link, Listener
from rgpu.link.waker import Waker
from rgpu.tokens import Token
from rgpu.wire import limits

OPTIONS = {  # every socket; milliseconds where it is a time
    zmq.HEARTBEAT_IVL: 500,  # a cut is noticed within 500 + 1500 ms, by both sides
    zmq.HEARTBEAT_TIMEOUT: 1500,
    zmq.HEARTBEAT_TTL: 1500,
    zmq.HANDSHAKE_IVL: 2000,
    zmq.CONNECT_TIMEOUT: 2000,
    zmq.RECONNECT_IVL: 50,
    zmq.RECONNECT_IVL_MAX: 500,
    zmq.IMMEDIATE: 1,  # without a connection "would block", instead of a hidden queue
    zmq.SNDHWM: 64,  # messages; the session's window bounds the bytes
    zmq.RCVHWM: 64,
    zmq.MAXMSGSIZE: limits.FRAME_BYTES,
    zmq.LINGER: 1000,
}
ROUTER_OPTIONS = {
    zmq.ROUTER_MANDATORY: 1,  # a full or absent peer is an error, not a silent drop
    zmq.ROUTER_HANDOVER: 1,  # a client that comes back replaces its own half-open connection
    zmq.BACKLOG: 16,
}
# Plain integers: an operation on pyzmq's enums costs as much as a receive.
_POLLIN, _NOBLOCK, _MORE = int(zmq.POLLIN), int(zmq.NOBLOCK), int(zmq.NOBLOCK | zmq.SNDMORE)
_EVENTS, _RCVMORE = int(zmq.EVENTS), int(zmq.RCVMORE)
_UP, _DOWN = int(zmq.EVENT_HANDSHAKE_SUCCEEDED), int(zmq.EVENT_DISCONNECTED)
_EVENT = struct.Struct("=H")
_NEVER = 1e9
LOOK = 0.001  # seconds between looks at the monitor: one costs as much as a receive
UNSURE, RECHECK = 0.1, 0.005  # seconds after an event during which a ROUTER asks again, and how often
REDIAL = 2.5  # seconds without a connection (a handshake may take 2) until a DEALER dials anew
DOWN_RECHECK = 0.1  # how often it asks for as long as its client is not there

_context: zmq.Context | None = None
_context_lock = threading.Lock()
_links: "weakref.WeakSet[ZmqLink]" = weakref.WeakSet()
owners: weakref.WeakSet = weakref.WeakSet()  # of sockets elsewhere; ``abort`` says False: not now


def shared_context() -> zmq.Context:
    """The context of this process, for every socket it has."""
    global _context
    with _context_lock:
        if _context is None:
            _context = zmq.Context(1)
        return _context


def _at_exit() -> None:
    """Let closed links flush (LINGER bounds it); drop the others, which would block the exit."""
    in_use = [owner for owner in list(_links) + list(owners) if owner.abort() is False]
    if _context is not None and not in_use:  # a thread inside a socket ends with the process
        _context.term()


class _Forked:
    """Stands in for a parent's socket in a forked child."""

    def __getattr__(self, name: str):
        raise ForkError("this process was forked from one that uses rgpu; use the 'spawn' start method")


def _after_fork() -> None:
    global _context, _context_lock
    _context_lock = threading.Lock()
    _inherited.append(_context)  # not terminated: its threads live in the parent
    _context = None
    for link in list(_links):
        _inherited.append((link._socket, link._monitor))
        link.lock = threading.RLock()
        link._socket = link._monitor = _Forked()  # type: ignore[assignment]
    _links.clear()


_inherited: list = []
at_end(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class _Socket(zmq.Socket):
    """Without pyzmq's conveniences (enums, dictionaries of hooks), which cost as much as the call."""

    get, send = zmq.backend.Socket.get, zmq.backend.Socket.send


def _new_socket(kind: int, options: dict) -> zmq.Socket:
    new = shared_context().socket(kind, socket_class=_Socket)
    for option, value in options.items():
        new.setsockopt(option, value)
    return new


class ZmqLink(Link):
    """What both ends share: one socket, its monitor, one lock, and waiting without the lock."""

    def __init__(self, uri: str, new: zmq.Socket) -> None:
        self.uri, self.kind = uri, uri.partition("://")[0]
        self._socket = new
        self._monitor = new.get_monitor_socket(_UP | _DOWN)
        self.lock = threading.RLock()
        self._waker = Waker()
        self._selector = selectors.DefaultSelector()
        for fd in (new.FD, self._monitor.FD, self._waker.fileno()):
            self._selector.register(fd, selectors.EVENT_READ)
        self._up = False
        self._look_at = 0.0  # when the monitor is looked at next
        self._recheck_within = _NEVER  # the longest sleep while a state has to be asked for
        self._closed = False
        _links.add(self)

    # Receiving

    def recv(self, sink=None):
        with self.lock:
            try:
                # Asked first: nothing to receive is an exception, which costs more than the question.
                while not self._closed and _readable(self._socket):
                    frames = self._receive_message(self._socket.recv(_NOBLOCK, False), sink)
                    if frames is not None:
                        self.received_bytes += sum(map(len, frames))
                        return frames
            except zmq.Again:
                pass
        return None

    def _receive_message(self, first: zmq.Frame, sink) -> list | None:
        """The message that begins with this frame, or None if it was not meant for the session."""
        raise NotImplementedError

    def _receive_rest(self, first: zmq.Frame, sink) -> list:
        """The message from its first frame on, the others each in the place that the sink names."""
        sock, more, frames = self._socket, first.more, [first.bytes]
        while more:
            into = sink(frames) if sink is not None else None
            if into is None:
                frame = sock.recv(_NOBLOCK, False)
                # A large frame stays where ZeroMQ has it: copying it costs as much as receiving it.
                frames.append(frame.bytes if len(frame) < COPY_BELOW else frame.buffer)
                more = frame.more
                continue
            size = sock.recv_into(into)
            more = bool(sock.get(_RCVMORE))
            if size > len(into):
                self._skip_rest(more)
                raise ProtocolError(f"a frame of {size} bytes came where {len(into)} were expected")
            frames.append(into if size == len(into) else into[:size])
        return frames

    def _skip_rest(self, more: bool) -> None:
        while more:
            more = self._socket.recv(_NOBLOCK, False).more

    # Sending

    def send(self, frames: list, copy_below: int = COPY_BELOW) -> bool:
        with self.lock:
            if self._closed:
                return False
            sock = self._socket
            try:
                self._address(sock)
                # Only the first part can be refused: the high-water mark counts whole messages.
                for frame in frames[:-1]:
                    sock.send(frame, _MORE, len(frame) < copy_below)
                frame = frames[-1]
                sock.send(frame, _NOBLOCK, len(frame) < copy_below)
            except zmq.ZMQError as error:
                if error.errno in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                    return False
                raise
            self.sent_bytes += sum(map(len, frames))
            # Sending may consume the signal of a message that another thread waits for.
            if self._waker.waiters and _readable(sock):
                self._waker.ring()
            return True

    def _address(self, sock: zmq.Socket) -> None:
        """Send what has to precede a message."""

    # Waiting

    def wait(self, timeout, unless=None) -> bool:
        if timeout <= 0:
            with self.lock:
                return self._ready()
        deadline = time.monotonic() + timeout
        with self.lock:
            self._waker.waiters += 1
        try:
            if unless is not None and unless():
                return True
            while True:
                with self.lock:
                    if self._ready():
                        return True
                left = min(deadline - time.monotonic(), self._recheck_within)
                if left <= 0:
                    return False
                fired = self._selector.select(left)
                if any(key.fd == self._waker.fileno() for key, _ in fired):
                    return True
                if not fired and left == self._recheck_within:
                    self._look_at = 0.0
                    return True
        finally:
            with self.lock:
                self._waker.leave()
                if self._closed and not self._waker.waiters:
                    self._release()

    def _ready(self) -> bool:
        # Asking for EVENTS re-arms the descriptor; without it select may sleep on waiting messages.
        if self._closed or _readable(self._socket):
            return True
        if _readable(self._monitor):
            self._look_at = 0.0
            return True
        return False

    def wake(self) -> None:
        with self.lock:
            self._waker.ring()

    # Events

    def events(self) -> list[str]:
        with self.lock:
            now = time.monotonic()
            if self._closed or now < self._look_at:
                return []
            self._look_at = now + LOOK
            seen = []
            while _readable(self._monitor):
                seen.append(_EVENT.unpack_from(self._monitor.recv_multipart()[0])[0])
            return self._changes(seen)

    def _changes(self, seen: list[int]) -> list[str]:
        raise NotImplementedError

    # Ending

    def close(self) -> None:
        self._end(linger=OPTIONS[zmq.LINGER])

    def abort(self) -> None:
        self._end(linger=0)

    def _end(self, linger: int) -> None:
        with self.lock:
            if self._closed:
                return
            self._closed = True
            _links.discard(self)
            with contextlib.suppress(zmq.ZMQError, ForkError):
                self._socket.disable_monitor()
                self._monitor.close(0)
                self._socket.close(linger)
            self._waker.ring()
            if not self._waker.waiters:
                self._release()

    def _release(self) -> None:
        self._selector.close()
        self._waker.close()


class DealerLink(ZmqLink):
    """The client's end: connects, and connects again by itself whenever the connection is gone. ZeroMQ does so after
    an end of the line; after bytes that make no sense (or a handshake that failed) it gives up, and we do it.
    Copies what it sends: ZeroMQ does not say when it has read a large frame, and callers want their memory back."""

    def send(self, frames: list, copy_below: int = COPY_BELOW) -> bool:
        return super().send(frames, limits.FRAME_BYTES + 1)

    def __init__(self, uri: str, identity: bytes, token: Token | None = None) -> None:
        new = _new_socket(zmq.DEALER, OPTIONS)
        curve.as_client(new, token)
        new.setsockopt(zmq.IPV6, "[" in uri)
        new.setsockopt(zmq.ROUTING_ID, _routing_id(identity))
        super().__init__(uri, new)
        self._wait_for_up()
        try:
            new.connect(_endpoint(uri))
        except zmq.ZMQError as error:
            self.abort()
            raise ConfigError(f"cannot connect to {uri!r}: {error}") from None

    def _receive_message(self, first, sink):
        if not first.more and not len(first):
            return None  # the worker's end asked whether we are there
        return self._receive_rest(first, sink)

    def _changes(self, seen: list[int]) -> list[str]:
        for event in seen:
            self._up = event == _UP
            self._wait_for_up()
        if not self._up and time.monotonic() >= self._redial_at:
            self._wait_for_up()
            with contextlib.suppress(zmq.ZMQError):  # it may have forgotten the place already
                self._socket.disconnect(_endpoint(self.uri))
            self._socket.connect(_endpoint(self.uri))
        return ["up" if event == _UP else "down" for event in seen]

    def _wait_for_up(self) -> None:
        self._redial_at = time.monotonic() + REDIAL
        self._recheck_within = _NEVER if self._up else REDIAL


class RouterLink(ZmqLink):
    """The worker's end: one client, known by its identity; anybody else is not heard."""

    def __init__(self, uri: str, bound: zmq.Socket, identity: bytes | None) -> None:
        super().__init__(uri, bound)
        self._client = None if identity is None else _routing_id(identity)
        self.refused = 0  # messages of anybody else
        self._doubt()  # the client may have connected before the monitor was there

    def _doubt(self) -> None:
        self._handshake = True  # somebody connected, and it is not known who
        self._unsure_until = time.monotonic() + UNSURE
        self._recheck_within = RECHECK

    def _receive_message(self, first, sink):
        sender = first.bytes
        if self._client is None:
            self._client = sender
            self._doubt()
        if sender == self._client and first.more:
            return self._receive_rest(self._socket.recv(_NOBLOCK, False), sink)
        self.refused += 1
        self._skip_rest(first.more)
        return None

    def _address(self, sock) -> None:
        if self._client is None:
            raise zmq.ZMQError(zmq.EHOSTUNREACH)
        sock.send(self._client, _MORE)

    def _changes(self, seen: list[int]) -> list[str]:
        """Monitor events do not say whose connection it was, and come a moment before the ROUTER
        knows: after each, ask for a while whether our client is there."""
        now = time.monotonic()
        if seen:
            self._handshake |= _UP in seen
            self._unsure_until = now + UNSURE
        sure = now >= self._unsure_until
        if sure and self._up:
            self._recheck_within = _NEVER
            return []
        # Down: the ROUTER of a busy machine may learn late of a client whose event is long past.
        self._recheck_within = DOWN_RECHECK if sure else RECHECK
        here = self._client_is_here()
        changes = []
        if self._up and (not here or self._handshake):
            changes.append("down")  # gone, or perhaps replaced: what was under way may be lost
        if here and (not self._up or self._handshake):
            changes.append("up")
        self._handshake &= not here
        self._up = here
        return changes

    def _client_is_here(self) -> bool:
        try:
            self._address(self._socket)
            self._socket.send(b"", _NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                raise
            return error.errno == zmq.EAGAIN
        return True


class ZmqListener(Listener):
    """A bound ROUTER that waits to be told which client is its own."""

    def __init__(self, uri: str, keys: curve.ServerKeys | None = None) -> None:
        new = _new_socket(zmq.ROUTER, OPTIONS | ROUTER_OPTIONS)
        curve.as_server(new, keys)
        new.setsockopt(zmq.IPV6, "[" in uri)
        try:
            new.bind(_endpoint(uri))
        except zmq.ZMQError as error:
            new.close(0)
            raise ServerUnavailable(f"cannot listen at {uri!r}: {error}") from None
        self.uri = f"{uri.partition('://')[0]}://{new.getsockopt_string(zmq.LAST_ENDPOINT).partition('://')[2]}"
        self._socket: zmq.Socket | None = new

    def accept(self, identity: bytes | None = None) -> Link:
        if self._socket is None:
            raise ServerUnavailable(f"{self.uri} has its client already")
        bound, self._socket = self._socket, None
        return RouterLink(self.uri, bound, identity)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close(0)
            self._socket = None


def _readable(sock: zmq.Socket) -> bool:
    return bool(sock.get(_EVENTS) & _POLLIN)  # type: ignore[operator]  # an int for this option


def _endpoint(uri: str) -> str:
    """ZeroMQ's own name of a place: its tcp is our zmq."""
    return f"tcp{uri[3:]}" if uri.startswith("zmq:") else uri


def _routing_id(identity: bytes) -> bytes:
    return b"c" + identity  # an identity may begin with a zero byte, ZeroMQ's may not


def connect(uri: str, identity: bytes, token: Token | None = None) -> Link:
    return DealerLink(uri, identity, token)


def listen(uri: str, keys: curve.ServerKeys | None = None) -> Listener:
    return ZmqListener(uri, keys)
