"""Connections over real sockets, with a proxy in between that breaks them."""

import os
import random
import socket
import struct
import threading
import time

import numpy as np
import pytest

from rgpu import _native
from rgpu.errors import SessionLost
from rgpu.link import connect, listen, shm, tcp
from rgpu.link.base import PLACED
from rgpu.link.ends import GREETING, WELCOME
from rgpu.link.framing import ends_of
from rgpu.session import Connection, Session
from rgpu.session.spin import PureSpin, Spin
from tests.support.faultproxy import FaultProxy
from tests.support.waiting import wait_until

SID = bytes(range(16))


class Worker(threading.Thread):
    """Executes what arrives: records it, echoes messages that begin with b"echo"."""

    def __init__(self, uri="tcp://127.0.0.1:0", sink=None, **session):
        super().__init__(name="test-worker", daemon=True)
        listener = listen(uri)
        self.uri = listener.uri
        self.connection = Connection(Session(SID, 1, **session), listener.accept(SID), sink=sink)
        self.executed = []
        self.stopping = False
        self.paused = threading.Event()
        self.paused.set()

    def run(self):
        connection = self.connection
        while not self.stopping:
            self.paused.wait(5)
            connection.pump()
            frames = connection.take()
            if frames is None:
                connection.wait(0.2)
                continue
            self.executed.append(frames[0])
            if frames[0].startswith(b"echo"):
                connection.post(frames)
            connection.mark_done()

    def close(self):
        self.stopping = True
        self.connection.abort()
        self.join(5)
        assert not self.is_alive()


@pytest.fixture
def place():
    """A worker, a proxy before it, a client through the proxy."""
    made = []

    def make(client=None, proxy=None, **worker):
        w = Worker(**worker)
        made.append(w)
        w.start()
        host, port = w.uri.removeprefix("tcp://").split(":")
        p = FaultProxy((host, int(port)), **(proxy or {}))
        made.append(p)
        c = Connection(Session(SID, 1, **(client or {})), connect(p.uri, SID))
        made.append(type("Client", (), {"close": c.abort}))
        return w, p, c

    yield make
    for thing in reversed(made):
        thing.close()


def soon(seconds=20.0):
    return time.monotonic() + seconds


def call(connection, message, seconds=20.0):
    """Post and wait for the next message."""
    deadline = soon(seconds)
    connection.post([message], deadline)
    got = []

    def answered():
        frames = connection.take()
        if frames is not None:
            got.append(frames)
            connection.mark_done()
        return bool(got)

    assert connection.wait_until(answered, deadline), connection
    return got[0]


