"""Sealed links against those who sit on the line: what is changed opens nowhere, and who has no secret gets nothing."""

import contextlib
import os
import random
import socket
import struct
import time

import pytest

from rgpu._native import transports
from rgpu.link import connect, ends, listen, records, seal, shm, tcp

ME = b"\0client"
SECRET = bytes(range(seal.SECRET))
KEYS = b"a" * 44, b"b" * 44
pytestmark = [
    pytest.mark.timeout(30),
    pytest.mark.skipif(bool(seal.missing()), reason=seal.missing() or "sealing works here"),
]
WAYS = ["twin", *(["core"] if transports() is not None else [])]


def until(condition, seconds=10):
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.002)
    return value


def pipe_over(sock, way, out_key, in_key, most=seal.RECORDS):
    sock.setblocking(False)
    pipe = tcp.SocketPipe(sock)
    if way == "core":
        return records.RecordSocket(pipe, transports().seal(sock.fileno(), out_key, in_key, most))
    return seal.sealed_pipe(pipe, out_key, in_key, most)


@pytest.fixture(params=[(a, b) for a in WAYS for b in WAYS], ids=lambda ways: "-".join(ways))
def line(request):
    """A sealing end and the bare socket it writes into; a bare socket and the opening end behind it."""
    (a, b), (c, d) = socket.socketpair(), socket.socketpair()
    with a, b, c, d:
        b.setblocking(True)
        b.settimeout(5)
        yield pipe_over(a, request.param[0], *KEYS), b, c, pipe_over(d, request.param[1], *KEYS[::-1])


def records_of(sealing, wire, texts):
    """One record for each text."""
    found = []
    for text in texts:
        assert sealing.write_one(text) == len(text)
        found.append(wire.recv(len(text) + 20, socket.MSG_WAITALL))
    return found


def opened(pipe, size):
    place = bytearray(size)
    filled = 0

    def more():
        nonlocal filled
        filled += pipe.read_into(memoryview(place)[filled:])
        return filled == size

    until(more)
    return bytes(place)


def test_what_is_sealed_opens_and_is_not_to_be_read_on_the_way(line):
    sealing, wire, back, opening = line
    texts = [b"hello", b"x", os.urandom(70_000)]
    assert sealing.write([b"hello", b"x"]) == 6
    assert sealing.write_one(texts[2]) == 70_000
    whole = wire.recv(6 + 20 + 70_000 + 40, socket.MSG_WAITALL)
    assert b"hello" not in whole and texts[2][:16] not in whole
    back.sendall(whole)
    assert opened(opening, 70_006) == b"".join(texts)
    assert opening.read_into(memoryview(bytearray(10))) == 0


def test_any_cut_of_the_stream_and_any_size_of_place(line):
    sealing, wire, back, opening = line
    wire.setblocking(False)
    chance = random.Random(4)
    sent, got = bytearray(), bytearray()
    place = bytearray(300_000)
    for _ in range(40):
        data = os.urandom(chance.choice([1, 19, 4000, 65_536, 65_537, 200_000]))
        left = memoryview(data)
        while len(left):
            left = left[sealing.write_one(left) :]
            with contextlib.suppress(BlockingIOError):
                while piece := wire.recv(chance.randrange(1, 100_000)):
                    until(lambda: _moved(back, opening, piece, place, got, chance))  # noqa: B023
        sent += data
    until(lambda: _read(opening, place, got, chance) or len(got) == len(sent))
    assert got == sent


def _moved(back, opening, piece, place, got, chance):
    back.sendall(piece)
    _read(opening, place, got, chance)
    return True


def _read(opening, place, got, chance):
    while n := opening.read_into(memoryview(place)[: chance.choice([1, 100, 65_536, 300_000])]):
        got += place[:n]


