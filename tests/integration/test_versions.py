"""T30: versions beside each other. Ours work together, any other is refused by a sentence that names both.

``python -m tests.integration.test_versions`` records a session of this version; the recording is replayed as long as
the protocol is the same, and has to be refused by name from then on.
"""

import threading
import time
from pathlib import Path

import numpy as np
import pytest
import zmq

from rgpu.client.control import DaemonClient
from rgpu.config import Address
from rgpu.errors import ProtocolError, VersionMismatch
from rgpu.link.control import ControlClient
from rgpu.wire import control, ops, values
from rgpu.wire.codec import pack, unpack
from rgpu.wire.functions import BY_NAME
from rgpu.wire.version import PROTOCOL_VERSION, VERSION, fingerprint
from tests.support.daemons import Daemon, Talk

RECORDINGS = Path(__file__).parent / "recordings"
OTHERS = [("0.0.9", "0" * 16), (VERSION, "f" * 16), ("2.0.0", fingerprint()), ("99.1.0b3", "abc"), ("one", "?" * 64)]


@pytest.fixture(scope="module")
def server():
    with Daemon() as running:
        yield running


@pytest.fixture
def ask(server):
    """A raw question to the daemon; afterwards a client of ours gets a right answer."""
    client = ControlClient(server.address.host, server.address.port)
    yield lambda *message: control.Control.decode(unpack(client.request(pack(message))))
    client.close()
    assert server.client.hello().version == VERSION


def refused(answer, *named):
    assert answer.reason == "version"
    for text in (*named, VERSION, fingerprint(), "install the same version"):
        assert text in answer.message
    return True


@pytest.mark.parametrize(("version", "mark"), OTHERS)
@pytest.mark.parametrize("more", [(), (None,), ("what a later version says", {"as": 1}, [2])], ids=["", "one", "three"])
def test_another_client_is_refused_by_name_whatever_else_it_says(ask, version, mark, more):
    assert refused(ask(control.Hello.tag, version, mark, "2.3", *more), version, mark)
    assert refused(ask(control.Attach.tag, version, mark, *more), version, mark)
    assert refused(ask(control.Request.tag, version, mark, *more), version, mark)


@pytest.mark.parametrize(
    "fields",
    [
        (),
        (1, 2, 3),
        ("x",),
        (None, None, None),
        ("v" * 300, "f", "n"),
        ("1\n2", "f"),
        (VERSION, fingerprint()),
    ],
)
def test_what_is_no_version_is_no_message(ask, fields):
    answer = ask(control.Hello.tag, *fields)
    assert answer.reason == "protocol" and "Hello" in answer.message


class Other:
    """What looks like a server of another version: it answers everything alike."""

    def __init__(self, answer):
        self.socket = zmq.Context.instance().socket(zmq.ROUTER)
        self.socket.linger = 0
        self.port = self.socket.bind_to_random_port("tcp://127.0.0.1")
        self.answer, self.over = answer, threading.Event()
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def _serve(self):
        while not self.over.is_set():
            if self.socket.poll(50):
                who, number, _ = self.socket.recv_multipart()
                self.socket.send_multipart([who, number, pack(self.answer)])
        self.socket.close()

    def hello(self):
        client = DaemonClient(Address("127.0.0.1", self.port), timeout=20)
        try:
            return client.hello()
        finally:
            client.close()
            self.over.set()
            self.thread.join()


def test_another_server_is_refused_by_name():
    with pytest.raises(VersionMismatch, match=f"is rgpu 2.0.0 .protocol aa.*this client is rgpu {VERSION}"):
        Other((control.Welcome.tag, "box", "2.0.0", "aa", [], "and more")).hello()
    with pytest.raises(VersionMismatch, match="is rgpu 2.0.0"):
        Other((control.Welcome.tag, "box", "2.0.0", "aa")).hello()
    with pytest.raises(ProtocolError, match="Welcome"):
        Other((control.Welcome.tag, "box", 7, "aa", [])).hello()


