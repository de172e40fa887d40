"""A handshake that a server cuts, because it has no room for another connection, is not taken for another key's."""

import contextlib
import socket
import threading

import pytest

from rgpu.client.control import DaemonClient
from rgpu.config import Address
from rgpu.errors import AuthenticationError
from rgpu.link.control import CUT
from tests.integration.test_keys import Protected

GREETING = 64  # bytes of ZMTP's; what follows is the handshake


class Door:
    """Forwards connections to a server, and cuts so many of them when the client goes on after the greetings."""

    def __init__(self, target, cuts):
        self.target, self.cuts, self.cut = target, cuts, 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.threads = [threading.Thread(target=self._accept, daemon=True)]
        self.open = []
        self.threads[0].start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                far = socket.create_connection(self.target)
                self.open += [near, far]
                for source, sink, counted in ((near, far, True), (far, near, False)):
                    self.threads.append(threading.Thread(target=self._pump, args=(source, sink, counted), daemon=True))
                    self.threads[-1].start()

    def _pump(self, source, sink, counted):
        passed = 0
        with contextlib.suppress(OSError):
            while data := source.recv(4096):
                passed += len(data)
                if counted and passed > GREETING and self.cut < self.cuts:
                    self.cut += 1
                    break
                sink.sendall(data)
                if passed > GREETING:
                    counted = False
        for sock in (source, sink):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self):
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        for sock in (self.listener, *self.open):
            sock.close()
        for thread in self.threads:
            thread.join(5)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    protected = Protected(tmp_path_factory.mktemp("guarded"))
    yield protected
    protected.server.stop()


@pytest.mark.parametrize("cuts", range(len(CUT) + 2))
def test_a_cut_handshake_is_tried_again(guarded, cuts):
    _, token = guarded.token("alice")
    door = Door(("127.0.0.1", guarded.address.port), cuts)
    client = DaemonClient(Address("127.0.0.1", door.port), timeout=30, token=token)
    try:
        if cuts <= len(CUT):
            assert client.hello().name == "guarded"
        else:
            with pytest.raises(AuthenticationError, match="another key"):
                client.hello()
        assert door.cut == cuts
    finally:
        client.close()
        door.close()
