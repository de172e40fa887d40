"""More memory than there is, in one worker: arrays go to host memory or files and come back as they were."""

import errno

import numpy as np
import pytest

from rgpu.server import backend, spill
from rgpu.server.allowance import Allowance
from rgpu.server.spill import SpillingTable, Store
from rgpu.server.table import OutOfMemoryError
from rgpu.wire import control

KIB = 1 << 10
RESIDENT, LIMIT = 64 * KIB, 1024 * KIB


class Lender:
    """The daemon's part: memory up to the limit, device memory up to ``resident``."""

    def __init__(self, resident=RESIDENT):
        self.resident, self.asked = resident, 0
        self.allowance = Allowance(self.hear, limit=LIMIT)

    def hear(self, message):
        draw = control.Control.decode(message)
        if isinstance(draw, control.Draw.Record) and draw.answer:
            self.asked += 1
            memory, resident = min(draw.memory + LIMIT // 8, LIMIT), min(draw.resident, self.resident)
            credit = control.Credit.encode(memory=memory, resident=resident, free=LIMIT - memory)
            self.allowance.heard(control.Control.decode(credit))


def table(lender, directory="", most=0):
    made = backend.load("cpu", 0, LIMIT)
    made.entitle(lender.allowance, Store(str(directory), most))
    found = spill.table_of(made)
    assert isinstance(found, SpillingTable)
    return found


def fill(table, count, size=16 * KIB):
    """``count`` arrays, each with its number in it."""
    for handle in range(1, count + 1):
        put(table, handle, np.full(size // 8, float(handle)))


def put(table, handle, array):
    table.admit(array.nbytes)
    table.put(handle, array, array.nbytes)


def spilled(table):
    return set(table._elsewhere)


@pytest.mark.parametrize("most", [0, 40 * KIB, 1])
def test_three_times_the_memory_and_every_array_as_it_was(tmp_path, most):
    """All in host memory, some of it, or all in files."""
    found = table(Lender(), tmp_path, most)
    fill(found, 12)
    assert found.resident <= RESIDENT and len(spilled(found)) >= 8 and found.used >= 12 * 16 * KIB
    for _ in range(2):
        for handle in range(1, 13):
            array = found.get(handle)
            assert (array == float(handle)).all() and array.shape == (2 * KIB,)
            del array
            assert found.resident <= RESIDENT
    assert found.moved > 20 * 16 * KIB
    if most:
        assert found._store.held <= most
    assert list(tmp_path.iterdir()) == []  # the files have no names
    for handle in range(1, 13):
        found.free(handle)


def test_what_was_not_used_for_longest_goes_first():
    found = table(Lender())
    fill(found, 3)
    found.get(1)
    put(found, 9, np.zeros(4 * KIB))  # 32 KiB: two of them have to go
    assert 1 not in spilled(found) and spilled(found) & {2, 3}


def test_what_was_written_comes_back_and_views_with_it():
    found = table(Lender())
    put(found, 1, np.arange(12.0).reshape(3, 4))
    found.put_view(2, found.get(1)[1:, ::2], 1)
    fill_others(found)
    assert 1 in spilled(found)
    view = found.get(2)
    assert (view == np.arange(12.0).reshape(3, 4)[1:, ::2]).all()
    view[0, 0] = 99.0
    assert found.get(1)[1, 0] == 99.0  # one memory, as before


def fill_others(found):
    for handle in range(101, 106):
        put(found, handle, np.zeros(2 * KIB))


def test_layouts_survive():
    found = table(Lender())
    put(found, 1, np.asfortranarray(np.arange(12.0).reshape(3, 4)))
    fill_others(found)
    assert 1 in spilled(found)
    array = found.get(1)
    assert array.flags.f_contiguous and (array == np.arange(12.0).reshape(3, 4)).all()


def test_an_array_in_use_stays_where_it_is():
    found = table(Lender())
    fill(found, 2)
    held = found.get(1)
    fill_others(found)
    assert 1 not in spilled(found) and 2 in spilled(found)
    held[0] = 5.0
    assert found.get(1)[0] == 5.0


def test_freeing_what_is_elsewhere_frees_it_there(tmp_path):
    found = table(Lender())
    fill(found, 8)
    assert found._store.held > 0
    for handle in range(1, 9):
        found.free(handle)
    assert found._store.held == 0 and found.resident == 0 and found.used == 0 and not spilled(found)


def test_the_daemon_takes_device_memory_back():
    lender = Lender()
    found = table(lender)
    fill(found, 4)
    assert lender.allowance.spill(32 * KIB) <= RESIDENT - 32 * KIB
    assert len(spilled(found)) >= 2 and (found.get(1) == 1.0).all()


def test_what_is_larger_than_the_device_is_refused():
    found = table(Lender())
    with pytest.raises(OutOfMemoryError):
        put(found, 1, np.zeros(RESIDENT // 8 + 1))
    fill(found, 2)  # and nothing is left of it


def test_the_daemon_is_not_asked_for_every_array():
    lender = Lender()
    found = table(lender)
    fill(found, 40)
    assert lender.asked < 20


class FullDisk:
    """A disk for so many arrays; None: for any number."""

    def __init__(self, monkeypatch, room):
        self.room, self.written = room, spill._written
        monkeypatch.setattr(spill, "_written", self)

    def __call__(self, data, directory):
        if self.room is not None:
            if not self.room:
                raise OSError(errno.ENOSPC, "No space left on device")
            self.room -= 1
        return self.written(data, directory)


def test_a_full_disk_is_no_memory_and_nothing_is_lost(tmp_path, monkeypatch):
    disk = FullDisk(monkeypatch, 3)
    found = table(Lender(), tmp_path, 1)
    with pytest.raises(OutOfMemoryError):
        fill(found, 12)
    held = len(found._in_memory) + len(spilled(found))
    assert len(spilled(found)) == 3 and found.resident == sum(found._in_memory.values()) <= RESIDENT
    for handle in [*found._in_memory]:
        assert (found.get(handle) == float(handle)).all()
    disk.room = None
    for handle in range(1, held + 1):
        assert (found.get(handle) == float(handle)).all()
    put(found, 100, np.full(2 * KIB, 100.0))
    assert found.resident == sum(found._in_memory.values()) <= RESIDENT
    for handle in (*range(1, held + 1), 100):
        found.free(handle)
    assert found.resident == 0 == found.used


def test_what_cannot_come_back_now_comes_later(monkeypatch):
    found = table(Lender())
    fill(found, 8)
    handle = next(iter(spilled(found)))

    def none(*_):
        raise MemoryError("the host has none")

    with monkeypatch.context() as patch:
        patch.setattr(found._backend, "empty", none)
        with pytest.raises(MemoryError):
            found.get(handle)
    assert (found.get(handle) == float(handle)).all()
