"""A small store in rank 0's process, where the members of a group leave and find what they must agree on.

Keys are text, values integers or bytes of at most 255; a barrier waits for everybody. One question a
connection, length and msgpack. For a trusted network, as CuPy's own: whoever reaches the port may ask.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import socket
import struct
import threading
import time
from collections.abc import Callable
from selectors import EVENT_READ, DefaultSelector
from typing import Any

from rgpu.errors import ProtocolError
from rgpu.wire import codec

_DEFAULT_HOST = "127.0.0.1"
_DEFAULT_PORT = 13333
_LENGTH = struct.Struct(">I")
_MOST = 4096  # bytes of one message
_VALUE = 255
_STEP = 0.2
_LOOK = 1.0  # seconds between looks whether waiting has a sense


class ExceptionAwareProcess(multiprocessing.Process):
    """A process whose ``join`` raises what ended it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._ours, self._theirs = multiprocessing.Pipe()

    def run(self) -> None:
        try:
            super().run()
            self._theirs.send(None)
        except Exception as error:
            self._theirs.send(error)

    def join(self, timeout: float | None = None) -> None:
        super().join(timeout)
        if self._ours.poll():
            error = self._ours.recv()
            if error is not None:
                raise error


def _send(connection: socket.socket, message: Any) -> None:
    body = codec.pack(message)
    connection.sendall(_LENGTH.pack(len(body)) + body)


def _receive(connection: socket.socket) -> Any:
    """One message, or None if the other side is gone."""
    data = b""
    size = _LENGTH.size
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            return None
        data += part
        if len(data) == _LENGTH.size == size:
            (length,) = _LENGTH.unpack(data)
            if length > _MOST:
                raise ProtocolError(f"a message of {length} bytes")
            size += length
    return codec.unpack(data[_LENGTH.size :])


class TCPStore:
    """The store of a group of ``world_size``; ``run`` serves it from a thread, ``stop`` ends that."""

    def __init__(self, world_size: int) -> None:
        self.storage: dict[str, Any] = {}
        self._world_size = world_size
        self._waiting: list[threading.Event] = []
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self._stopping.set()

    def run(self, host: str = _DEFAULT_HOST, port: int = _DEFAULT_PORT) -> None:
        listening = socket.create_server((host, port))
        listening.settimeout(_STEP)
        self._thread = threading.Thread(
            target=_serve, args=(listening, self._stopping, self._answer), name="rgpu-store", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(5)

    def _answer(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError, ProtocolError):
            connection.settimeout(None)
            message = _receive(connection)
            try:
                _send(connection, [0, self._do(*message)])
            except (TypeError, ValueError, KeyError) as error:
                _send(connection, [1, str(error)[:200]])

    def _do(self, action: str, key: Any = None, value: Any = None) -> Any:
        if action == "set":
            with self._lock:
                self.storage[_checked_key(key)] = _checked_value(value)
            return True
        if action == "get":
            return self.storage[_checked_key(key)]
        if action == "barrier":
            self._wait_for_all()
            return True
        raise ValueError(f"unknown action {action}")

    def _wait_for_all(self) -> None:
        mine = threading.Event()
        with self._lock:
            self._waiting.append(mine)
            if len(self._waiting) == self._world_size:
                for other in self._waiting:
                    other.set()
                self._waiting = []
        while not mine.wait(_STEP):
            if self._stopping.is_set():
                raise ValueError("the store has stopped")


def _serve(listening: socket.socket, stopping: threading.Event, answer: Any) -> None:
    """Holds the store only through ``answer``, for as long as it is wanted."""
    with listening:
        while not stopping.is_set():
            try:
                connection, _ = listening.accept()
            except TimeoutError:
                continue
            threading.Thread(target=answer, args=(connection,), name="rgpu-store-answer", daemon=True).start()


def _checked_key(key: Any) -> str:
    if not isinstance(key, str):
        raise ValueError("Invalid type for key, only str allowed")
    return key


def _checked_value(value: Any) -> Any:
    if type(value) not in (int, bytes) or (type(value) is bytes and len(value) > _VALUE):
        raise ValueError(f"invalid type for self.value {value!r:.60}: integers, and bytes of at most {_VALUE}")
    return value


class TCPStoreProxy:
    """The way to a store from any process. Waits for a store that is not there yet."""

    MAX_NUM_RETRIES = 50
    DELAY_FOR_RETRY = 0.5

    def __init__(self, host: str = _DEFAULT_HOST, port: int = _DEFAULT_PORT) -> None:
        self.host, self.port = host, port

    def __getitem__(self, key: str) -> Any:
        return self._ask("get", _checked_key(key))

    def __setitem__(self, key: str, value: Any) -> None:
        self._ask("set", _checked_key(key), _checked_value(value))

    def barrier(self, look: Callable[[], None] = lambda: None) -> None:
        """Return when every member of the group is here. ``look`` is called now and then meanwhile, and may raise."""
        self._ask("barrier", look=look)

    def _ask(self, *message: Any, look: Callable[[], None] = lambda: None) -> Any:
        deadline = time.monotonic() + self.MAX_NUM_RETRIES * self.DELAY_FOR_RETRY
        delay = 0.01
        while time.monotonic() < deadline:
            try:
                with socket.create_connection((self.host, self.port)) as connection, DefaultSelector() as selector:
                    selector.register(connection, EVENT_READ)
                    _send(connection, message)
                    while not selector.select(_LOOK):
                        look()
                    answer = _receive(connection)
            except ConnectionRefusedError:
                time.sleep(delay)
                delay = min(2 * delay, self.DELAY_FOR_RETRY)
                continue
            if answer is None:
                raise RuntimeError("the store of rank 0 ended while it was asked")
            if answer[0]:
                raise RuntimeError(answer[1])
            return answer[1]
        raise RuntimeError(f"TCPStore is not available: rank 0 does not listen at {self.host}:{self.port}")