@pytest.mark.timeout(60)
def test_exactly_once_over_resets(place):
    worker, proxy, client = place()
    count, resets = 20_000, 5
    for i in range(count):
        client.post([b"%d" % i], soon())
        if i % (count // resets) == count // resets // 2:
            proxy.reset()
    assert call(client, b"echo end") == [b"echo end"]
    assert worker.executed == [b"%d" % i for i in range(count)] + [b"echo end"]
    assert proxy.resets == resets and client.reconnects >= 1
    assert client.flush(soon())
    assert client.wait_until(lambda: client.session.unfinished == (0, 0), soon())


@pytest.mark.timeout(60)
def test_replies_survive_resets_too(place):
    _, proxy, client = place()
    for i in range(60):
        if i % 20 == 10:
            proxy.reset()
        assert call(client, b"echo %d" % i) == [b"echo %d" % i]


@pytest.mark.timeout(60)
def test_bulk_arrives_in_its_place(place):
    total, chunk = 200 << 20, 1 << 20
    memory = np.zeros(total, np.uint8)
    view = memoryview(memory)

    def sink(frames):
        offset = int(frames[0])
        return view[offset : offset + chunk]

    worker, proxy, client = place(sink=sink)
    source = np.random.default_rng(1).integers(0, 256, 8 << 20, np.uint8)
    data = memoryview(np.tile(source, total // len(source)))
    for offset in range(0, total, chunk):
        client.post([b"%d" % offset, data[offset : offset + chunk]], soon())
        if offset == total // 2:
            proxy.reset()
    assert client.flush(soon())
    assert np.array_equal(memory, np.frombuffer(data, np.uint8))
    assert len(worker.executed) == total // chunk


@pytest.mark.timeout(30)
def test_stall_is_noticed(place):
    worker, proxy, client = place()
    call(client, b"echo")
    proxy.stall()
    begin = time.monotonic()
    assert client.wait_until(lambda: client.down_since is not None, soon(10))
    assert time.monotonic() - begin > 1.5  # a line may pause for a moment
    proxy.resume()
    proxy.reset()
    assert call(client, b"echo again") == [b"echo again"]
    assert client.down_since is None


@pytest.mark.timeout(30)
def test_cut_and_heal(place):
    worker, proxy, client = place()
    call(client, b"echo")
    proxy.cut()
    for i in range(100):
        client.post([b"%d" % i])
    time.sleep(0.3)
    proxy.heal()
    assert call(client, b"echo 2") == [b"echo 2"]
    assert worker.executed == [b"echo", *(b"%d" % i for i in range(100)), b"echo 2"]


@pytest.mark.timeout(30)
@pytest.mark.parametrize("proxy", [{"slice_bytes": 1}, {"latency": 0.02}, {"bandwidth": 1e6}], ids=str)
def test_slow_lines(place, proxy):
    worker, _, client = place(proxy=proxy)
    for i in range(200):
        client.post([b"%d" % i], soon())
    assert call(client, b"echo" + bytes(5000))[0] == b"echo" + bytes(5000)
    assert worker.executed[:-1] == [b"%d" % i for i in range(200)]


@pytest.mark.timeout(30)
def test_full_window_waits_and_times_out(place):
    worker, _, client = place(client={"window_messages": 8})
    call(client, b"echo")
    worker.paused.clear()
    with pytest.raises(TimeoutError, match="did not take"):
        for _ in range(1000):
            client.post([b"x"], soon(0.3))
    assert client.session.unfinished[0] == 8
    worker.paused.set()
    call(client, b"echo")


@pytest.mark.timeout(30)
def test_failure_ends_every_wait(place):
    _, _, client = place()
    errors = []

    def waits():
        try:
            client.wait_until(lambda: False, soon())
        except SessionLost as error:
            errors.append(error)

    threads = [threading.Thread(target=waits, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    client.fail(SessionLost("gone"))
    for thread in threads:
        thread.join(2)
    assert len(errors) == 3
    with pytest.raises(SessionLost, match="gone"):
        client.post([b"x"])
    assert client.pump() is False and client.wait(1) is True


@pytest.mark.timeout(60)
def test_many_threads(place):
    """Posts of several threads, each in its own order, while a ticker pumps as well."""
    worker, proxy, client = place()
    stop = threading.Event()

    def tick():
        while not stop.wait(0.01):
            client.pump()

    def posts(name):
        for i in range(1000):
            client.post([b"%d %d" % (name, i)], soon())

    threads = [threading.Thread(target=posts, args=(n,), daemon=True) for n in range(3)]
    ticker = threading.Thread(target=tick, daemon=True)
    for thread in (*threads, ticker):
        thread.start()
    time.sleep(0.05)
    proxy.reset()
    for thread in threads:
        thread.join(30)
    call(client, b"echo")
    stop.set()
    ticker.join(5)
    for name in range(3):
        mine = [m for m in worker.executed if m.startswith(b"%d " % name)]
        assert mine == [b"%d %d" % (name, i) for i in range(1000)]


@pytest.mark.timeout(30)
def test_close_flushes(place):
    worker, _, client = place(proxy={"latency": 0.05})
    call(client, b"echo")
    for i in range(100):
        client.post([b"%d" % i])
    client.close()
    deadline = soon(5)
    while len(worker.executed) < 101 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert worker.executed[1:] == [b"%d" % i for i in range(100)]


class Patient:
    """A Spin that always looks."""

    def seconds(self):
        return 0.2

    near = seconds

    def learn(self, waited):
        assert 0 <= waited < 60


@pytest.fixture(params=["tcp://127.0.0.1:0", "shm://"])
def pair(request):
    """Two ends that always look for a moment before they sleep."""
    if request.param == "shm://" and shm.missing():
        pytest.skip(shm.missing())
    listener = listen(request.param)
    here = Connection(Session(SID, 1), connect(listener.uri, SID))
    there = Connection(Session(SID, 1), listener.accept(SID))
    for connection in (here, there):
        connection._hope = connection._spin = Patient()
    deadline = soon()
    while here.down_since is not None or there.down_since is not None:
        assert time.monotonic() < deadline
        here.pump(), there.pump()
    yield here, there
    here.abort()
    there.abort()


def echo(connection, count, answer=lambda frames: frames):
    """A thread that answers so many messages."""

    def run():
        for _ in range(count):
            deadline = soon()
            while (frames := connection.next(0.25)) is None:
                assert time.monotonic() < deadline and connection.failure is None
            connection.post(answer(frames))
            connection.mark_done()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


class OneMessage:
    """A queue of it."""

    batch = 3

    def __init__(self, body):
        self.body, self.taken = body, False

    def take(self, how):
        assert how == 7 and not self.taken
        self.taken = True
        return self.body


def exchange(connection, frames, answer, place):
    """As a stream does: what cannot leave in one turn is posted."""
    queue, payload, missed = OneMessage(frames[0]), (frames[1:] or [None])[0], []
    large, room = len(place) >= PLACED, sum(map(len, frames))
    found = connection.exchange(queue, (7,), payload, room, answer, place, large, lambda *x: missed.append(x), ("x",))
    assert missed == ([(3, "x")] if found is False else []) and queue.taken == (found is not None)
    if found is None:
        connection.post(frames)
    return found


@pytest.mark.parametrize("plain", [True, False], ids=["one turn", "the long way"])
def test_an_answer_is_looked_for_and_whatever_comes_is_not_lost(pair, plain):
    here, there = pair
    here.link.plain &= plain
    there.link.plain &= plain
    answered = echo(there, 102)
    found = 0
    for i in range(100):
        place = bytearray(8)
        if exchange(here, [b"%d" % i, b"%08d" % i], b"%d" % i, memoryview(place)):
            found += 1
            assert place == b"%08d" % i and here.session.idle
        else:
            assert here.wait_until(lambda: bool(here._inbox), soon())
            assert here.take() == [b"%d" % i, b"%08d" % i]
            here.mark_done()
    assert found > 0 if plain and _native.link is not None else found == 0
    for frames, size in (
        ([b"other", b"x"], 1),
        ([b"large", bytes(300_000)], 200_000),
    ):  # not the answer; it does not fit
        assert not exchange(here, frames, b"answer" if size == 1 else b"large", memoryview(bytearray(size)))
        assert here.wait_until(lambda: bool(here._inbox), soon())
        assert [bytes(frame) for frame in here.take()] == frames
        here.mark_done()
    answered.join(20)
    assert not answered.is_alive() and here.executed == there.executed == 102
    assert there.session.counters["delivered"] == here.session.counters["delivered"] == 102


@pytest.mark.parametrize("plain", [True, False], ids=["one turn", "the long way"])
def test_a_large_answer_comes_to_its_place(pair, plain):
    here, there = pair
    here.link.plain &= plain
    sizes = [PLACED - 1, PLACED, 256 << 10, 1 << 20, 5_000_001] * 4
    answered = echo(there, 2 * len(sizes))
    found = 0
    for i, size in enumerate(sizes):
        data, place = bytes([i + 1]) * size, bytearray(size)
        if exchange(here, [b"%d" % i, data], b"%d" % i, memoryview(place)):
            found += size >= PLACED
        else:
            assert here.wait_until(lambda: bool(here._inbox), soon())
            head, place = here.take()
            assert head == b"%d" % i
            here.mark_done()
        assert place == data
        frames = [b"after", bytes([i])]  # what follows is whole
        assert not exchange(here, frames, b"other", memoryview(bytearray(1)))
        assert here.wait_until(lambda: bool(here._inbox), soon())
        assert here.take() == frames
        here.mark_done()
    answered.join(20)
    assert not answered.is_alive() and here.executed == there.executed == 2 * len(sizes)
    assert found > 0 if plain and _native.link is not None else found == 0


@pytest.mark.skipif(_native.link is None, reason="turns are the C core's")
@pytest.mark.parametrize("here", [0, 3, 20, 70, 5000, 250_000])
def test_a_large_answer_that_stops_on_its_way_goes_on_the_long_way(here):
    """The first bytes of it are there when it is looked for, the others come later."""
    ours, theirs = socket.socketpair()
    reader, writer = ends_of(tcp.SocketPipe(ours))
    us, them = Session(SID, 1), Session(SID, 1)
    them.link_up(), us.link_up()
    hello = us.send([b"question"])
    assert them.receive(hello) == [b"question"]
    data = np.random.default_rng(here).integers(0, 255, 300_000, np.uint8).tobytes()
    frames = them.send([b"answer", data])
    whole = struct.pack("<4I", 3, *map(len, frames)) + b"".join(frames)
    place = bytearray(len(data))
    ours.setblocking(False)
    theirs.settimeout(20)
    try:
        sending = threading.Thread(target=theirs.sendall, args=(whole[:here],), daemon=True)
        sending.start()  # a socket's buffer may be smaller
        deadline, sent = soon(), False
        while not sent and reader._place is None:
            assert time.monotonic() < deadline
            sent = not sending.is_alive()  # then all of it is there to be seen
            assert _native.link.turn(us, reader, writer, None, b"answer", memoryview(place), 0.001, None) is None
        assert (reader._place is not None) == (here >= 70)
        rest = threading.Thread(
            target=lambda: (sending.join(20), theirs.sendall(whole[here:] + b"\0\0\0\0")), daemon=True
        )
        rest.start()
        message = None
        while message is None:
            assert time.monotonic() < deadline
            message = reader.read(lambda frames: memoryview(place))
        rest.join(20)
        assert us.receive(message) == [b"answer", data] and place == data
        while not reader.signs:  # and what comes behind it
            assert time.monotonic() < deadline and reader.read(None) is None
    finally:
        ours.close(), theirs.close()


def test_memory_may_change_as_soon_as_the_link_holds_none_of_it(pair):
    """What the peer does not acknowledge is copied; what the link holds leaves before."""
    here, there = pair
    data = np.random.default_rng(0).integers(0, 255, 8 << 20, np.uint8)
    expected = data.copy()
    posted = []
    for half in range(2):
        frames = [b"half %d" % half, memoryview(data)[half << 22 :][: 1 << 22]]
        here.post(frames)
        posted.append((here.progress[0], frames))
    assert here.link.holding  # or this tests nothing
    got, deadline = [], soon()

    def receive():
        while len(got) < 2 and time.monotonic() < deadline:
            if (frames := there.next(0.01)) is not None:
                got.append(frames)
                there.mark_done()

    receiver = threading.Thread(target=receive)
    receiver.start()
    here.keep(posted, 0.0)
    assert not here.link.holding
    data[:] = 0
    receiver.join(60)
    assert np.array_equal(np.concatenate([np.frombuffer(frames[1], np.uint8) for frames in got]), expected)


def test_an_exchange_over_a_link_that_breaks(pair):
    here, there = pair
    answered = echo(there, 30)
    for i in range(30):
        if i % 10 == 5:
            here.link._drop()
        if not exchange(here, [b"%d" % i], b"%d" % i, memoryview(bytearray())):
            assert here.wait_until(lambda: bool(here._inbox), soon())
            assert here.take() == [b"%d" % i]
            here.mark_done()
    answered.join(20)
    assert not answered.is_alive() and here.executed == 30 and here.stats["reconnects"] >= 3


@pytest.mark.parametrize("plain", [True, False], ids=["one turn", "the long way"])
def test_an_answer_that_takes_a_moment_leaves_at_once_and_says_that_the_message_is_done(pair, plain):
    here, there = pair
    if not plain:
        there.link.turn = lambda *_: NotImplemented
    taken = []

    def serve():
        deadline = soon()
        while there.executed < 60 and time.monotonic() < deadline:
            frames = there.next(0.25, lambda frames: [b"at once", frames[0]] if int(frames[0]) % 3 else None)
            if frames is not None:
                taken.append(int(frames[0]))
                there.post([b"later", frames[0]])
                there.mark_done()

    serving = threading.Thread(target=serve, daemon=True)
    serving.start()
    for i in range(60):
        if i % 20 == 10:
            here.link._drop()  # the session goes on over the next connection
        here.post([b"%d" % i])
        assert here.wait_until(lambda: bool(here._inbox), soon())
        said, number = here.take()
        assert int(number) == i and (said == b"later") == (i in taken)
        if said == b"at once":
            assert here.session.unfinished == (0, 0)
        here.mark_done()
    serving.join(20)
    assert not serving.is_alive()
    one_turn = plain and _native.link is not None
    assert all(i in taken for i in range(60) if i % 3 == 0) and (len(taken) < 60) == one_turn


@pytest.mark.timeout(60)
def test_who_listens_hears_what_is_new_only(place):
    """A worker's guard listens while a long command runs. Looking at what has come already, again and again, took a
    core and the interpreter's lock from that command."""
    worker, _, client = place()
    client.post([b"echo 1"], soon())
    client.wait_until(lambda: len(client._inbox) == 1, soon())
    end, looks = time.monotonic() + 0.5, 0
    while time.monotonic() < end:
        client.listen(0.05)
        client.pump()
        looks += 1
    assert looks < 30  # thousands, where it returned for what is here
    worker.paused.clear()
    client.post([b"echo 2"], soon())
    threading.Timer(0.1, worker.paused.set).start()
    client.listen(50)
    client.wait_until(lambda: len(client._inbox) == 2, soon())
    assert [client.take(), client.take()] == [[b"echo 1"], [b"echo 2"]]


@pytest.mark.parametrize("sent", [6, 80, 300_000])
def test_who_waits_for_the_rest_of_a_large_message_sleeps(sent):
    """A peer that stops in the middle of its head, behind it, or in the large frame costs no processor meanwhile."""
    listener = listen("tcp://127.0.0.1:0")
    connection = Connection(Session(SID, 1), listener.accept(SID))
    host, _, port = listener.uri.removeprefix("tcp://").rpartition(":")
    message = struct.pack("<III", 2, 48, 1 << 20) + bytes(48 + (1 << 20))
    try:
        with socket.create_connection((host, int(port))) as peer:
            peer.sendall(GREETING + bytes([len(SID)]) + SID)
            wait_until(lambda: connection.next(0.01) is None and connection.down_since is None)
            assert peer.recv(1) == WELCOME
            peer.sendall(message[:sent])
            for _ in range(20):
                connection.next(0.05)
            looks, end = 0, time.monotonic() + 1
            while time.monotonic() < end:
                assert connection.next(0.1) is None
                looks += 1
            assert looks < 100
    finally:
        connection.abort()


@pytest.mark.skipif(_native.link is None, reason="only the C core has the plain case")
def test_what_leaves_in_one_call_is_kept_where_the_link_is_full(pair):
    """And arrives in order, whole; what may change afterwards was copied."""
    here, there = pair
    payloads = [os.urandom(size) for size in (1000, 90_000, 40_000, 70_000)] * 40
    changing = bytearray(90_000)
    left = 0
    for payload in payloads:
        changing[: len(payload)] = payload
        queue, lies = OneMessage(b"%d" % left), len(payload) >= 64 << 10
        data = payload if lies else memoryview(changing)[: len(payload)]
        if not here.leave(queue, (7,), data, len(payload) + 100):
            assert not queue.taken
            break
        left += 1
    changing[:] = bytes(len(changing))
    assert 10 < left < len(payloads) and here.link._writer.backlog  # nobody has read yet
    for number in range(left):
        deadline = soon()
        while (frames := there.next(0.25)) is None:
            assert time.monotonic() < deadline
            here.pump()
        there.mark_done()
        assert frames == [b"%d" % number, payloads[number]]
    assert here.link.sent_bytes >= sum(map(len, payloads[:left])) and there.executed == left


@pytest.mark.skipif(_native.link is None, reason="only the C core has the plain case")
def test_an_empty_queue_sends_nothing(pair):
    here, _ = pair
    assert here.leave(OneMessage(b""), (7,), None, 100) is True and here.progress[0] == 0
    with pytest.raises(TypeError):
        here.leave(OneMessage(b"x"), [7], None, 100)


def test_both_spins_decide_alike():
    """Whatever waits there are: regular ones, rare long ones, none at all."""
    dice = random.Random(7)
    for many in (True, False):
        for short in (1e-3, 4e-4):
            ours, twin = Spin(short, many), PureSpin(short, many)
            said = []
            for n in range(3000):
                if n % 300 == 0:
                    usual = dice.choice((5e-6, 1e-4, 3e-4, 9e-4, 5e-3)), dice.choice((5e-6, 1e-4, 3e-4, 9e-4))
                large = dice.random() < 0.1
                looks = ours.near() if large else ours.seconds()
                assert looks == (twin.near() if large else twin.seconds())
                said.append(looks)
                waited = dice.choice((0.0, 1.0)) if dice.random() < 0.02 else usual[looks > 0] * dice.uniform(0.5, 2)
                ours.learn(waited)
                twin.learn(waited)
            assert len(set(said)) == (2 if many else 1)
