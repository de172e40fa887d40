"""Arrays as programs use them: one body for NumPy and for the CuPy face, results equal.

What CuPy does differently from NumPy on purpose (wrapping indices, refused conversions) stands at
the end, with CuPy's answers written out.
"""

import copy
import pickle

import numpy as np
import pytest

from tests.support.servers import program

pytestmark = pytest.mark.timeout(60)


def host(x):
    if isinstance(x, tuple | list):
        return [host(item) for item in x]
    return x.get() if hasattr(x, "get") else np.asarray(x)


def same(ours, theirs):
    ours, theirs = host(ours), host(theirs)
    if isinstance(ours, list):
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs):
            same(a, b)
        return
    assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
    np.testing.assert_array_equal(ours, theirs)


def square(xp):
    return xp.arange(24.0).reshape(4, 6)


BODIES = {
    "basic index": lambda xp: [
        square(xp)[1],
        square(xp)[1, 2],
        square(xp)[::-1, 1:5:2],
        square(xp)[..., None, 0],
    ],
    "integer arrays": lambda xp: [square(xp)[[1, 3]], square(xp)[:, [0, -1]], square(xp)[[0, 1], [2, 3]]],
    "separated integer arrays": lambda xp: xp.arange(120).reshape(2, 3, 4, 5)[[0, 1], :, [1, 2]],
    "masks": lambda xp: [square(xp)[square(xp) > 7], square(xp)[np.array([True, False, True, False])]],
    "reshape": lambda xp: [square(xp).T.reshape(3, 8), square(xp).reshape(-1, 2), square(xp).ravel("F")],
    "transposition": lambda xp: [xp.moveaxis(xp.zeros((2, 3, 4)), 0, -1), xp.rollaxis(xp.ones((2, 3, 4)), 2)],
    "split": lambda xp: [
        *xp.split(square(xp), 2),
        *xp.array_split(square(xp), 4, axis=1),
        *xp.hsplit(square(xp), 3),
    ],
    "turned": lambda xp: [
        xp.flip(square(xp)),
        xp.rot90(square(xp), 3),
        xp.fliplr(square(xp)),
        xp.flipud(square(xp)),
    ],
    "at least": lambda xp: [
        xp.atleast_1d(xp.array(3)),
        xp.atleast_2d(xp.arange(3)),
        xp.atleast_3d(square(xp)),
    ],
    "broadcast": lambda xp: [
        xp.broadcast_to(xp.arange(3), (2, 3)),
        *xp.broadcast_arrays(xp.arange(3), xp.ones((2, 1))),
    ],
    "diagonal": lambda xp: [square(xp).diagonal(1), xp.diagonal(square(xp), -1)],
    "grids": lambda xp: [xp.mgrid[0:3, 0:4:2], *xp.ogrid[0:2, -1:1:3j], *xp.ix_(xp.arange(2), xp.arange(3))],
    "joined": lambda xp: [xp.r_[xp.arange(3), 7, 8.5], xp.c_[xp.arange(3), xp.arange(3)]],
    "nothing in it": lambda xp: [xp.zeros((0, 3)).sum(axis=0), xp.ones((2, 0))[:, :0], xp.arange(0)],
    "no dimension": lambda xp: [xp.array(2.5) * 2, xp.array(1)[()], xp.array(3).reshape(1, 1)],
    "Fortran": lambda xp: [xp.asfortranarray(square(xp)).T, xp.array(square(xp), order="F")[1:, ::2] + 1],
    "complex": lambda xp: [(square(xp) + 1j).imag, (square(xp) * 1j).real, (square(xp) + 2j).conj()],
    "dtype classes": lambda xp: [square(xp).astype(xp.int8), xp.arange(4, dtype=xp.uint16).view(xp.uint8)],
    "apply_along_axis": lambda xp: xp.apply_along_axis(lambda row: row * 2, 1, square(xp)),
    "flat": lambda xp: [square(xp).flat[5], square(xp).T.flat[2:7]],
    "unary": lambda xp: [-square(xp), abs(-square(xp)), ~xp.arange(3), +xp.arange(3)],
    "reflected": lambda xp: [
        2 - xp.arange(3),
        2 ** xp.arange(3),
        7 // xp.arange(1, 4),
        1 / xp.arange(1.0, 3.0),
    ],
    "divmod": lambda xp: divmod(xp.arange(7), 3),
    "outer and reduce": lambda xp: [
        xp.add.outer(xp.arange(3), xp.arange(2)),
        xp.multiply.reduce(xp.arange(1, 5)),
    ],
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_the_same_as_numpy(cp, body):
    same(body(cp), body(np))


def written(xp):
    a = square(xp)
    view = a[1:3]
    view[:, 0] = -1
    view += 100
    a[0, [1, 2]] = xp.array([7.0, 8.0])
    a[a > 115] = 0
    a.T[5] = 3
    a[3].fill(9)
    a.flat[::7] = 5
    xp.copyto(a[:1], 2, where=a[:1] > 6)
    xp.fill_diagonal(a, 1)
    xp.put(a, xp.array([2, 3]), xp.array([50.0, 60.0]))
    xp.putmask(a, a == 50, 51)
    xp.add.at(a, (xp.array([0, 0]), xp.array([1, 1])), 1)
    a.sort(axis=0)
    return a


def test_writes_through_views_are_seen(cp):
    same(written(cp), written(np))


UPLOADS = {
    "strided": np.arange(24.0).reshape(4, 6)[::2, ::-3],
    "Fortran": np.asfortranarray(np.arange(6).reshape(2, 3)),
    "empty": np.zeros((0, 4), np.float32),
    "scalar": np.array(3.5),
    "big-endian": np.arange(5, dtype=">i4"),
    "records": np.array([(1, 2.0), (3, 4.0)], dtype=[("a", "i8"), ("b", "f8")]),
    "half": np.arange(4, dtype=np.float16),
    "large": np.arange(500_000.0),
    "read-only": np.broadcast_to(np.arange(3), (2, 3)),
}


@pytest.mark.parametrize("array", UPLOADS.values(), ids=UPLOADS.keys())
def test_what_goes_up_comes_down(cp, array):
    back = cp.asarray(array).get()
    assert back.dtype == array.dtype.newbyteorder("=") and back.shape == array.shape
    np.testing.assert_array_equal(back, array)
    np.testing.assert_array_equal(cp.asnumpy(cp.array(array, order="F")), array)


def test_bfloat16(cp):
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    a = cp.arange(4).astype(bfloat16)
    assert a.get().dtype == bfloat16 and (a + a).get().tolist() == [0, 2, 4, 6]


def test_the_source_of_an_upload_may_be_overwritten_at_once(cp):
    source = np.ones(300_000)
    a = cp.asarray(source)
    source[:] = 5
    assert float(a.sum()) == 300_000


def test_get_and_set(cp):
    a, out = cp.zeros((2, 3), order="F"), np.empty((2, 3))
    a.set(np.arange(6.0).reshape(2, 3))
    assert a.get(out=out) is out and out[1].tolist() == [3, 4, 5]
    for wrong, error in (
        (np.empty((2, 3), int), TypeError),
        (np.empty((3, 2)), ValueError),
        ([1], TypeError),
    ):
        with pytest.raises(error):
            a.get(out=wrong)
        with pytest.raises(error):
            a.set(wrong)


def test_copies_are_independent_and_keep_their_order(cp):
    a = cp.asfortranarray(cp.arange(6.0).reshape(2, 3))
    for other in (copy.copy(a), copy.deepcopy(a), pickle.loads(pickle.dumps(a)), a.copy()):
        other[0] = 7
        assert float(a[0, 0]) == 0
    assert pickle.loads(pickle.dumps(a)).flags.f_contiguous


def test_an_array_is_unpickled_where_nothing_was_imported(cp, servers):
    """A process of a pool of processes, for one: what the pickle names must bring the array's class along."""
    source = "import pickle, sys; x = pickle.loads(bytes.fromhex(sys.argv[1])); print(type(x).__name__, (x + x).sum())"
    done = program(source, *servers, arguments=[pickle.dumps(cp.arange(4.0)).hex()])
    assert done.stdout.split() == ["ndarray", "12.0"]


def test_libraries_find_no_attributes_of_other_kinds_of_arrays(cp):
    """Dask takes what has ``_meta`` for its own, xarray what has ``_in_memory``, pandas what has ``_values``."""
    a = cp.arange(3)
    for name in ("_meta", "_name", "_values", "_data", "_typ", "_in_memory", "todense", "result", "chunks"):
        assert not hasattr(a, name), name


def test_the_ends_of_a_slice_may_be_on_the_device(cp):
    """As CuPy takes them, by int(): scikit-learn's PCA cuts its components so."""
    a = cp.arange(10)
    for end in range(3, 6):
        n = cp.asarray(end)
        same(a[:n], np.arange(10)[:end])
        same(a.reshape(2, 5)[cp.array([1, 0]), :n], np.arange(10).reshape(2, 5)[[1, 0], :end])
        same(a[1.5 : n + 0.5], np.arange(10)[1:end])
    b = cp.zeros(4, int)
    for end in range(3):
        b[: cp.asarray(end)] = end
    same(b, np.array([2, 2, 0, 0]))
    with pytest.raises(TypeError, match="must be int or None"):
        a[cp.arange(2) :]


def test_a_large_array_is_printed_without_being_fetched(cp):
    a = cp.arange(1_000_000).reshape(1000, 1000)
    before = cp.stats()["bytes_received"]
    assert repr(a) == repr(np.arange(1_000_000).reshape(1000, 1000))
    assert str(a.T) == str(np.arange(1_000_000).reshape(1000, 1000).T)
    assert cp.stats()["bytes_received"] - before < 10_000


def test_a_subclass_hands_its_own_arguments_on(cp):
    class Labelled:
        def __init__(self, *args, label=None, **kwargs):
            self.label = label
            super().__init__(*args, **kwargs)

    class Column(Labelled, cp.ndarray):
        def __new__(cls, values, label=None):
            return cp.asarray(values).view(type=cls)

    column = Column(np.arange(3), label="x")
    assert type(column) is Column and column.label == "x" and column.tolist() == [0, 1, 2]


def test_a_subclass_stays_one(cp):
    class Named(cp.ndarray):
        def __array_finalize__(self, obj):
            self.name = getattr(obj, "name", None)

    a = cp.arange(3).view(Named)
    a.name = "x"
    assert type(a[1:]) is Named and a[1:].name == "x"
    assert type(a + 1) is Named and type(cp.arange(3) * a) is Named and (a + 1).name == "x"


def test_numpy_functions_are_dispatched(cp):
    a = cp.arange(4.0)
    assert isinstance(np.sin(a), cp.ndarray) and isinstance(np.concatenate([a, a]), cp.ndarray)
    assert float(np.sum(a)) == 6
    with pytest.raises(TypeError):
        np.add(a, np.ones(4))


def test_functions_that_take_host_arrays_take_large_ones(cp):
    """What travels inside a command is limited; what CuPy's ``asanyarray`` takes is not."""
    host = np.arange(20_000.0)
    for size in (10, host.size):
        device = cp.array(host[:size])
        assert bool(cp.allclose(host[:size], device)) and bool(np.allclose(host[:size], device + 1e-9))
        assert cp.isclose(device, host[:size] + 1).sum() == 0
        assert cp.common_type(host[:size], device.astype(np.float32)) is np.float64
    with pytest.raises(TypeError, match="Unsupported type"):
        cp.maximum(cp.array(host), host)


def test_implicit_conversion_is_refused(cp):
    a = cp.arange(4.0)
    for convert in (
        np.asarray,
        lambda x: np.ones(4).dot(x),
        lambda x: x + [1, 2, 3, 4],
        lambda x: cp.add(x, np.ones(4)),
    ):
        with pytest.raises(TypeError):
            convert(a)
    with pytest.raises(TypeError, match=r"Please use `\.get\(\)`"):
        np.asarray(a)


def test_integer_array_indices_wrap(cp):
    assert cp.arange(3)[[1, 3]].tolist() == [1, 0]
    with pytest.raises(IndexError):
        cp.arange(3)[3]


@pytest.mark.parametrize("kind", ["f2", "f4", "f8"])
def test_floats_that_an_integer_cannot_hold_become_the_nearest_one(cp, kind):
    values = cp.array([-1.5, np.inf, -np.inf, 2.75], kind)
    for dtype in (np.int32, np.int64, np.uint32, np.uint64):
        low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
        expected = [max(-1, low), high, low, 2]
        assert values.astype(dtype).tolist() == expected
        target = cp.empty(4, dtype)
        target[:] = values
        assert target.tolist() == expected
    assert cp.array([-3.0, 7.0], kind).astype(np.uint8).tolist() == [0, 7]
    assert cp.array([np.nan], kind).astype(np.int64).tolist() == [-(1 << 63)]
    assert cp.array([np.nan], kind).astype(np.int32).tolist() == [0 if kind != "f8" else -(1 << 31)]


def test_errors_are_numpys(cp):
    a = cp.zeros((2, 3))
    for wrong, error in (
        (lambda: a + cp.ones(4), ValueError),
        (lambda: a.reshape(4), ValueError),
        (lambda: a[0, 0, 0], IndexError),
        (lambda: a[2], IndexError),
        (lambda: a.sum(axis=2), np.exceptions.AxisError),
        (lambda: cp.empty(-1), ValueError),
        (lambda: bool(a), ValueError),
        (lambda: len(cp.array(1)), TypeError),
        (lambda: a["x"], IndexError),
        (lambda: cp.array(["a"]), ValueError),
        (lambda: cp.zeros(3, "O"), ValueError),
        (lambda: a[1.5], IndexError),
    ):
        with pytest.raises(error):
            wrong()


def test_a_scalar_that_is_a_subclass_of_int_is_no_handle(cp):
    class Number(int):
        pass

    assert (cp.arange(4) == Number(3)).tolist() == [False, False, False, True]


def test_another_devices_array_is_copied_with_a_warning(two):
    cp = two
    a = cp.arange(3)
    with cp.cuda.Device(1):
        b = cp.ones(3)
        with pytest.warns(RuntimeWarning, match="different from the current device"):
            c = a + b
        assert c.device.id == 1
    assert c.tolist() == [1, 2, 3]


def test_the_cuda_array_interface_leads_back_to_the_array(cp):
    class Foreign:
        def __init__(self, array):
            self.__cuda_array_interface__ = array.__cuda_array_interface__

    a = cp.arange(10.0)
    view = cp.asarray(Foreign(a[2:8:2]))
    view[:] = -1
    assert a.tolist() == [0, 1, -1, 3, -1, 5, -1, 7, 8, 9]


def test_files(cp, tmp_path):
    a = cp.arange(6.0).reshape(2, 3)
    cp.save(tmp_path / "a.npy", a)
    same(cp.load(tmp_path / "a.npy"), a)
    cp.savez(tmp_path / "b.npz", x=a, y=a[0])
    with cp.load(tmp_path / "b.npz") as archive:
        same(archive["y"], a[0])
    cp.savetxt(tmp_path / "c.txt", a)
    same(cp.loadtxt(tmp_path / "c.txt"), a)


def test_shared_memory_is_known_here(cp):
    a = cp.arange(10)
    before = cp.stats()["round_trips"]
    assert cp.shares_memory(a[:5], a[4:]) and not cp.shares_memory(a[::2], a[1::2])
    assert cp.may_share_memory(a[::2], a[1::2]) and not cp.may_share_memory(a, a.copy())
    assert cp.stats()["round_trips"] == before


def test_views_and_arithmetic_do_not_wait(cp):
    a = cp.arange(24.0).reshape(4, 6)
    before = cp.stats()["round_trips"]
    for _ in range(50):
        b = (a.T[1:3].ravel() * 2 + a[[0, 1], :4].reshape(-1)[None, :]).squeeze()
        a[0] = 1
        a[[1, 2]] = b[:6]
        b = a.astype("f4").copy()
    assert cp.stats()["round_trips"] == before


def test_reduced_view_has_as_few_dimensions_as_can_be(cp):
    a = cp.arange(24).reshape(2, 3, 4)
    x = a.get()
    cases = {
        (24,): a, (2, 4): a[:, 1, :], (4, 6): a.transpose(2, 0, 1), (2, 8): a[:, :2], (4, 3, 2): a.T,
        (12,): a[..., ::2],
    }  # fmt: skip
    for shape, view in cases.items():
        flat = view.reduced_view()
        assert flat.shape == shape
        np.testing.assert_array_equal(flat.get().ravel(), view.get().ravel())
    a.reduced_view()[5] = -1
    x.ravel()[5] = -1
    np.testing.assert_array_equal(a.get(), x)
    assert cp.zeros((1, 1)).T.reduced_view().shape == (1,)


def test_an_array_like_a_local_one(cp):
    x = np.asfortranarray(np.ones((2, 3), "f4"))
    for make in (cp.zeros_like, cp.ones_like, cp.empty_like, lambda a: cp.full_like(a, 7)):
        y = make(x)
        assert type(y) is cp.ndarray and (y.shape, y.dtype, y.strides) == (x.shape, x.dtype, x.strides)
    np.testing.assert_array_equal(cp.full_like(x[:, ::2], 7).get(), np.full((2, 2), 7))


def test_shapes_may_be_arrays_of_numbers(cp):
    a = cp.arange(6)
    assert cp.reshape(a, np.array([2, -1])).shape == a.reshape(np.array([2, 3])).shape == (2, 3)
    assert cp.reshape(a, np.int64(6)).shape == (6,)
    assert cp.broadcast_to(a, np.array([4, 6])).shape == (4, 6)
    b = cp.ones((2, 3, 4))
    axes, s = np.array([0, 1]), np.array([4, 4])
    np.testing.assert_allclose(cp.fft.fft2(b, s=s, axes=axes).get(), np.fft.fft2(b.get(), s=(4, 4), axes=(0, 1)))
    np.testing.assert_array_equal(cp.fft.fftshift(b, axes=axes).get(), b.get())


def test_a_sequence_inside_an_index_may_be_a_tuple(cp):
    x = np.arange(24).reshape(2, 3, 4)
    for index in [((0, 1), (2, 0)), ((1, 0), (2, 0), slice(None)), (slice(None), (0, 2))]:
        np.testing.assert_array_equal(cp.asarray(x)[index].get(), x[index])


def reshaped_in_place(xp):
    a = xp.arange(12.0)
    tail, table = a[2:], a.reshape(3, 4)
    a.shape = (4, 3)
    a[0] = 7
    table[2] = -1  # views of what had another shape before
    late = tail[::2]
    a.shape = 12
    late += 1
    return [a, tail, table, late, table.T[1:], a[3:]]


def test_views_outlive_a_change_of_their_bases_shape(cp):
    for _ in range(3):  # by the third time the C core issues what has been issued before
        same(reshaped_in_place(cp), reshaped_in_place(np))
    a = cp.arange(6.0)
    view, pointer = a[2:], a.data.ptr
    a.shape = (2, 3)
    assert a.data.ptr == pointer and view[1:].data.ptr == pointer + 24 and cp.shares_memory(view[1:], a[1])


def test_errors_of_axes_say_what_numpys_say(cp):
    with pytest.raises(np.exceptions.AxisError) as caught:
        cp.ones((2, 3)).sum(axis=5)
    assert str(caught.value) == "axis 5 is out of bounds for array of dimension 2"


@pytest.mark.parametrize("name", ["sum", "mean", "median", "argmax", "ptp", "trapezoid", "add.reduce", "linalg.norm"])
def test_an_axis_on_the_device_is_looked_at(cp, name):
    """CuPy refuses some of these; none may be taken for another axis."""
    module, _, method = name.rpartition(".")
    owner = getattr(cp, module) if module else cp
    x = cp.ones((3, 4))
    for axis in (0, 1, 0):
        assert getattr(owner, method)(x, axis=cp.array(axis)).get().shape == ((4,), (3,))[axis]


def test_the_words_of_get_and_set(cp):
    x = cp.zeros((2, 3), "f")
    for wrong, text in (
        (lambda: x.get(out=np.zeros((2, 3))), "float64 array cannot be obtained from float32 array"),
        (lambda: x.get(out=np.zeros((2, 6), "f")[:, ::2]), "`out` cannot be specified when copying to non-contiguous"),
        (lambda: x.get(order="K"), "unsupported order: K"),
        (lambda: x.set(np.zeros((3, 2), "f")), r"Shape mismatch. Old shape: \(2, 3\), new shape: \(3, 2\)"),
    ):
        with pytest.raises((TypeError, RuntimeError, ValueError), match=text):
            wrong()


def test_quantiles_by_integers_are_the_arrays_dtype(cp):
    """As in CuPy, which makes the dtype of the array's and of the number's; percentages are divided first."""
    x = cp.arange(5, dtype="i4")
    for q, dtype in ((0, "i4"), (1.0, "f8"), (1, "i4"), ((0, 1), "i8"), (0.5, "f8")):
        assert cp.quantile(x, q).get().dtype == cp.quantile(x, q).dtype == dtype
        assert cp.percentile(x, q).get().dtype == "f8"


def test_what_floats_and_their_kinds_decide(cp):
    x = cp.arange(6, dtype="f").reshape(2, 3)
    for keepdims, shape in ((0.0, (3,)), (1.0, (1, 3)), (0.0, (3,))):
        assert cp.percentile(x, 50, axis=0, keepdims=keepdims).get().shape == shape
    for upper, dtype in ((2.5, "f"), (np.float64(2.5), "d"), (2.5, "f")):
        assert cp.histogram(x, 3, (0, upper))[1].get().dtype == dtype
