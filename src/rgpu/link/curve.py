"""Keys on ZeroMQ sockets: CURVE's options, and the gate that decides who may connect.

A server's socket belongs to a domain; ``Gate`` answers libzmq's question (ZAP, RFC 27) whether a public key may
enter that domain, before one byte of the application is read. Which keys may is decided elsewhere. A message's
``user_of`` is the key that its connection has proven, never something that the peer wrote.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

import zmq
from zmq.utils import z85

from rgpu.record import Record
from rgpu.tokens import Token

ZAP = "inproc://zeromq.zap.01"
USER = "User-Id"


class KeyPair(Record):
    """A CURVE key pair as text; the secret half is never shown."""

    public: str
    secret: str

    def __repr__(self) -> str:
        return f"KeyPair(public={self.public!r})"


class ServerKeys(Record):
    """What a listening socket is protected by: its own keys, and a judge of everybody else's."""

    pair: KeyPair
    allows: Callable[[str], bool]


def new_pair() -> KeyPair:
    public, secret = zmq.curve_keypair()
    return KeyPair(public.decode(), secret.decode())


def public_of(secret: str) -> str:
    """The public half; ValueError for what is no key."""
    return zmq.curve_public(secret.encode()).decode()


def meeting(secret: bytes) -> tuple[ServerKeys, Token]:
    """The keys of two ends that share a secret: what the one that listens lets in, what the other shows."""
    listener, dialer = (_derived(secret, role) for role in (b"listener", b"dialer"))
    token = Token("peer", listener.public, dialer.public, dialer.secret)
    return ServerKeys(listener, lambda key: key == dialer.public), token


def _derived(secret: bytes, role: bytes) -> KeyPair:
    import hashlib  # slow to import, and needed by workers only

    text = z85.encode(hashlib.sha256(b"rgpu peer " + role + b"\0" + secret).digest()).decode()
    return KeyPair(public_of(text), text)


def as_client(sock: zmq.Socket, token: Token | None) -> None:
    """Show this token's key, and talk to nobody but the server that has the other one."""
    if token is not None:
        sock.setsockopt(zmq.CURVE_SERVERKEY, token.server_key.encode())
        sock.setsockopt(zmq.CURVE_PUBLICKEY, token.public_key.encode())
        sock.setsockopt(zmq.CURVE_SECRETKEY, token.secret_key.encode())


def as_server(sock: zmq.Socket, keys: ServerKeys | None) -> None:
    """Before ``bind``: from now on nobody enters whom ``keys`` does not allow."""
    if keys is not None:
        domain = gate.open(sock.context, keys.allows)
        sock.setsockopt(zmq.ZAP_DOMAIN, domain.encode())
        sock.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # without the gate's answer nobody enters
        sock.setsockopt(zmq.CURVE_SERVER, 1)
        sock.setsockopt(zmq.CURVE_SECRETKEY, keys.pair.secret.encode())


def as_open(sock: zmq.Socket) -> None:
    """Before ``bind``: everybody enters, but in ZeroMQ's present protocol. Of older ones libzmq waits for the rest of a
    handshake for ever, unless somebody is to be asked who may enter."""
    sock.setsockopt(zmq.ZAP_DOMAIN, gate.open(sock.context, None).encode())
    sock.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)


def user_of(frame: zmq.Frame) -> str:
    """The key behind a received frame; empty where the socket asks for none."""
    try:
        return str(frame.get(USER))
    except zmq.ZMQError:
        return ""


class Gate:
    """One thread and one socket a context, as ZAP wants it; a domain for each listening socket."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._judges: dict[str, Callable[[str], bool] | None] = {}
        self._context: zmq.Context | None = None
        self._count = 0

    def open(self, context: zmq.Context, allows: Callable[[str], bool] | None) -> str:
        """A new domain, guarded by ``allows(public key)``; None: open to those who have no key."""
        with self._lock:
            if self._context is not context:
                sock = context.socket(zmq.REP)
                sock.setsockopt(zmq.LINGER, 0)
                sock.bind(ZAP)
                self._context, self._judges = context, {}
                threading.Thread(target=self._run, args=(sock,), name="rgpu-gate", daemon=True).start()
            self._count += 1
            domain = f"rgpu{self._count}"
            self._judges[domain] = allows
            return domain

    def _run(self, sock: zmq.Socket) -> None:
        with contextlib.suppress(zmq.ContextTerminated, zmq.ZMQError), contextlib.closing(sock):
            while True:
                sock.send_multipart(self._judge(sock.recv_multipart()))

    def _judge(self, request: list[bytes]) -> list[bytes]:
        version, number, user, enters = b"1.0", request[1] if len(request) > 1 else b"", b"", False
        if len(request) >= 6 and request[0] == version:
            domain, mechanism = request[2].decode("ascii", "replace"), request[5]
            allows = self._judges.get(domain)
            if mechanism == b"CURVE" and len(request) == 7 and len(request[6]) == 32:
                key = z85.encode(request[6])
                if allows is not None and allows(key.decode()):
                    user, enters = key, True
            elif mechanism == b"NULL":
                enters = domain in self._judges and allows is None
        status = [b"200", b"OK", user] if enters else [b"400", b"this key may not enter", b""]
        return [version, number, *status, b""]


gate = Gate()
