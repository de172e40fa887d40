"""Unified arrays: read anywhere, written anywhere, copied only when they must be, and never through the client."""

import numpy as np
import pytest

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
