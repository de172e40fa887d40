"""Unified arrays: read anywhere, written anywhere, copied only when they must be, and never through the client."""

import warnings

import numpy as np
import pytest

from rgpu import errors
from tests.support.servers import Server


@pytest.fixture(scope="module")
def cp():
    import rgpu

    with Server("cpu:2", "hostA") as first, Server("cpu:1", "hostB") as second:
        rgpu.connect(first.address, second.address, check_prediction=True)
        for number in range(3):
            with rgpu.cuda.Device(number):
                rgpu.zeros(1).get()
        yield rgpu
        rgpu.close()


def copied(cp):
    return cp.stats()["direct_bytes"]


def test_reads_replicate_once_and_writes_invalidate(cp):
    host = np.arange(50_000.0)
    u = cp.unified(host)
    assert u.shape == (50_000,) and u.devices == [0] and len(u) == 50_000
    before = copied(cp)
    for number in (1, 2, 1, 2, 0):
        with cp.cuda.Device(number):
            result = cp.sqrt(u) + u * 2 + cp.ones(50_000) * u
            assert result.device.id == number
            np.testing.assert_allclose(result.get(), np.sqrt(host) + 3 * host)
    assert copied(cp) - before == 2 * host.nbytes  # once to each
    assert u.devices == [0, 1, 2]
    with cp.cuda.Device(2):
        u += 1
        u[:10] = 0
    assert u.devices == [2] and u.version == 2
    host += 1
    host[:10] = 0
    np.testing.assert_array_equal(u.get(), host)
    with cp.cuda.Device(1):
        np.testing.assert_array_equal(cp.asnumpy(u[5:20]), host[5:20])
        u.fill(7)
    assert u.devices == [1]
    assert float(u.sum()) == 7 * 50_000
    assert cp.stats()["relayed_bytes"] == 0


def test_turns_of_writing_are_in_order(cp):
    u = cp.unified(np.zeros(20_000))
    for turn in range(12):
        with cp.cuda.Device(turn % 3):
            u += turn
            u *= 2
    expected = 0
    for turn in range(12):
        expected = (expected + turn) * 2
    np.testing.assert_array_equal(u.get(), expected)


def test_prefetch_makes_the_copy_early(cp):
    u = cp.unified(np.ones(1000))
    before, waited = copied(cp), cp.stats()["round_trips"]
    u.prefetch(1)
    with cp.cuda.Device(0):
        pointer, stream = u.local().data.ptr, cp.cuda.Stream.null.ptr
    cp.cuda.runtime.memPrefetchAsync(pointer, 8000, 2, stream)
    assert u.devices == [0, 1, 2] and copied(cp) - before == 16_000
    assert cp.stats()["round_trips"] == waited
    with cp.cuda.Device(2):
        np.testing.assert_array_equal((u @ u).get(), 1000)
    assert copied(cp) - before == 16_000


def managed_array(cp, allocate, host):
    with cp.cuda.Device(0):
        array = cp.ndarray(host.shape, host.dtype, memptr=allocate(host.nbytes))
        array.set(host)
    return array


@pytest.mark.parametrize("pooled", [False, True])
def test_managed_memory_is_used_from_any_device(cp, pooled):
    allocate = cp.cuda.MemoryPool(cp.cuda.malloc_managed).malloc if pooled else cp.cuda.malloc_managed
    host = np.arange(9000.0)
    a = managed_array(cp, allocate, host)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no word of peer access
        for number in (1, 2):
            with cp.cuda.Device(number):
                result = a + cp.ones(9000)
                assert result.device.id == number
                np.testing.assert_array_equal(result.get(), host + 1)
                a[:10] = -1  # it is written to from there, and read from elsewhere
                a += 1
            host[:10] = -1
            host += 1
            np.testing.assert_array_equal(a.get(), host)
    before = copied(cp)
    with cp.cuda.Device(0), pytest.warns(errors.PerformanceWarning):
        plain = cp.ones(10)
        with cp.cuda.Device(1):
            plain + cp.ones(10)
    assert copied(cp) - before == 80


def test_all_memory_is_managed_while_the_allocator_says_so(cp):
    with cp.cuda.using_allocator(cp.cuda.MemoryPool(cp.cuda.malloc_managed).malloc), warnings.catch_warnings():
        warnings.simplefilter("error")
        with cp.cuda.Device(0):
            a = cp.arange(10.0) * 2
        with cp.cuda.Device(1):
            np.testing.assert_array_equal((a + cp.ones(10)).get(), np.arange(10.0) * 2 + 1)


def test_hints_for_managed_memory(cp):
    runtime, host = cp.cuda.runtime, np.arange(9000.0)
    a = managed_array(cp, cp.cuda.malloc_managed, host)
    null = cp.cuda.Stream.null
    with cp.cuda.Device(2):
        one = cp.ones(9000)
    before = copied(cp)
    a.data.mem.prefetch(null, device_id=2)
    assert copied(cp) - before == host.nbytes
    with cp.cuda.Device(2):
        np.testing.assert_array_equal((a + one).get(), host + 1)
        assert copied(cp) - before == host.nbytes  # it was there
        a[0] = 5  # nothing of a copy that was made before is seen any more
        np.testing.assert_array_equal((a + one).get()[:2], [6, 2])
    runtime.memAdvise(a.data.ptr, host.nbytes, 1, 0)  # read mostly: one copy for many reads
    with cp.cuda.Device(2):
        before = copied(cp)
        for _ in range(4):
            np.testing.assert_array_equal((a + one).get()[:2], [6, 2])
        assert copied(cp) - before == host.nbytes
        a += 1
        np.testing.assert_array_equal((a + one).get()[:2], [7, 3])
    runtime.memAdvise(a.data.ptr, host.nbytes, 2, 0)
    before = copied(cp)
    runtime.memAdvise(a.data.ptr, host.nbytes, 3, 1)  # preferred there
    assert copied(cp) - before == host.nbytes
    for wrong in ((0, 0), (7, 0), (1, 9)):
        with pytest.raises(runtime.CUDARuntimeError):
            runtime.memAdvise(a.data.ptr, host.nbytes, *wrong)


def test_it_stands_for_an_array(cp):
    u, v = cp.unified([[1.0, 2.0], [3.0, 4.0]]), cp.unified([1.0, 1.0])
    with cp.cuda.Device(1):
        np.testing.assert_array_equal((u @ v).get(), [3, 7])
        np.testing.assert_array_equal(cp.asarray(u).get(), u.get())
        np.testing.assert_array_equal((2 - u).get(), 2 - u.get())
        np.testing.assert_array_equal(u.T.get(), u.get().T)
        assert bool((u == u).all())
    assert "version 0" in repr(u)
    with pytest.raises(AttributeError):
        u._nothing
    with pytest.raises(IndexError):
        u[5]
