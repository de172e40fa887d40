"""Checksums of links without keys (T15): no flipped bit is used, whichever it is, and both ends agree."""

import contextlib
import os
import random
import socket
import struct

import pytest

from rgpu._native import transports
from rgpu.link import checked, connect, ends, listen, records, seal, shm, tcp
from tests.support.waiting import wait_until

ME = b"\0client"
WAYS = ["twin", *(["core"] if transports() is not None else [])]
BOTH = [(a, b) for a in WAYS for b in WAYS]
AROUND = 12  # bytes of a record that are not data
pytestmark = pytest.mark.timeout(60)


def pipe_over(sock, way):
    sock.setblocking(False)
    pipe = tcp.SocketPipe(sock)
    if way == "core":
        return records.RecordSocket(pipe, transports().check(sock.fileno()))
    return checked.checked_pipe(pipe)


def wire_form(way, texts):
    """The bytes of a record for each text."""
    a, b = socket.socketpair()
    with a, b:
        writing = pipe_over(a, way)
        for text in texts:
            assert writing.write_one(text) == len(text)
        return [b.recv(len(text) + AROUND, socket.MSG_WAITALL) for text in texts]


def taken(way, data):
    """What a reader makes of bytes, and whether it refused what came then."""
    a, b = socket.socketpair()
    with a, b:
        reading, got = pipe_over(b, way), bytearray()
        a.sendall(data)
        a.shutdown(socket.SHUT_WR)
        place = memoryview(bytearray(1 << 17))
        try:
            while n := reading.read_into(place):
                got += place[:n]
        except ConnectionError:
            return bytes(got), True
        return bytes(got), False


@pytest.mark.parametrize(("one", "other"), BOTH)
def test_what_is_written_is_read_in_parts_of_any_size(one, other):
    chance = random.Random(3)
    (a, b), (c, d) = socket.socketpair(), socket.socketpair()
    with a, b, c, d:
        b.setblocking(False)
        writing, reading = pipe_over(a, one), pipe_over(d, other)
        sent, got, place = bytearray(), bytearray(), memoryview(bytearray(300_000))

        def read():
            while n := reading.read_into(place[: chance.choice([1, 100, 65_536, 300_000])]):
                got.extend(place[:n])
            return True

        for size in (1, 11, 4000, 65_536, 65_537, 200_000, 300_000):
            left = memoryview(data := os.urandom(size))
            while len(left):
                left = left[writing.write((left[:7], left[7:])) :]
                with contextlib.suppress(BlockingIOError):
                    while piece := b.recv(chance.randrange(1, 100_000)):
                        c.sendall(piece)
                        read()
            sent += data
        wait_until(lambda: read() and len(got) == len(sent))
        assert got == sent


@pytest.mark.parametrize("way", WAYS)
def test_every_bit_of_a_record_counts(way):
    texts = [b"first", bytes(range(40)), b"third"]
    first, second, third = wire_form(way, texts)
    assert taken(way, first + second + third) == (b"".join(texts), True)  # and then the end
    for bit in range(8 * len(second)):
        spoiled = bytearray(second)
        spoiled[bit // 8] ^= 1 << bit % 8
        assert taken(way, first + bytes(spoiled) + third) == (b"first", True), bit


@pytest.mark.parametrize(("one", "other"), BOTH)
def test_ten_thousand_damaged_chunks_and_none_is_used(one, other):
    chance = random.Random(15)
    data = chance.randbytes(20_000)
    (whole,) = wire_form(one, [data])
    for _ in range(10_000 if other == "core" else 50):
        spoiled = bytearray(whole)
        for _ in range(chance.choice([1, 1, 2, 3, 40])):
            at = chance.randrange(8 * len(spoiled))
            spoiled[at // 8] ^= 1 << at % 8
        if bytes(spoiled) != whole:
            assert taken(other, bytes(spoiled)) == (b"", True)


CHANGES = {
    "again": lambda r: [r[0], r[0], r[1]],
    "order": lambda r: [r[0], r[2], r[1]],
    "left out": lambda r: [r[0], r[2]],
    "cut": lambda r: [r[0], r[1][:9] + r[1][10:], r[2]],
    "empty": lambda r: [r[0], struct.pack("<I", 0) + bytes(8), r[1]],
    "too large": lambda r: [r[0], b"\xff" * 100],
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_records_come_once_and_in_order(way, change):
    changed = change(wire_form(way, [b"first", b"second record", b"third"]))
    assert taken(way, b"".join(changed)) == (b"first", True)


def test_who_dials_says_and_who_answers_does_the_same():
    for how, expected in (("on", True), ("off", False), ("auto", False)):  # auto: this is loopback
        listener = listen("tcp://127.0.0.1:0")
        client, worker = connect(listener.uri, ME, checksum=how), listener.accept(ME)
        try:
            wait_until(lambda: "up" in client.events() + worker.events() and client._pipe and worker._pipe)  # noqa: B023
            for end in (client, worker):
                assert isinstance(end._pipe, (records.RecordSocket, records.RecordPipe)) is expected
        finally:
            client.abort()
            worker.abort()


def test_auto_is_for_what_leaves_this_host_and_where_it_is_cheap(monkeypatch):
    def wanted(uri, how):
        return checked.wanted(tcp.place(uri), how)

    monkeypatch.setattr(checked, "crc32c_is_fast", lambda: True)
    near = ["tcp://127.0.0.1:1", "tcp://127.9.9.9:1", "tcp://[::1]:1"]
    assert [wanted(uri, "auto") for uri in [*near, "tcp://192.0.2.1:1"]] == [False, False, False, True]
    assert all(wanted(uri, "on") for uri in near) and not wanted("tcp://192.0.2.1:1", "off")
    monkeypatch.setattr(checked, "crc32c_is_fast", lambda: False)
    assert not wanted("tcp://192.0.2.1:1", "auto") and wanted("tcp://192.0.2.1:1", "on")
    if not shm.missing():
        assert not checked.wanted(shm.place("shm://host/name"), "on")


def test_no_bit_makes_one_greeting_another():
    said = [ends.GREETING, ends.KEYED, *ends.CHECKED.values()]
    for one in said:
        for other in set(said) - {one}:
            assert sum((a ^ b).bit_count() for a, b in zip(one, other, strict=True)) > 1


def test_a_seal_has_checks_of_its_own():
    asked = lambda place: True  # noqa: E731
    place = tcp.place("tcp://127.0.0.1:9")
    for sealed, checks in ((seal.Seal(b"s" * 32), None), (seal.Seal(b"s" * 32, clear=True), asked), (None, asked)):
        link = ends.DialledLink(ME, [place], sealed, asked)
        link.abort()
        assert link._checks is checks
