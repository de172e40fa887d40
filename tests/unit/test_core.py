"""The byte core, in both implementations, against NumPy itself."""

import platform
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rgpu import _native

DTYPES = ["?", "i1", "<i2", ">i4", "<f4", ">f8", "c8", "<c16", "S3", "U2", "V5", "m8[s]", "longdouble"]


@pytest.fixture(params=_native.AVAILABLE, ids=lambda core: core.name)
def core(request):
    return request.param


@st.composite
def regions(draw):
    """An array over random bytes: any axis order, steps, directions, gaps, and sometimes no element."""
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=5)))
    if draw(st.booleans()) and shape:
        shape = (draw(st.sampled_from([63, 64, 65, 130])), *shape[1:3])
    steps = [draw(st.sampled_from([1, 1, 2, -1, -3])) for _ in shape]
    full = tuple(n * abs(step) for n, step in zip(shape, steps, strict=True))
    seed = draw(st.integers(0, 2**32 - 1))
    count = int(np.prod(full, dtype=np.int64)) * dtype.itemsize
    memory = np.random.default_rng(seed).integers(0, 256, count, np.uint8)
    order = draw(st.permutations(range(len(full))))
    array = memory.view(dtype) if count else np.empty(0, dtype)
    array = array.reshape([full[axis] for axis in order]).transpose(np.argsort(order).astype(int))
    return array[(..., *(slice(None, None, step) for step in steps))]


def plain(array):
    """The bytes of the elements, whatever their type (NaNs and invalid code points included)."""
    return array.view(np.dtype((np.void, array.dtype.itemsize))).tobytes()


@settings(deadline=None, max_examples=150)
@given(regions(), st.booleans())
def test_pack_is_what_numpy_says_and_unpack_its_inverse(array, swap):
    expected = plain(array.byteswap() if swap else array)
    for core in _native.AVAILABLE:
        out = bytearray(array.nbytes)
        core.pack(array, out, swap=swap)
        assert bytes(out) == expected, core.name

        frame = np.zeros(array.size * 2, array.dtype)
        target = frame[: array.size].reshape(array.shape[::-1]).T
        core.unpack(out, target, swap=swap)
        assert plain(target) == plain(array), core.name
        assert not frame[array.size :].view(np.uint8).any() if array.nbytes else True


def test_broadcast_and_zero_dimensional(core):
    out = bytearray(24)
    core.pack(np.broadcast_to(np.int64(7), (3,)), out)
    assert np.frombuffer(out, np.int64).tolist() == [7, 7, 7]
    target = np.zeros((), ">f8")
    core.unpack(np.float64(2.5).tobytes(), target, swap=True)
    assert target[()] == 2.5


def test_structured_values_travel_but_are_not_swapped(core):
    array = np.array([(1, 2.0), (3, 4.0)], [("a", "<i2"), ("b", "<f8")])
    out = bytearray(array.nbytes)
    core.pack(array[::-1], out)
    assert np.frombuffer(out, array.dtype).tolist() == [(3, 4.0), (1, 2.0)]
    with pytest.raises(ValueError, match="one by one"):
        core.pack(array, out, swap=True)


@pytest.mark.parametrize("size", [0, 7, 9])
def test_a_buffer_of_another_size_is_refused(core, size):
    with pytest.raises(ValueError, match="8 bytes"):
        core.pack(np.zeros(2, np.float32), bytearray(size))
    with pytest.raises(ValueError, match="8 bytes"):
        core.unpack(bytes(size), np.zeros(2, np.float32))


def test_read_only_destinations_and_objects_are_refused(core):
    with pytest.raises(ValueError, match="read-only"):
        core.pack(np.zeros(2), bytes(16))
    with pytest.raises(ValueError, match="read-only"):
        core.unpack(bytes(16), np.broadcast_to(0.0, 2))
    with pytest.raises(TypeError, match="Python objects"):
        core.pack(np.array([None]), bytearray(8))


def bitwise_crc32c(data):
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = (register >> 1) ^ (0x82F63B78 if register & 1 else 0)
    return register ^ 0xFFFFFFFF


def test_crc32c_of_the_published_examples(core):
    assert core.crc32c(b"") == 0
    assert core.crc32c(b"123456789") == 0xE3069283
    assert core.crc32c(bytes(32)) == 0x8A9136AA
    assert core.crc32c(b"\xff" * 32) == 0x62A8AB43


@pytest.mark.parametrize("size", [1, 8, 255, 1023, 4096, 4099, 70_001])
def test_crc32c_is_the_definition_and_can_be_continued(core, size):
    data = np.random.default_rng(size).bytes(size)
    whole = core.crc32c(data)
    assert whole == bitwise_crc32c(data)
    assert core.crc32c(memoryview(data)[size // 3 :], core.crc32c(data[: size // 3])) == whole


def test_tune_malloc_says_what_happened(core):
    assert core.tune_malloc() is (platform.libc_ver()[0] == "glibc")


def test_the_module_exports_one_whole_implementation():
    assert _native.IMPLEMENTATION in _native.AVAILABLE
    for name in ("pack", "unpack", "crc32c", "tune_malloc"):
        assert getattr(_native, name) is getattr(_native.IMPLEMENTATION, name)


@pytest.mark.skipif(_native.COMPILED not in _native.AVAILABLE, reason="the C core is not built here")
def test_a_long_call_lets_other_threads_run():
    data, ticks = np.zeros(1 << 27, np.uint8), []
    worker = threading.Thread(target=lambda: [_native.COMPILED.crc32c(data) for _ in range(3)])
    worker.start()
    while worker.is_alive():
        ticks.append(time.perf_counter())
        worker.join(0.001)
    assert len(ticks) > 3