def _flip(bit):
    def change(records):
        spoiled = bytearray(records[1])
        spoiled[(bit // 8) % len(spoiled)] ^= 1 << bit % 8
        return [records[0], bytes(spoiled), records[2]]

    return change


CHANGES = {
    "head": _flip(0),
    "large": _flip(29),
    "text": _flip(8 * 5 + 3),
    "tag": _flip(8 * -1 + 7),
    "again": lambda r: [r[0], r[0], r[1]],
    "order": lambda r: [r[0], r[2], r[1]],
    "left out": lambda r: [r[0], r[2]],
    "cut": lambda r: [r[0], r[1][:4] + r[1][5:], r[2]],
    "empty": lambda r: [r[0], struct.pack("<I", 0) + bytes(16), r[1]],
    "nonsense": lambda r: [r[0], b"\xff" * 100],
    "from the other end": None,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_was_changed_on_the_way_ends_the_connection_and_reaches_nobody(line, change):
    sealing, wire, back, opening = line
    texts = [b"first", b"second record", b"third"]
    records = records_of(sealing, wire, texts)
    if change is None:  # what it sealed itself comes back
        opening.write_one(b"first")
        back.settimeout(5)
        changed, expected = [back.recv(25, socket.MSG_WAITALL)], b""
    else:
        changed, expected = change(records), b"first"
    back.sendall(b"".join(changed))
    back.shutdown(socket.SHUT_WR)
    got, place = bytearray(), bytearray(100)

    def over():
        try:
            got.extend(place[: opening.read_into(memoryview(place))])
        except ConnectionError:
            return True
        return False

    until(over)
    assert got == expected
    for _ in range(2):  # and it stays so
        with pytest.raises(ConnectionError):
            opening.read_into(memoryview(place))


@pytest.mark.parametrize("way", WAYS)
def test_a_key_is_used_for_so_many_records_and_no_more(way):
    a, b = socket.socketpair()
    with a, b:
        sealing = pipe_over(a, way, *KEYS, most=3)
        for _ in range(3):
            assert sealing.write_one(b"x") == 1
        with pytest.raises(ConnectionError):
            sealing.write_one(b"x")


def test_every_connection_has_other_keys_and_no_nonce_comes_again():
    first, second = (seal.Meeting(seal.Seal(SECRET), "tcp", b"hello" + bytes([i]), bytes(32)) for i in range(2))
    texts = {m._expanded(b"key of the " + side, 44) for m in (first, second) for side in (seal.CLIENT, seal.WORKER)}
    texts |= {m.proof(side) for m in (first, second) for side in (seal.CLIENT, seal.WORKER)}
    assert len(texts) == 8
    others = [
        seal.Meeting(seal.Seal(SECRET, clear=True), "tcp", b"hello\0", bytes(32)),
        seal.Meeting(seal.Seal(SECRET), "shm", b"hello\0", bytes(32)),
        seal.Meeting(seal.Seal(SECRET), "tcp", b"hello\0", b"\1" * 32),
        seal.Meeting(seal.Seal(SECRET[::-1]), "tcp", b"hello\0", bytes(32)),
    ]
    assert not any(other.proves(seal.WORKER, first.proof(seal.WORKER)) for other in others)
    assert not first.proves(seal.CLIENT, first.proof(seal.WORKER))
    cipher = seal._Cipher(KEYS[0], 10, True)
    assert cipher.wrap(memoryview(b"same")) != cipher.wrap(memoryview(b"same"))


# ---- the door --------------------------------------------------------------------------------------


@pytest.fixture(params=["tcp://127.0.0.1:0", "shm://"])
def worker(request):
    if request.param == "shm://" and shm.missing():
        pytest.skip(shm.missing())
    link = listen(request.param, seal=seal.Seal(SECRET)).accept(ME)
    yield link
    link.abort()


def dial(worker):
    place = (shm.place if worker.uri.startswith("shm") else tcp.place)(worker.uri)
    sock = place.new()
    sock.settimeout(5)
    sock.connect(place.address)
    return sock


def hello(identity=ME, greeting=ends.KEYED, nonce=bytes(seal.NONCE)):
    return greeting + bytes([len(identity)]) + identity + nonce


def hung_up(sock, worker):
    def look():
        worker.events(), worker.recv()
        try:
            return not sock.recv(100)
        except BlockingIOError:
            return False
        except ConnectionError:
            return True

    sock.setblocking(False)
    return until(look)


@pytest.mark.parametrize(
    "said",
    [hello(b"another"), hello(greeting=ends.GREETING, nonce=b""), b"\xff" * 100, b"GET / HTTP/1.1\r\n\r\n"],
    ids=["another", "open", "noise", "http"],
)
def test_who_does_not_know_the_session_gets_no_answer(worker, said):
    with dial(worker) as stranger:
        stranger.sendall(said)
        stranger.setblocking(False)
        heard = []

        def over():
            worker.events()
            try:
                heard.append(stranger.recv(100))
            except BlockingIOError:
                pass
            except ConnectionError:
                heard.append(b"")
            return heard

        assert until(over) == [b""] and worker.refused == 1


@pytest.mark.parametrize("proof", [bytes(seal.PROOF), "worker's own", "old"])
def test_who_has_not_the_secret_is_not_let_in_and_disturbs_nobody(worker, proof):
    mine = connect(worker.uri, ME, seal=seal.Seal(SECRET))
    until(lambda: "up" in mine.events() or worker.events() and False)
    with dial(worker) as stranger:
        stranger.sendall(hello())
        answer = bytearray()
        stranger.setblocking(False)

        def answered():
            worker.events()
            with contextlib.suppress(BlockingIOError):
                answer.extend(stranger.recv(64))
            return len(answer) == seal.NONCE + seal.PROOF

        until(answered)
        if proof == "worker's own":
            proof = bytes(answer[seal.NONCE :])
        elif proof == "old":
            proof = seal.Meeting(seal.Seal(SECRET), worker.kind, hello(), bytes(seal.NONCE)).proof(seal.CLIENT)
        stranger.sendall(proof + b"\1\0\0\0\1\0\0\0x")
        assert hung_up(stranger, worker)
    assert mine.send([b"still here"]) and until(worker.recv) == [b"still here"]
    mine.abort()


def test_the_client_believes_nobody_without_the_secret():
    """Neither one who only says welcome, nor one with another secret, nor one who would rather have it clear."""
    for there in (None, seal.Seal(SECRET[::-1]), seal.Seal(SECRET, clear=True)):
        listener = listen("tcp://127.0.0.1:0", seal=there)
        worker = listener.accept(ME)
        client = connect(listener.uri, ME, seal=seal.Seal(SECRET))
        end = time.monotonic() + 0.3
        while time.monotonic() < end:
            assert not worker.events() and not client.events()
            assert not client.send([b"x"])
            time.sleep(0.01)
        client.abort()
        worker.abort()


def test_a_session_survives_a_line_that_changes_bits():
    from rgpu.session import Connection, Session
    from tests.support.faultproxy import FaultProxy

    listener = listen("tcp://127.0.0.1:0", seal=seal.Seal(SECRET))
    host, _, port = listener.uri.removeprefix("tcp://").rpartition(":")
    with FaultProxy((host, int(port)), corrupt=0.1, seed=7) as proxy:
        name = bytes(16)
        mine = Connection(Session(name, 1), connect(proxy.uri, name, seal=seal.Seal(SECRET)))
        theirs = Connection(Session(name, 1), listener.accept(name))
        try:
            got, sent = [], 0

            def moved():
                nonlocal sent
                for connection in (mine, theirs):
                    connection.pump()
                if sent < 200 and mine.can_send(1 << 20):
                    mine.post([b"%d" % sent, bytes([sent]) * (5000 if sent % 7 else 300_000)])
                    sent += 1
                while (frames := theirs.take()) is not None:
                    got.append([bytes(frame) for frame in frames])
                    theirs.mark_done()
                return len(got) == 200

            until(moved, 25)
            assert proxy.corrupted > 3 and mine.stats["reconnects"] > 0
            for number, (head, data) in enumerate(got):
                assert head == b"%d" % number and data == bytes([number]) * (5000 if number % 7 else 300_000)
        finally:
            mine.abort()
            theirs.abort()
