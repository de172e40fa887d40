"""Requests and answers between clients and a daemon, over one ZeroMQ socket each.

``ControlServer`` waits for requests and for any other file descriptor its owner registers, in one
thread. ``ControlClient`` asks and waits with a time limit, and says how asking failed: name, refused,
no answer, gone. Knows frames and times; never what the bytes of a request mean.
"""

from __future__ import annotations

import itertools
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

import zmq

from rgpu.errors import AuthenticationError, ForkError, ServerUnavailable
from rgpu.link import curve
from rgpu.link.guests import Guests
from rgpu.link.zmq import owners, shared_context
from rgpu.tokens import Token

REQUEST_BYTES = 1 << 16  # largest request a server accepts
ANSWER_BYTES = 8 << 20  # largest answer a client accepts
ROOM = 128 << 20  # bytes that requests which are not complete may take
SETTLE_SECONDS = 3.0
BACKLOG = 1024  # connections that wait to be accepted
CUT = (0.1, 0.3)  # seconds until a handshake that was cut is tried again: a server without room for it cuts some, one
# with another key each
_HIGH_WATER = 256
_EVENT = struct.Struct("=H")  # what a monitor's message begins with

# The end of a connection, or of the attempt to make one with something that is no rgpu-server.
_ENDINGS = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
_OPTIONS = {
    zmq.LINGER: 0,
    zmq.HANDSHAKE_IVL: 2000,
    zmq.HEARTBEAT_IVL: 500,
    zmq.HEARTBEAT_TIMEOUT: 1500,
    zmq.HEARTBEAT_TTL: 3000,
    zmq.SNDHWM: _HIGH_WATER,
    zmq.RCVHWM: _HIGH_WATER,
}


def _socket(kind: int, limit: int, uri: str) -> zmq.Socket:
    sock = shared_context().socket(kind)
    for option, value in _OPTIONS.items():
        sock.setsockopt(option, value)
    sock.setsockopt(zmq.MAXMSGSIZE, limit)
    sock.setsockopt(zmq.IPV6, "[" in uri)
    return sock


def _resident() -> int:
    """Bytes of memory that this process has; 0 where the system does not say."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _listening(uri: str) -> socket.socket:
    """What listens at ``tcp://ADDRESS:PORT``; ``*`` is every address, IPv6 in brackets."""
    host, _, port = uri.removeprefix("tcp://").rpartition(":")
    family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
    try:
        place = socket.getaddrinfo(host.strip("[]").replace("*", "") or None, int(port), family, socket.SOCK_STREAM,
                                   flags=socket.AI_PASSIVE)[0][4]  # fmt: skip
        found = socket.create_server(
            place[:2], family=family, backlog=BACKLOG, dualstack_ipv6=family == socket.AF_INET6 and place[0] == "::"
        )
    except OSError as error:
        raise OSError(error.errno, error.strerror, uri) from None
    found.setblocking(False)  # libzmq accepts from it
    return found


