"""Uploads of what the worker has already: no data leave, whatever has become of the first array."""

import time

import numpy as np
import pytest

from rgpu.client import pool
from rgpu.client.staging import KEPT, Staging
from rgpu.client.uploads import LEAST, SAMPLE, Uploads
from rgpu.errors import ProtocolError
from rgpu.server.backend_cpu import CpuBackend
from rgpu.server.executor import Executor
from rgpu.wire import codec, limits, ops

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def remembering(server):
    import rgpu as cp

    def connect(mode):
        cp.connect(server.address, upload_cache=mode, link="tcp")
        cp.ones(1).get()
        return cp

    yield connect
    cp.close()


@pytest.fixture(scope="module")
def server():
    from tests.support.servers import Server

    with Server("cpu:1", "uploads", "--links", "tcp") as server:
        yield server


def test_a_checkpoint_of_what_was_uploaded_comes_back(remembering, tmp_path):
    """What the worker keeps is told by the queue, and a checkpoint passes it: the array was gone when it was named."""
    cp = remembering("on")
    host = np.random.default_rng(3).random(LEAST // 4)
    for _ in range(2):
        a = cp.asarray(host)
        cp.checkpoint(tmp_path / "file", a=a)
        np.testing.assert_array_equal(cp.restore(tmp_path / "file")["a"].get(), host)
    np.testing.assert_array_equal(a.get(), host)


def test_the_same_content_again_is_a_few_bytes(remembering):
    cp = remembering("on")
    host = np.random.default_rng(5).random((512, 513))
    a = cp.asarray(host)
    before = cp.stats()
    a *= 2  # the kept bytes are not the array's
    b, c = cp.asarray(host), cp.asarray(host.astype("f4"))
    f = cp.asarray(np.asfortranarray(host))  # other bytes
    np.testing.assert_array_equal(b.get(), host)
    after = cp.stats()
    assert after["recalled"] == 1 and after["recalled_bytes"] == host.nbytes
    assert after["bytes_sent"] - before["bytes_sent"] < 1.6 * host.nbytes  # the other two
    c.set(np.ascontiguousarray(host.astype("f4")))
    f.set(np.asfortranarray(host))
    host[0, 0] += 1
    d = cp.asarray(host)
    assert cp.stats()["recalled"] == 3
    for array, wanted in ((a, None), (c, "f4"), (d, None), (f, None)):
        expected = host.copy()
        expected[0, 0] -= array is not d
        expected = expected * 2 if array is a else expected.astype(wanted or float)
        np.testing.assert_array_equal(array.get(), expected)


def test_what_another_thread_changes_on_the_way_is_not_remembered(remembering, monkeypatch):
    cp = remembering("on")
    host = np.random.default_rng(6).random(LEAST // 2)
    wanted, write = host.copy(), type(pool.current_stream())._write

    def changed_before_it_leaves(stream, handle, data, place):
        host[:] = 0
        write(stream, handle, data, place)

    with monkeypatch.context() as patched:
        patched.setattr(type(pool.current_stream()), "_write", changed_before_it_leaves)
        first = cp.asarray(host)
    assert not first.any()
    np.testing.assert_array_equal(cp.asarray(wanted).get(), wanted)


def test_what_was_used_longest_ago_makes_room(remembering, monkeypatch):
    cp = remembering("on")
    monkeypatch.setattr(limits, "UPLOADS", 2)
    hosts = [np.full(LEAST // 8, float(n)) for n in range(3)]
    for n in (0, 1, 0, 2, 0, 1):  # 2 took the place of 1, and 1 that of 2
        np.testing.assert_array_equal(cp.asarray(hosts[n]).get(), hosts[n])
    assert cp.stats()["recalled"] == 2
    assert len(pool.current_stream().uploads._slots) == 2


def test_off_and_small_uploads_are_sent(remembering):
    cp = remembering("off")
    for mode, size in (("off", LEAST), ("on", LEAST - 8)):
        cp = remembering(mode)
        for _ in range(3):
            cp.asarray(np.ones(size // 8)).get()
        assert cp.stats()["recalled"] == 0


def test_hashing_begins_where_sending_is_dear():
    uploads, data = Uploads("auto"), memoryview(bytearray(LEAST))

    def upload(slow):
        """What a stream asks and says: the content's name and slot, or whether it measured."""
        found = uploads.found(data)
        if found is not None:
            return found
        if measured := uploads.measures(LEAST) > 0:
            uploads.took(not slow)
        return measured

    def next_measured(slow):
        """The upload after which it is measured again."""
        return next(n for n in range(1, 10 * SAMPLE) if upload(slow) is True)

    assert uploads.found(data[1:]) is None and uploads.measures(LEAST - 1) == 0
    assert upload(slow=True) is True and upload(slow=False) is True  # one slow moment says nothing
    assert next_measured(slow=True) == SAMPLE and upload(slow=True) is True
    (name, slot) = upload(slow=True)
    assert slot is None and uploads.enter(name) == (0, []) and upload(slow=True) == (name, 0)
    assert next_measured(slow=True) == SAMPLE - 2 and upload(slow=True) == (name, 0)
    assert next_measured(slow=False) == SAMPLE - 1
    assert upload(slow=True) is False  # sending is fast by now: nothing is hashed


def test_a_worker_keeps_no_more_than_it_may(monkeypatch):
    monkeypatch.setattr(limits, "UPLOAD_BYTES", 100)
    answers = []
    executor = Executor(CpuBackend(memory_limit=1 << 20), answers.append)

    def run(*commands):
        executor.run([codec.pack([1, list(commands)])])

    run(*(ops.Put.encode(n, "<f8", [5], np.full(5, n, float).tobytes()) for n in (1, 2, 3)))
    run(ops.Keep.encode(0, 1), ops.Keep.encode(1, 2), ops.Keep.encode(1, 2))
    for slot in (2, limits.UPLOADS):
        with pytest.raises(ProtocolError, match="are to be kept"):
            run(ops.Keep.encode(slot, 3))
    run(ops.Discard.encode([0, 9]), ops.Keep.encode(5, 3), ops.Recall.encode(1, 3))
    np.testing.assert_array_equal(executor.table.get(3), np.full(5, 2.0))
    assert not answers
    run(ops.Recall.encode(0, 3))  # nothing is kept there: the client hears of it
    assert ops.Reply.decode(codec.unpack(answers[0][0])).kind == "RuntimeError"


def test_a_copy_lies_in_its_page_as_its_source_does():
    """A little behind that place it would take ten times as long on some processors."""
    staging, memory = Staging(), np.random.default_rng(1).integers(0, 255, 1 << 20, np.uint8)
    for start, size in ((0, 1 << 18), (1, 1 << 18), (4095, 262_143), (17, 40_000), (4097, 600_000)):
        copy = staging.copy(memoryview(memory[start : start + size]))
        found = np.frombuffer(copy, np.uint8)
        places = [array.__array_interface__["data"][0] % 4096 for array in (found, memory[start:])]
        assert places[0] == places[1] and np.array_equal(found, memory[start : start + size])


def test_copies_wait_in_memory_that_is_used_again():
    staging = Staging()
    data = memoryview(bytes(range(256)) * 1000)
    first = staging.copy(data)
    part = first[1000:2000]
    address = np.frombuffer(part, np.uint8).__array_interface__["data"][0]
    assert first == data
    del first  # a part of it is still under way
    second = staging.copy(memoryview(bytes(256_000)))
    assert part == data[1000:2000]
    del part
    third = staging.copy(data)
    assert np.frombuffer(third, np.uint8).__array_interface__["data"][0] == address - 1000
    assert third == data and not any(second)
    kept = [staging.copy(memoryview(bytearray(1 << 20))) for _ in range(KEPT // (1 << 20) + 4)]
    kept.clear()
    began = time.monotonic()
    while staging._kept > KEPT and time.monotonic() < began + 5:
        pass
    assert staging._kept <= KEPT and staging.copy(memoryview(b"small")) == b"small"
