"""Distributed arrays on four devices of two servers: every operation against NumPy on the whole."""

import itertools

import numpy as np
import pytest

from rgpu.cupyx.distributed import array as darray
from rgpu.cupyx.distributed.array import MAX, MIN, PROD, REPLICA, SUM, _index_arith

pytestmark = pytest.mark.filterwarnings("ignore::rgpu.errors.PerformanceWarning")
MAPS = {
    "rows": {0: [slice(0, 8)], 3: [slice(8, 16)]},
    "overlapping": {0: [slice(0, 10)], 1: [slice(6, 16), (slice(0, 16), slice(0, 3))], 2: [(slice(None), slice(2, 9))]},
    "strided": {0: [slice(0, 16, 2)], 2: [slice(1, 16, 2)]},
    "blocks": darray.make_2d_index_map([0, 5, 16], [0, 8, 12], [[{0}, {1, 2}], [{3}, {0}]]),
    "one": {2: [slice(None)]},
}


@pytest.fixture(scope="module")
def cp(servers):
    import rgpu

    rgpu.connect(*[server.address for server in servers], check_prediction=True)
    for number in range(4):
        with rgpu.cuda.Device(number):
            rgpu.zeros(1).get()
    yield rgpu
    rgpu.close()


def data(dtype="i8", seed=0):
    return np.random.default_rng(seed).integers(1, 4, (16, 12)).astype(dtype)


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("mode", [REPLICA, SUM, PROD, MAX, MIN])
def test_made_read_and_changed(cp, name, mode):
    host = data()
    whole = darray.distributed_array(host, MAPS[name], mode)
    assert whole.mode is mode and set(whole.devices) == set(MAPS[name]) and whole.shape == (16, 12)
    np.testing.assert_array_equal(whole.get(), host)
    for device, chunks in whole.all_chunks().items():
        assert all(chunk.device.id == device for chunk in chunks)
    replica = whole.change_mode("replica")
    for device, chunks in replica.all_chunks().items():
        for chunk, index in zip(chunks, replica.index_map[device]):
            np.testing.assert_array_equal(chunk.get(), host[index])
    for other in (SUM, MAX, REPLICA):
        np.testing.assert_array_equal(whole.change_mode(other).get(), host)


@pytest.mark.parametrize("before, after", list(itertools.permutations(MAPS, 2)))
def test_reshard(cp, before, after):
    host = data()
    whole = darray.distributed_array(host, MAPS[before], SUM).reshard(MAPS[after])
    assert whole.mode is SUM and set(whole.devices) == set(MAPS[after])
    np.testing.assert_array_equal(whole.get(), host)


def test_one_index_in_place_of_a_list(cp):
    """A tuple of slices is one index, as for an array, and no list: else each device holds rows of its own and all."""
    host = data()
    whole = darray.distributed_array(host, {0: slice(0, 9), 1: (slice(9, 16), slice(None)), 2: 15})
    shapes = {device: [chunk.shape for chunk in chunks] for device, chunks in whole.all_chunks().items()}
    assert shapes == {0: [(9, 12)], 1: [(7, 12)], 2: [(1, 12)]}
    np.testing.assert_array_equal(whole.get(), host)
    moved = whole.reshard({3: (slice(None), slice(0, 5)), 1: [(slice(0, 16), slice(4, 12)), slice(1)]})
    shapes = {device: [chunk.shape for chunk in chunks] for device, chunks in moved.all_chunks().items()}
    assert shapes == {3: [(16, 5)], 1: [(1, 12), (16, 8)]}  # in the order of their indices
    np.testing.assert_array_equal(moved.get(), host)


def test_from_a_device_and_a_list(cp):
    host = data()
    with cp.cuda.Device(1):
        there = cp.asarray(host)
    np.testing.assert_array_equal(darray.distributed_array(there, MAPS["blocks"]).get(), host)
    np.testing.assert_array_equal(darray.distributed_array(host.tolist(), MAPS["rows"]).get(), host)