def test_a_field_that_nobody_knows_is_passed_over():
    """What a server tells of its devices are maps: a later one may say more of them."""
    device = {"index": 0, "kind": "cpu", "memory_total": 5, "what a later version tells": [1, {"x": None}]}
    info = Other((control.Welcome.tag, "box", VERSION, fingerprint(), [device])).hello()
    assert info.devices[0]["memory_total"] == 5


# Recordings


def session():
    """The batches of a small session: uploads, views, arithmetic, a function with arguments, an error, reads."""
    data = np.arange(12.0)
    add, total = BY_NAME["add"].id, BY_NAME["sum"].id
    one = [values.HANDLE, 1]
    return [
        [ops.Put.encode(1, "<f8", [12], data.tobytes()), ops.View.encode(2, 1, "<f8", [3], [32], 8)],
        [ops.Binary.encode(add, 3, 1, 1), ops.Inplace.encode(add, 2, 2)],
        [ops.Call.encode(total, [4], [[values.HANDLE, 3]], {}), ops.Read.encode(7, 4, 0, "<f8", [])],
        [ops.Read.encode(8, 2, 0, "<f8", [3]), ops.Read.encode(9, 3, 0, "<f8", [12])],
        [ops.Binary.encode(add, 5, 1, 2), ops.Sync.encode(10)],
        [ops.Ask.encode(11, total, 100, [one], {}), ops.Free.encode([1, 2, 3])],
    ]


def told(lease, batches):
    """What the worker answers to them."""
    talk, found, end = Talk(lease), [], time.monotonic() + 60
    try:
        for batch in batches:
            talk.post(*batch)
        talk.post(ops.Sync.encode(99))
        while True:
            if (frames := talk.connection.take()) is None:
                assert time.monotonic() < end, found
                talk.connection.pump()
                talk.connection.wait(0.05)
                continue
            reply = unpack(bytes(frames[0]))
            if reply[0] == ops.Failed.tag:
                reply[-1] = ""  # its traceback has paths
            if reply[:2] == [ops.Done.tag, 99]:
                return found
            found.append([reply, *map(bytes, frames[1:])])
    finally:
        talk.bye()


def record(folder=RECORDINGS):
    with Daemon() as daemon:
        replies = told(daemon.client.attach(0), session())
    recorded = {"version": VERSION, "protocol": PROTOCOL_VERSION, "fingerprint": fingerprint()}
    recorded |= {
        "hello": list(control.Hello.encode(VERSION, fingerprint(), "2.3")),
        "batches": session(),
        "replies": replies,
    }
    path = folder / f"{VERSION}-{fingerprint()}.msgpack"
    path.write_bytes(pack(recorded))
    return path


@pytest.mark.parametrize("path", sorted(RECORDINGS.glob("*.msgpack")), ids=lambda path: path.stem)
def test_a_recorded_session_gives_the_same_answers_or_is_refused_by_name(server, ask, path):
    recorded = unpack(path.read_bytes())
    answer = ask(*recorded["hello"])
    if (recorded["version"], recorded["fingerprint"]) != (VERSION, fingerprint()):
        assert refused(answer, recorded["version"], recorded["fingerprint"])
        return
    assert answer.version == VERSION
    assert told(server.client.attach(0), recorded["batches"]) == recorded["replies"]


def test_a_recording_can_be_made_and_replayed(server, tmp_path):
    """Also when the protocol has changed since the last one that was kept."""
    recorded = unpack(record(tmp_path).read_bytes())
    assert len(recorded["replies"]) >= 5
    assert told(server.client.attach(0), recorded["batches"]) == recorded["replies"]
    total = next(r for r in recorded["replies"] if r[0][:2] == [ops.Data.tag, 7])
    assert np.frombuffer(total[1]) == [2 * sum(range(12))]


if __name__ == "__main__":
    print(record())
