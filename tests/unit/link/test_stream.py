"""Stream links against strangers and hostile bytes; choosing among several places."""

import contextlib
import os
import random
import socket
import struct
import time

import pytest

from rgpu.errors import ConfigError
from rgpu.link import connect, ends, framing, listen, shm, tcp
from rgpu.wire import limits

ME = b"\0client"
pytestmark = pytest.mark.timeout(30)


@pytest.fixture
def worker():
    listener = listen("tcp://127.0.0.1:0")
    link = listener.accept(ME)
    yield link
    link.abort()


def until(condition, seconds=10):
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.002)
    return value


def dial(worker):
    return socket.create_connection(("127.0.0.1", int(worker.uri.rpartition(":")[2])), timeout=5)


def greeting(identity=ME):
    return ends.GREETING + bytes([len(identity)]) + identity


def hung_up(sock, worker):
    """Whether the worker's end closed the connection unheard."""

    def look():
        worker.events(), worker.recv()
        try:
            return not sock.recv(16)
        except (TimeoutError, BlockingIOError):
            return False
        except ConnectionError:
            return True

    sock.setblocking(False)
    return until(look)


@pytest.mark.parametrize(
    "said",
    [b"GET / HTTP/1.1\r\n", b"\xff" * 100, ends.GREETING + b"\xff" + bytes(255), greeting(b"another"), greeting(b"")],
    ids=["http", "noise", "long", "another", "nobody"],
)
def test_strangers_are_not_heard(worker, said):
    with dial(worker) as stranger:
        stranger.sendall(said)
        assert hung_up(stranger, worker) and worker.refused == 1
    mine = connect(worker.uri, ME)
    until(lambda: "up" in worker.events() or mine.events() and False)
    mine.abort()


def test_who_says_nothing_is_sent_away_and_the_client_gets_in_meanwhile(worker, monkeypatch):
    monkeypatch.setattr(ends, "GREET_SECONDS", 0.2)
    with dial(worker) as silent, dial(worker) as slow:
        slow.sendall(greeting()[:4])
        until(lambda: worker.recv() is None and len(worker._strangers) == 2)
        mine = connect(worker.uri, ME)
        until(lambda: "up" in worker.events() or mine.events() and False)
        assert hung_up(silent, worker) and hung_up(slow, worker)
        mine.abort()


@pytest.mark.parametrize(
    "sent",
    [
        struct.pack("<I", framing.FRAMES + 1),
        struct.pack("<II", 1, 0xFFFFFFFF),
        struct.pack("<4I", 3, *[limits.FRAME_BYTES] * 3),
        b"\xff" * 64,
    ],
    ids=["frames", "size", "sum", "noise"],
)
def test_what_is_no_message_ends_the_connection_and_no_more(worker, sent):
    with dial(worker) as client:
        client.sendall(greeting() + sent)
        until(lambda: "up" in worker.events())
        assert client.recv(1) == ends.WELCOME
        assert hung_up(client, worker)
    mine = connect(worker.uri, ME)
    until(lambda: mine.events() or worker.events() and False)
    assert mine.send([b"still here"])
    assert until(worker.recv) == [b"still here"]
    mine.abort()


def test_a_message_in_pieces_of_one_byte(worker):
    whole = struct.pack("<4I", 3, 4, 0, 20_000) + b"head" + bytes(20_000)
    with dial(worker) as client:
        client.sendall(greeting() + whole[:50])
        for byte in whole[50:70]:
            client.sendall(bytes([byte]))
            assert worker.recv() is None
        client.sendall(whole[70:] + whole)
        for _ in range(2):
            assert [len(f) for f in until(worker.recv)] == [4, 0, 20_000]


@pytest.mark.parametrize("kind", [framing.Reader, framing.PureReader], ids=["core", "pure"])
def test_messages_of_any_sizes_in_pieces_of_any_sizes_come_as_they_were_sent(kind):
    rng, sizes = random.Random(7), (0, 3, 5_000, 60_000, framing.PLACED - 1, framing.PLACED, 300_000)
    messages = [[rng.randbytes(rng.choice(sizes)) for _ in range(rng.randint(0, 5))] for _ in range(30)]
    stream = b"".join(struct.pack(f"<{len(m) + 1}I", len(m), *map(len, m)) + b"".join(m) for m in messages)
    here, there = socket.socketpair()
    with here, there:
        here.setblocking(False)
        reader = kind(tcp.SocketPipe(here))
        at, seen = 0, []
        while at < len(stream):
            at += there.send(stream[at : at + rng.choice((1, 7, 1_000, 40_000, 65_536, 100_000))])
            while (frames := reader.read(None)) is not None:
                seen.append([bytes(frame) for frame in frames])
        assert seen == [m for m in messages if m] and reader.signs == messages.count([])