@pytest.mark.parametrize("mode", [REPLICA, SUM])
def test_element_by_element(cp, mode):
    a, b = data("f8"), data("f8", 1)
    x = darray.distributed_array(a, MAPS["overlapping"], mode)
    y = darray.distributed_array(b, MAPS["overlapping"])
    np.testing.assert_allclose(cp.cos(x * y).get(), np.cos(a * b))
    np.testing.assert_allclose((2 - x / y).get(), 2 - a / b)
    np.testing.assert_array_equal((x > y).get(), a > b)
    square = cp.ElementwiseKernel("float64 x, float64 y", "float64 z", "z = (x - y) * (x - y)", "square")
    np.testing.assert_allclose(square(x, y).get(), (a - b) ** 2)
    z = darray.distributed_array(b, MAPS["rows"])
    with pytest.warns(Warning, match="Peer access"):
        np.testing.assert_allclose((x + z).get(), a + b)
    with pytest.raises(RuntimeError, match="Mixing"):
        x + cp.asarray(a)


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_reductions(cp, name, axis):
    host = data("f8")
    whole = darray.distributed_array(host, MAPS[name])
    for word, mode in (("sum", SUM), ("prod", PROD), ("max", MAX), ("min", MIN)):
        result = getattr(whole, word)(axis=axis)
        assert result.mode is mode
        np.testing.assert_allclose(result.get(), getattr(host, word)(axis=axis))
        result = getattr(cp, word)(whole, axis)  # by CuPy's function
        assert result.mode is mode
        np.testing.assert_allclose(result.get(), getattr(host, word)(axis=axis))
    np.testing.assert_allclose((whole.sum(axis=axis) * 2).get(), 2 * host.sum(axis=axis))


def test_products(cp):
    a, b = np.arange(200).reshape(10, 20), np.arange(240).reshape(20, 12)
    rows = darray.make_2d_index_map([0, 6, 10], [0, 11, 20], [[{0, 2}, {1, 3}], [{2, 3}, {0, 1}]])
    columns = darray.make_2d_index_map([0, 11, 20], [0, 7, 12], [[{0, 2}, {2, 3}], [{0, 1}, {1, 3}]])
    for mode in (REPLICA, SUM):
        x, y = darray.distributed_array(a, rows, mode), darray.distributed_array(b, columns, mode)
        product = x @ y
        assert product.mode is SUM
        np.testing.assert_array_equal(product.get(), a @ b)
    vector = np.arange(20)
    v = darray.distributed_array(vector, {d: [slice(0, 11), slice(11, 20)] for d in range(4)})
    np.testing.assert_array_equal((x @ v).get(), a @ vector)
    np.testing.assert_array_equal((v @ v).get(), vector @ vector)
    stack = np.stack([a, a + 1, a + 2])
    high = darray.distributed_array(stack, {d: [(slice(0, 3), *i) for i in indices] for d, indices in rows.items()})
    np.testing.assert_array_equal((high @ y).get(), stack @ b)
    # Each matrix of a stack may be cut at places of its own.
    cuts = [darray.make_2d_index_map([0, 10], [0, k, 20], [[{0}, {1}]]) for k in (11, 5)]
    ends = [darray.make_2d_index_map([0, k, 20], [0, 12], [[{0}], [{1}]]) for k in (11, 5)]
    stacked = [
        {d: [(slice(i, i + 1), *block) for i, one in enumerate(maps) for block in one[d]] for d in (0, 1)}
        for maps in (cuts, ends)
    ]
    left, right = np.stack([a, a + 1]), np.stack([b, b + 1])
    product = darray.distributed_array(left, stacked[0]) @ darray.distributed_array(right, stacked[1])
    np.testing.assert_array_equal(product.get(), left @ right)
    other = darray.make_2d_index_map([0, 9, 20], [0, 12], [[{0}], [{1}]])
    with pytest.raises(RuntimeError, match="Inconsistent"):
        x @ darray.distributed_array(b, other)
    with pytest.raises(RuntimeError, match="no device"):
        x @ darray.distributed_array(b, darray.make_2d_index_map([0, 11, 20], [0, 12], [[{0}], [{0}]]))


def test_what_is_refused(cp):
    whole = darray.distributed_array(data(), MAPS["rows"])
    with pytest.raises(TypeError, match="Implicit"):
        np.asarray(whole)
    with pytest.raises(RuntimeError, match="support"):
        whole.argmax(axis=0)
    with pytest.raises(RuntimeError, match="support"):
        cp.argmax(whole, axis=0)
    with pytest.raises(RuntimeError, match="support"):
        cp.std(whole, axis=0)
    with pytest.raises(RuntimeError, match="no device has"):
        whole._to_replica()
        darray.distributed_array(data(), {0: [slice(0, 8)]}).reshard({1: [slice(None)]})
    with pytest.raises(ValueError):
        darray.distributed_array(data(), {0: [slice(None, None, -1)]})


def test_a_mode_is_one_thing_to_numpy():
    assert np.random.default_rng(1).choice([SUM, REPLICA]) in (SUM, REPLICA) and repr(SUM) == "'sum'"


def test_slices_in_common():
    length = 40
    parts = [slice(a, b, s) for a in (0, 3, 7) for b in (9, 22, 40) for s in (1, 2, 3, 5, 6)]
    everything = np.arange(length)
    for a, b in itertools.product(parts, parts):
        both = _index_arith._slice_intersection(a, b, length)
        expected = sorted(set(everything[a]) & set(everything[b]))
        assert (list(everything[both]) if both else []) == expected
        if both:
            assert list(everything[a][_index_arith._index_for_subslice(a, both, length)]) == expected
