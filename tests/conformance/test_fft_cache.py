"""The record of the plans that CuPy would keep: its keys, limits, hits, threads and devices."""

import threading

import numpy as np
import pytest

import rgpu as cp
from rgpu import cupyx
from rgpu.fft.cache import PlanCache


@pytest.fixture
def cache():
    found = cp.fft.config.get_plan_cache()
    found.clear()
    yield found
    found.clear()
    found.set_size(16)
    found.set_memsize(-1)


def _keys(cache):
    return [key for key, _ in cache]


def test_a_transform_is_a_miss_then_a_hit(cache, capsys):
    a = cp.zeros((4, 64, 64))
    for _ in range(2):
        cp.fft.fftn(a, axes=(1, 2))
    cache.show_info()
    key = "((64, 64), (64, 64), 1, 4096, (64, 64), 1, 4096, 105, 4, 'C', 2, None)"
    assert capsys.readouterr().out == (
        "------------------- cuFFT plan cache (device 0) -------------------\n"
        "cache enabled? True\n"
        "current / max size   : 1 / 16 (counts)\n"
        "current / max memsize: 262144 / (unlimited) (bytes)\n"
        "hits / misses: 1 / 1 (counts)\n\n"
        "cached plans (most recently used first):\n"
        f"key: {key}, plan type: PlanNd, memory usage: 262144\n\n"
    )


def test_keys_are_cupys(cache):
    a = cp.zeros((4, 6, 8))
    cp.fft.rfftn(a, axes=(0, 2))  # no neighbours: one axis after the other, the real one first
    assert _keys(cache) == [(4, 105, 30, None), (8, 106, 24, None)]
    cache.clear()
    cp.fft.irfftn(a, s=(6, 10))
    assert _keys(cache) == [((6, 10), (6, 6), 1, 36, (6, 10), 1, 60, 108, 4, "C", 2, 10)]
    cache.clear()
    cp.fft.fft2(cp.asfortranarray(a), axes=(0, 1))
    assert _keys(cache) == [((6, 4), (6, 4), 1, 24, (6, 4), 1, 24, 105, 8, "F", 1, None)]
    cache.clear()
    cp.fft.fft2(a, axes=(0, 1))
    assert _keys(cache) == [((4, 6), (4, 6), 8, 1, (4, 6), 8, 1, 105, 8, "C", 1, None)]
    cache.clear()
    cupyx.scipy.fft.irfft(a.astype(np.float32), 10, axis=1)
    cupyx.scipy.fftpack.rfft(a)
    assert _keys(cache) == [(8, 106, 24, None), (10, 44, 32, None)]


def test_transforms_inside_of_others_leave_their_plans(cache):
    fft, a = cupyx.scipy.fft, cp.ones((4, 6))
    for call, keys in (
        (lambda: cp.fft.hfft(a), [(10, 108, 4, None)]),  # rows of 6 give 10 real values
        (lambda: cp.fft.ihfft(a, 8, 0), [(8, 106, 6, None)]),
        (lambda: fft.hfft2(a.astype(np.complex64)), [((4, 10), (4, 6), 1, 1, (4, 10), 1, 1, 44, 1, "C", 1, 10)]),
        (lambda: fft.dct(a.astype(np.float32), n=5), [(5, 41, 4, None)]),
        (lambda: fft.idstn(a, s=(3, 8)), [(8, 105, 3, None), (3, 105, 6, None)]),
        (lambda: fft.dctn(a, axes=1), [(6, 105, 4, None)]),
        (lambda: fft.fht(a, 0.1, 0.5), [(6, 108, 4, None), (6, 106, 4, None)]),
    ):
        cache.clear()
        call()
        assert [key if len(key) > 4 else key[:4] for key in _keys(cache)] == keys
    cache.clear()
    fft.dct(a + 1j)  # of the real part, then of the imaginary one
    assert "hits / misses: 1 / 1" in repr(cache)