class ControlServer:
    """A ROUTER and the poll loop around it."""

    def __init__(self, uri: str, keys: curve.ServerKeys | None = None) -> None:
        self._keys = keys
        self._poller = zmq.Poller()
        self._callbacks: dict[int, Callable[[], None]] = {}
        # It outlives the ROUTER when that is made anew: who comes meanwhile waits, and is not refused.
        self._door = _listening(uri)
        self._listen(uri)
        self.endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._usual = _resident()
        self._cut = 0  # bytes of memory when everybody was cut off
        self._settled = 0.0  # when what was cut off has left at the latest; 0: nothing was
        owners.add(self)

    def _listen(self, uri: str) -> None:
        self._socket = _socket(zmq.ROUTER, REQUEST_BYTES, uri)
        if self._keys is None:
            curve.as_open(self._socket)
        else:
            curve.as_server(self._socket, self._keys)
        self._socket.setsockopt(zmq.USE_FD, os.dup(self._door.fileno()))
        self._socket.bind(uri)
        self._poller.register(self._socket, zmq.POLLIN)
        self._guests = Guests(self._socket)
        self._poller.register(self._guests.monitor, zmq.POLLIN)

    def tend(self) -> bool:
        """Now and then: has this process grown by more than ``ROOM``? A message of many frames lies in memory until its
        last one comes, libzmq bounds the frames and not their number, and does not say whose they are. So everybody
        is cut off, which frees it; clients connect again with their next question. Whether that was done."""
        usual = self._usual
        if self._settled:
            self._settle()
            usual = self._cut  # what was cut off may still be there; more than that is another attack
        if _resident() - usual < ROOM:
            return False
        self._cut = _resident()
        self._poller.unregister(self._socket)
        self._poller.unregister(self._guests.monitor)
        self._guests.close()
        self._socket.close(0)
        self._listen(self.endpoint)
        self._settled = time.monotonic() + SETTLE_SECONDS
        return True

    def _settle(self) -> None:
        """libzmq frees what was cut off in a thread of its own, a moment later."""
        from rgpu._native import trim_malloc  # brings NumPy, which rgpu-smi does without

        trim_malloc()
        if _resident() - self._usual < ROOM or time.monotonic() > self._settled:
            self._usual, self._settled = max(self._usual, _resident()), 0.0

    def watch(self, fd: int, callback: Callable[[], None]) -> None:
        """Call ``callback`` from ``step`` whenever ``fd`` is readable or at its end."""
        self._callbacks[fd] = callback
        self._poller.register(fd, zmq.POLLIN)

    def unwatch(self, fd: int) -> None:
        if self._callbacks.pop(fd, None):
            self._poller.unregister(fd)

    def step(self, timeout: float, on_request: Callable[[Any, bytes, str], None]) -> None:
        """Wait once; hand each request to ``on_request(asker, body, key)`` and call what is readable. ``key`` is the
        public key that the asker has proven; empty on a server without keys."""
        ready = self._poller.poll(max(0.0, timeout) * 1000)
        for source, _ in ready:
            if source is self._socket:
                self._receive(on_request)
            elif source is self._guests.monitor:
                self._guests.look()
            elif source in self._callbacks:  # an earlier callback may have unwatched it
                self._callbacks[source]()

    def _receive(self, on_request: Callable[[Any, bytes, str], None]) -> None:
        for _ in range(_HIGH_WATER):  # then let the other descriptors have their turn
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            if len(frames) == 3:  # anything else is not from a ControlClient: no way to answer
                key = curve.user_of(frames[2])
                self._guests.heard(frames[2], key)
                on_request((frames[0].bytes, frames[1].bytes), frames[2].bytes, key)

    def answer(self, asker: Any, body: bytes) -> None:
        """Answer a request, now or later. A client that is gone or does not read misses it."""
        try:
            self._socket.send_multipart([*asker, body], zmq.NOBLOCK)
        except zmq.Again:
            pass

    def reaches(self, asker: Any) -> bool:
        """Whether the connection that a request came by is there still. What this sends nobody asked for, and so nobody
        hears it."""
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        try:
            self._socket.send_multipart([asker[0], b"", b""], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            return error.errno != zmq.EHOSTUNREACH
        finally:
            self._socket.setsockopt(zmq.ROUTER_MANDATORY, 0)
        return True

    def close(self, linger: float = 0.5) -> None:
        self._guests.close()
        self._socket.close(int(linger * 1000))
        self._door.close()

    def abort(self) -> None:
        self.close(0.0)


class _OtherKey(AuthenticationError):
    """The server ended the handshake, and takes connections: it has another key, unless it had no room just then."""


class ControlClient:
    """Asks one server; connects at the first request and again after a failure. Thread-safe. ``token``: what to
    show a server that has keys; without one only an open server answers. ``reached`` is the address that did."""

    def __init__(self, host: str, port: int, timeout: float = 5.0, token: Token | None = None) -> None:
        self.host, self.port, self.timeout, self.token = host, port, timeout, token
        self.reached = host
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._lock = threading.RLock()
        self._numbers = itertools.count(1)
        self._socket: zmq.Socket | None = None
        self._monitor: zmq.Socket | None = None
        self._greeted = False  # the handshake is over
        self._pid = os.getpid()
        self.round_trip: float | None = None  # seconds that the network took to answer the last connect
        owners.add(self)

    def request(self, body: bytes, timeout: float | None = None) -> bytes:
        """The server's answer, or ServerUnavailable with what failed and what to check."""
        if os.getpid() != self._pid:
            raise ForkError(
                f"the connection to {self.address} belongs to the parent process {self._pid}; "
                "use multiprocessing's 'spawn' start method"
            )
        with self._lock:
            deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
            for pause in CUT:
                try:
                    return self._exchange(body, deadline)
                except _OtherKey:
                    time.sleep(pause)
            return self._exchange(body, deadline)

    def _exchange(self, body: bytes, deadline: float) -> bytes:
        """One attempt; the lock is held."""
        try:
            if self._monitor is not None and self._ending() is not None:
                self._disconnect()  # it broke while nobody asked: the server was restarted, perhaps
            if self._socket is None:
                self._connect(deadline)
            number = next(self._numbers).to_bytes(8, "big")
            try:
                self._socket.send_multipart([number, body], zmq.NOBLOCK)
            except zmq.Again:  # the connection has ended already, and with it the queue
                raise self._ending() or self._unfit() from None
            return self._await(number, deadline)
        except BaseException:
            self._disconnect()
            raise

    def close(self) -> None:
        with self._lock:
            if os.getpid() == self._pid:
                self._disconnect()

    def abort(self) -> bool:
        """Let go at the end of the process; False while another thread waits for an answer."""
        if not self._lock.acquire(timeout=0.1):
            return False
        try:
            self._disconnect()
        finally:
            self._lock.release()
        return True

    def _connect(self, deadline: float) -> None:
        # A plain connection first: it tells name, refusal and silence apart at once, where a
        # ZeroMQ socket would retry quietly. It also picks the address that answers.
        where = f"rgpu server {self.address}"
        try:
            host, port, self.round_trip = _reach(_resolve(self.host, self.port, deadline), deadline)
        except socket.gaierror as error:
            raise ServerUnavailable(
                f"{where}: the name {self.host!r} cannot be resolved ({error.strerror}); "
                "check the spelling in RGPU_SERVERS, or use the IP address",
                "name",
            ) from None
        except ConnectionRefusedError:
            raise ServerUnavailable(
                f"{where} refused the connection: no rgpu-server listens on port {self.port} there; "
                "start one (rgpu-server --port ...) or correct the port",
                "refused",
            ) from None
        except TimeoutError:
            raise ServerUnavailable(
                f"{where} did not answer within the time limit: the host is down, or a firewall drops "
                f"packets; check that TCP port {self.port} can be reached from here",
                "no-answer",
            ) from None
        except OSError as error:
            raise ServerUnavailable(
                f"{where} cannot be reached: {error.strerror or error}; check the network", "unreachable"
            ) from None
        self.reached = host
        uri = f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"
        self._socket = _socket(zmq.DEALER, ANSWER_BYTES, uri)
        self._socket.setsockopt(zmq.RECONNECT_IVL, -1)
        curve.as_client(self._socket, self.token)
        self._greeted = False
        self._monitor = self._socket.get_monitor_socket(_ENDINGS)
        self._socket.connect(uri)

    def _await(self, number: bytes, deadline: float) -> bytes:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._monitor, zmq.POLLIN)
        while (left := deadline - time.monotonic()) > 0:
            ready = dict(poller.poll(left * 1000))
            if self._socket in ready:
                frames = self._socket.recv_multipart()
                # An answer to a request that ran out of time before is of no use now.
                if len(frames) == 2 and frames[0] == number:
                    return frames[1]
            elif self._monitor in ready and (ending := self._ending()) is not None:
                raise ending
        raise self._silent()

    def _silent(self) -> ServerUnavailable:
        return ServerUnavailable(
            f"rgpu server {self.address} accepted the connection but did not answer in time: it hangs or is "
            "overloaded, or what listens there is not an rgpu-server; look at its log, or correct the address",
            "no-answer",
        )

    def _ending(self) -> Exception | None:
        """How the connection ended, as far as the monitor knows by now; None while it lasts."""
        while self._monitor.poll(0):
            (kind,) = _EVENT.unpack_from(self._monitor.recv_multipart()[0])
            if kind == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._greeted = True
            elif kind == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                return AuthenticationError(
                    f"rgpu server {self.address} does not accept the key of the token {self.token.path}: it was "
                    "revoked, it has expired, or another server made it; ask its administrator for a new one"
                )
            else:
                return ServerUnavailable(self._closed(), "closed") if self._greeted else self._unfit()
        return None

    def _unfit(self) -> Exception:
        """Why the handshake ended at once: what the other side wants, it says to whoever listens first."""
        mechanism = _mechanism(self.reached, self.port)
        if mechanism is None:  # it was we who did not wait longer
            return self._silent()
        if mechanism == b"CURVE" and self.token is None:
            return AuthenticationError(
                f"rgpu server {self.address} asks for a key, and there is no token for it: set RGPU_TOKEN to the file "
                "that 'rgpu token create' made, or put that file into ~/.config/rgpu/"
            )
        if mechanism == b"CURVE":
            return _OtherKey(
                f"rgpu server {self.address} has another key than the one in the token {self.token.path}: it was given "
                "new ones, or is not the server it should be; ask its administrator for a new token"
            )
        if mechanism == b"NULL" and self.token is not None:
            return AuthenticationError(
                f"rgpu server {self.address} runs without keys, so it cannot prove to be the server of the token "
                f"{self.token.path}: start it with its keys (rgpu-server --keys DIR), or unset RGPU_TOKEN"
            )
        return ServerUnavailable(self._closed(), "closed")

    def _closed(self) -> str:
        return (
            f"rgpu server {self.address} closed the connection: it stopped, or what listens there "
            "is not an rgpu-server; look at its log, or correct the address"
        )

    def _disconnect(self) -> None:
        if self._socket is not None:
            self._socket.disable_monitor()
            self._monitor.close(0)
            self._socket.close(0)
            self._socket = self._monitor = None


