"""The guard of a worker's session: what the daemon says while the session waits for it is heard at once. No clock: a
guard that listened to the client meanwhile would never hear it here."""

import socket
import threading
from types import SimpleNamespace

import pytest

from rgpu.server.allowance import Allowance
from rgpu.server.worker import Guard, tell
from rgpu.wire import control
from rgpu.wire.codec import pack, unpack
from tests.support.waiting import wait_until


class Client:
    """The connection to a client that sends nothing: who listens to it returns only when woken."""

    down_since, executed, failure, link = None, 7, None, SimpleNamespace(kind="none")
    session = SimpleNamespace(idle=False)  # a command is being executed

    def __init__(self):
        self.bell, self.listened = threading.Event(), 0

    def pump(self, one):
        return False

    def listen(self, timeout):
        self.listened += 1
        self.bell.wait(600)
        self.bell.clear()

    def fail(self, error):
        self.failure = error


@pytest.fixture
def guarded():
    daemon, worker = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    client = Client()
    allowance = Allowance(lambda message: tell(worker, message), limit=100, turns=True, wake=client.bell.set)
    guard = Guard(worker, client, 60.0, allowance)
    answers = {
        control.Want.tag: lambda asked: control.Turn.encode(seconds=0.0),
        control.Draw.tag: lambda asked: control.Credit.encode(memory=asked.memory, resident=0, free=5),
    }

    def answer():
        while data := daemon.recv(1 << 16):
            message = unpack(data)
            if make := answers.get(message[0]):
                daemon.send(pack(make(control.Control.decode(message))))

    other = threading.Thread(target=answer, daemon=True)
    other.start()
    with guard:
        wait_until(lambda: client.listened)
        yield SimpleNamespace(allowance=allowance, client=client)
    daemon.shutdown(socket.SHUT_RDWR)
    wait_until(lambda: client.bell.set() or not guard.is_alive())
    other.join(10)
    daemon.close()
    worker.close()


@pytest.mark.timeout(60)
def test_a_turn_is_heard_at_once_also_by_a_guard_that_listens_to_the_client(guarded):
    guarded.allowance.begin(lambda: False)
    assert guarded.client.listened < 5


@pytest.mark.timeout(60)
def test_memory_is_heard_of_at_once(guarded):
    guarded.allowance.more(40)
    assert (guarded.allowance.memory, guarded.allowance.free) == (40, 5)
