"""cupy.cuda on real devices: the conformance tests again, and what only a GPU can get wrong."""

import numpy as np
import pytest

from tests.conformance.test_cuda import *  # noqa: F403 - every test of that module, on the servers of this directory

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]


def test_the_card_is_described(cp):
    properties = cp.cuda.runtime.getDeviceProperties(0)
    assert properties["major"] >= 3 and properties["warpSize"] == 32
    assert cp.cuda.Device(0).attributes["MultiProcessorCount"] == properties["multiProcessorCount"]
    assert cp.cuda.runtime.driverGetVersion() >= cp.cuda.runtime.runtimeGetVersion() // 1000 * 1000


def test_out_of_memory_is_cupys_error_and_leaves_the_session_usable(cp):
    free, total = cp.cuda.runtime.memGetInfo()
    kept = cp.cuda.alloc(int(free * 0.6))
    with pytest.raises(cp.cuda.memory.OutOfMemoryError):
        cp.cuda.alloc(int(free * 0.6))
    del kept
    cp.get_default_memory_pool().free_all_blocks()
    assert cp.cuda.runtime.memGetInfo()[0] > free * 0.9
    assert cp.arange(5).get().tolist() == list(range(5))


def test_freed_blocks_are_cached_until_they_are_given_back(cp):
    pool = cp.get_default_memory_pool()
    pool.free_all_blocks()
    before = pool.total_bytes()
    a = cp.zeros(1 << 20)
    del a
    assert pool.total_bytes() - before >= 8 << 20 and pool.n_free_blocks() >= 1
    pool.free_all_blocks()
    assert pool.total_bytes() == before


@pytest.mark.parametrize("dtype", ["?", "i1", "u2", "i4", "i8", "f2", "f4", "f8", "c8", "c16"])
@pytest.mark.parametrize("layout", ["C", "F", "view"])
def test_data_goes_there_and_back(cp, dtype, layout):
    host = (np.random.default_rng(3).random((37, 41)) * 100).astype(dtype)
    if layout == "view":
        a = cp.asarray(host)[::2, ::-1]
        assert (a.get() == host[::2, ::-1]).all()
    else:
        a = cp.asarray(np.asarray(host, order=layout))
        assert (a.get() == host).all() and (a.get(order="F") == host).all()


def test_large_data_goes_there_and_back(cp):
    host = np.random.default_rng(4).random(40 << 17)  # 40 MiB: many chunks, both staging buffers
    a = cp.asarray(host)
    assert (a.get() == host).all()
    assert float((a * 2).sum()) == pytest.approx(float((host * 2).sum()))


def test_a_read_sees_work_of_every_stream(cp):
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        x = cp.ones((2000, 2000), np.float32)
        for _ in range(10):
            x = x @ x / 2000
    assert (x.get() == 1).all()  # on the default stream, without synchronize