def _mechanism(host: str, port: int) -> bytes | None:
    """Whether a ZeroMQ server asks for keys (CURVE) or not (NULL); empty: it is none. None: it says nothing at all."""
    said = b""
    try:
        with socket.create_connection((host, port), 1.0) as probe:
            probe.settimeout(1.0)
            probe.sendall(b"\xff" + bytes(8) + b"\x7f\x03")  # the signature and version of ZMTP 3
            while len(said) < 32 and (data := probe.recv(64)):
                said += data
    except TimeoutError:
        if not said:
            return None
    except OSError:
        pass
    return said[12:32].rstrip(b"\0") if said[:1] == b"\xff" else b""


def _resolve(host: str, port: int, deadline: float) -> list[tuple]:
    """The addresses of a name. The resolver knows no time limit, so it may be left behind."""
    answer: list[Any] = []

    def ask() -> None:
        try:
            name = host.encode() if host.isascii() else host  # of text it would import the codec for IDNA
            answer.append(socket.getaddrinfo(name, port, type=socket.SOCK_STREAM))
        except OSError as error:
            answer.append(error)
        except UnicodeError:  # a label that no name may have
            answer.append(socket.gaierror(socket.EAI_NONAME, "not a valid name"))

    thread = threading.Thread(target=ask, name="rgpu-resolve", daemon=True)
    thread.start()
    thread.join(max(0.01, deadline - time.monotonic()))
    if not answer:
        raise socket.gaierror(socket.EAI_AGAIN, "the name service does not answer")
    if isinstance(answer[0], OSError):
        raise answer[0]
    return answer[0]


def _reach(addresses: list[tuple], deadline: float) -> tuple[str, int, float]:
    """The first address that takes a connection, and how long it took; the last one's error if none does."""
    failure: OSError = TimeoutError()
    for family, kind, protocol, _, address in addresses:
        with socket.socket(family, kind, protocol) as probe:
            probe.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                began = time.monotonic()
                probe.connect(address)
                return address[0], address[1], time.monotonic() - began
            except OSError as error:
                failure = error
    raise failure