def test_a_plan_that_is_given_is_not_cached(cache):
    a = cp.zeros((4, 8), complex)
    with cupyx.scipy.fft.get_fft_plan(a):
        cp.fft.fftn(a)
    cupyx.scipy.fft.fft(a, plan=cupyx.scipy.fft.get_fft_plan(a, axes=1))
    assert cache.get_curr_size() == 0


def test_nothing_is_cached_for_what_fails(cache):
    for shape, call in (((0,), cp.fft.fft), ((3, 0), cp.fft.fftn), ((2, 0), cp.fft.rfft)):
        with pytest.raises(ValueError, match="data points"):
            call(cp.zeros(shape)).get()
    with pytest.raises(IndexError):
        cp.fft.fft(cp.zeros(3), axis=2).get()
    assert cache.get_curr_size() == 0
    cp.fft.fft(cp.zeros((0, 3)))
    assert [(key, node.memsize) for key, node in cache] == [((3, 105, 0, None), 0)]


def test_what_was_used_longest_ago_makes_room(cache):
    cache.set_size(2)
    for n in (4, 5, 4, 6):
        cp.fft.fft(cp.zeros(n))
    assert [key[0] for key in _keys(cache)] == [6, 4]
    cache.set_size(1)
    assert [key[0] for key in _keys(cache)] == [6]
    cache.set_size(0)
    cp.fft.fft(cp.zeros(7))
    assert "enabled? False" in repr(cache) and cache.get_curr_size() == 0
    with pytest.raises(ValueError):
        cache.set_size(-2)


def test_memory_is_limited_too(cache):
    cache.set_memsize(2048)
    cp.fft.fft(cp.zeros(64))
    cp.fft.fft(cp.zeros(65, np.float32))
    assert cache.get_curr_memsize() == 1024 + 1024
    cp.fft.fft(cp.zeros(100))
    assert [(key[0], node.memsize) for key, node in cache] == [(100, 2048)]
    with pytest.raises(RuntimeError, match="memsize is too large"):
        cp.fft.fft(cp.zeros(1000))
    assert [key[0] for key in _keys(cache)] == [100]


def test_a_cache_is_a_threads_own(cache):
    cp.fft.fft(cp.zeros(4))
    sizes = []

    def work():
        cp.cuda.Device(0).use()
        sizes.append(cp.fft.config.get_plan_cache().get_curr_size())
        cp.fft.fft(cp.zeros(5))
        sizes.append(cp.fft.config.get_plan_cache().get_curr_size())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    assert sizes == [0, 1] and [key[0] for key in _keys(cache)] == [4]


def test_callbacks_have_plans_of_their_own(cache):
    source = "__device__ cufftDoubleComplex load(void* in, unsigned long long i, void* info, void* shared)"
    source += " { return ((cufftDoubleComplex*)in)[i]; }"
    a = cp.zeros(8, complex)
    with cp.fft.config.set_cufft_callbacks(cb_load=source, cb_ver="jit"):
        cp.fft.fft(a)
    cp.fft.fft(a)
    assert _keys(cache) == [(8, 105, 1, None), (8, 105, 1, None, source, "", 0, 0)]


def test_iteration_goes_on_where_a_plan_moves(cache):
    for n in (4, 5):
        cp.fft.fft(cp.zeros(n))
    steps = iter(cache)
    for _ in range(9):
        assert cache[next(steps)[0]] is not None
    with pytest.raises(KeyError):
        cache[("none",)]


def test_a_plan_over_several_devices_is_in_all_their_caches(cache):
    config = cp.fft.config
    config.use_multi_gpus = True
    config.set_cufft_gpus([0, 1])
    try:
        cp.fft.fft(cp.zeros(128, complex))
    finally:
        config.use_multi_gpus = False
    ((key, node),) = list(cache)
    assert key == (128, 105, 1, (0, 1)) and node.memsize == 1024 and PlanCache(dev=1).get_curr_size() == 0
    del cache[key]
    assert cache.get_curr_size() == cache.get_curr_memsize() == 0