def test_signs_of_life_are_answered_and_are_no_messages(worker):
    with dial(worker) as client:
        client.sendall(greeting() + bytes(4))
        client.setblocking(False)
        said = []

        def answered():
            assert worker.recv() is None
            with contextlib.suppress(BlockingIOError):
                said.append(client.recv(16))
            return b"".join(said) == ends.WELCOME + bytes(4)

        until(answered)


def test_who_hangs_up_and_who_falls_silent(worker):
    worker.life = 0.2
    for leave in (socket.socket.close, lambda client: None):
        with dial(worker) as client:
            client.sendall(greeting())
            until(lambda: "up" in worker.events())
            assert not worker.silent
            leave(client)
            until(lambda: "down" in worker.events())
            assert worker.silent == (leave is not socket.socket.close)


def test_the_best_place_that_works_is_taken():
    listener = listen("tcp://127.0.0.1:0")
    gone = f"shm://{shm.this_host()}/rgpu-nobody"
    elsewhere = f"shm://{os.urandom(4).hex()}/rgpu-nobody"
    worker = listener.accept(ME)
    client = connect([listener.uri, gone, elsewhere], ME)
    until(lambda: "up" in client.events() or worker.events() and False)
    assert client.kind == "tcp" and client.uri == worker.uri
    client.abort()
    worker.abort()


@pytest.mark.skipif(bool(shm.missing()), reason=shm.missing())
def test_one_worker_listens_at_several_places_and_the_client_comes_back_by_another():
    listener = listen("tcp://127.0.0.1:0").join(listen("shm://"))
    assert [uri.partition(":")[0] for uri in listener.uris] == ["tcp", "shm"]
    worker = listener.accept(ME)
    for only, kind in (("auto", "shm"), ("tcp", "tcp"), ("shm", "shm")):
        client = connect(listener.uris, ME, only)
        until(lambda client=client: "up" in client.events() or worker.events() and False)
        assert client.kind == worker.kind == kind
        assert client.send([b"x"]) and until(worker.recv) == [b"x"]
        client.abort()
    worker.abort()


def test_a_kind_that_is_not_offered_is_an_error_that_says_so():
    with pytest.raises(ConfigError, match="RGPU_LINK=ucx is not possible: the server offers tcp"):
        connect(["tcp://127.0.0.1:1"], ME, "ucx")


def test_a_link_of_somebody_else(monkeypatch):
    class Entry:
        def load(self):
            return tcp

    monkeypatch.setattr("importlib.metadata.entry_points", lambda group, name: [Entry()] if name == "pigeon" else [])
    listener = listen("pigeon://127.0.0.1:0")
    worker, client = listener.accept(ME), connect(listener.uri, ME)
    until(lambda: "up" in client.events() or worker.events() and False)
    client.abort()
    worker.abort()


@pytest.mark.parametrize("uri", ["tcp://127.0.0.1:0", "shm://"])
def test_silent_connections_keep_nobody_out(uri, monkeypatch):
    """Of a network's strangers or, on the sockets that shared memory is handed over by, of other users of the host."""
    if uri == "shm://" and (why := shm.missing()):
        pytest.skip(why)
    monkeypatch.setattr(ends, "GREET_SECONDS", 1e6)  # none of them is closed for being slow
    listener = listen(uri)
    address = (tcp if uri.startswith("tcp") else shm).place(listener.uri).address
    worker = listener.accept(ME)
    crowd = []
    try:
        for number in range(3 * ends.STRANGERS):
            crowd.append(socket.socket(socket.AF_UNIX if isinstance(address, str | bytes) else socket.AF_INET))
            crowd[-1].connect(address)
            crowd[-1].sendall(ends.GREETING[: number % 3])
            worker.events()
            worker.wait(0)
        client = connect(listener.uri, ME)
        seen = set()
        until(lambda: seen.update(client.events(), (e + "!" for e in worker.events())) or {"up", "up!"} <= seen)
        assert len(worker._strangers) <= ends.STRANGERS
        client.abort()
    finally:
        for sock in crowd:
            sock.close()
        worker.abort()
