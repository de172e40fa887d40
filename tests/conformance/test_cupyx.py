"""cupyx on an embedded server, against SciPy on the host."""

import importlib
import pickle

import numpy as np
import pytest

import rgpu as cp
from rgpu import cupyx

pytest.importorskip("scipy")
pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module", autouse=True)
def server():
    """One embedded server for the module; it checks every predicted layout."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RGPU_CHECK_PREDICTION", "1")
        cp.connect("local")
        yield
        cp.close()


IMAGE = np.arange(30.0).reshape(5, 6) ** 1.5 % 7


@pytest.mark.parametrize(
    ("path", "arguments"),
    [
        ("special.gamma", (IMAGE + 1,)),
        ("special.xlogy", (IMAGE, 2.0)),
        ("special.erf", (IMAGE.astype(np.float32),)),
        ("special.logsumexp", (IMAGE,)),
        ("ndimage.gaussian_filter", (IMAGE, 1.5)),
        ("ndimage.sobel", (IMAGE,)),
        ("ndimage.zoom", (IMAGE, 1.5)),
        ("signal.fftconvolve", (IMAGE, IMAGE)),
        ("signal.windows.hann", (9,)),
        ("fft.rfft", (IMAGE.astype(np.float32),)),
        ("fftpack.fft", (IMAGE,)),
        ("linalg.expm", (IMAGE[:3, :3] / 9,)),
        ("stats.zscore", (IMAGE,)),
        ("spatial.distance.cdist", (IMAGE, IMAGE[:2])),
    ],
)
def test_scipy_functions(path, arguments):
    module, _, name = path.rpartition(".")
    theirs = getattr(importlib.import_module(f"scipy.{module}"), name)
    ours = cupyx.scipy
    for part in path.split("."):
        ours = getattr(ours, part)
    device = [cp.array(x) if isinstance(x, np.ndarray) else x for x in arguments]
    expected = theirs(*arguments)
    for _ in range(2):  # as answered, then as learned
        result = ours(*device).get()
        np.testing.assert_allclose(result, expected, rtol=1e-5)
        assert result.dtype == expected.dtype


def test_a_learned_signature_never_waits():
    image = cp.array(IMAGE)
    cupyx.scipy.ndimage.gaussian_filter(image, 1.0)
    cupyx.scipy.special.gamma(image)
    before = cp.stats()["round_trips"]
    cupyx.scipy.ndimage.gaussian_filter(image, 2.0)
    cupyx.scipy.special.gamma(image[0])
    assert cp.stats()["round_trips"] == before


def test_output_arguments():
    image, out = cp.array(IMAGE), cp.zeros_like(cp.array(IMAGE))
    assert cupyx.scipy.ndimage.sobel(image, 0, out) is out
    assert cupyx.scipy.special.gamma(image, out=out) is out
    np.testing.assert_allclose(out.get(), importlib.import_module("scipy.special").gamma(IMAGE))


def test_callables_and_missing_names_are_refused_by_name():
    with pytest.raises(NotImplementedError, match="stft with a Python callable"):
        cupyx.scipy.signal.stft(cp.array(IMAGE), detrend=lambda x: x)
    with pytest.raises(AttributeError, match="no_such_function"):
        cupyx.scipy.signal.no_such_function  # noqa: B018


def test_an_update_that_cannot_be_is_refused_at_once(cp):
    a = cp.zeros(5)
    with pytest.raises(IndexError, match="integer"):
        cp.add.at(a, cp.array([0.5, 1]), cp.ones(2))
    with pytest.raises(ValueError, match="broadcast"):
        cp.add.at(a, cp.array([0, 1]), cp.ones(3))
    with pytest.raises(ValueError, match="broadcast"):
        cupyx.scatter_add(a, [0, 1], cp.ones(3))
    assert not a.any()


def test_scatter():
    a = cp.zeros(4)
    cupyx.scatter_add(a, cp.array([1, 1, 2]), 1.5)
    cupyx.scatter_max(a, [0, 0], cp.array([3.0, 7.0]))
    cupyx.scatter_min(a, (slice(3, 4),), -1.0)
    assert a.get().tolist() == [7.0, 3.0, 1.5, -1.0]
    np.testing.assert_allclose(cupyx.rsqrt(cp.array([4.0])).get(), [0.5])


def test_small_things():
    assert cupyx.zeros_like_pinned(cp.ones((2, 3), "f")).dtype == np.float32
    with cupyx.errstate(linalg="raise"):
        assert cupyx.geterr()["linalg"] == "raise"
    assert cupyx.geterr()["linalg"] == "ignore"
    assert "CuPy Version" in str(cupyx.get_runtime_info())
    times = cupyx.profiler.benchmark(lambda: cp.ones(3) + 1, n_repeat=3, n_warmup=1)
    assert times.cpu_times.shape == (3,) and times.gpu_times.shape == (1, 3)
    assert cupyx.scipy.get_array_module(cp.ones(1)).__name__.endswith("cupyx.scipy")
    inverse = cupyx.linalg.invh(cp.eye(3) * 4)
    np.testing.assert_allclose(inverse.get(), np.eye(3) / 4)


DENSE = np.array([[0, 1.0, 0, 2], [0, 0, 0, 0], [0, 0, 3, 0]])


@pytest.mark.parametrize("format", ["csr", "csc", "coo", "dia"])
def test_sparse_arithmetic(format):
    sparse, theirs = cupyx.scipy.sparse, importlib.import_module("scipy.sparse")
    matrix = sparse.csr_matrix(cp.array(DENSE)).asformat(format) if format != "dia" else None  # as CuPy
    matrix = sparse.dia_matrix(theirs.dia_matrix(DENSE)) if matrix is None else matrix
    assert matrix.format == format and sparse.issparse(matrix)
    dense = {
        "toarray": (matrix.toarray(), DENSE),
        "product": ((matrix @ matrix.T).toarray(), DENSE @ DENSE.T),
        "vector": (matrix @ cp.ones(4), DENSE @ np.ones(4)),
        "left": (cp.ones(3) @ matrix, np.ones(3) @ DENSE),
        "sum": ((matrix + matrix * 2 - matrix).toarray(), DENSE * 2),
        "axis": (matrix.sum(axis=0), DENSE.sum(axis=0, keepdims=True)),
        "diagonal": (matrix.diagonal(), DENSE.diagonal()),
        "multiply": (matrix.multiply(matrix).toarray(), DENSE * DENSE),
    }
    for name, (ours, theirs) in dense.items():
        np.testing.assert_allclose(ours.get(), theirs, err_msg=name)
    assert (matrix.get().toarray() == DENSE).all()
    copied = pickle.loads(pickle.dumps(matrix))  # noqa: S301 - our own
    assert (copied.toarray().get() == DENSE).all()


def test_sparse_construction_and_solvers():
    sparse = cupyx.scipy.sparse
    matrix = sparse.csr_matrix(
        (cp.array([1.0, 2, 3]), (cp.array([0, 1, 2]), cp.array([0, 1, 2]))), shape=(3, 3)
    )
    np.testing.assert_allclose((sparse.eye(3) + matrix).diagonal().get(), [2, 3, 4])
    assert sparse.hstack([matrix, matrix]).shape == (3, 6)
    assert sparse.random(9, 9, 0.5, format="csr").nnz == 40
    np.testing.assert_allclose(sparse.linalg.spsolve(matrix, cp.ones(3)).get(), [1, 1 / 2, 1 / 3])
    with pytest.warns(sparse.SparseEfficiencyWarning):
        matrix[0, 2] = 5.0
    assert matrix[0].toarray().get().tolist() == [[1, 0, 5]]
    matrix.data *= 0
    matrix.eliminate_zeros()
    assert matrix.nnz == 0
    with pytest.raises(ValueError, match="Only bool"):
        sparse.csr_matrix((cp.arange(3), cp.arange(3), cp.arange(4)))
    with pytest.raises(RuntimeError, match="singular"):
        sparse.linalg.splu(matrix)
    factors = sparse.linalg.splu(sparse.csc_matrix(cp.array([[2.0, 0], [1, 4]])))
    np.testing.assert_allclose(factors.solve(cp.array([2.0, 9])).get(), [1, 2])
    assert isinstance(factors, sparse.linalg.SuperLU) and factors.shape == (2, 2) and factors.L.nnz >= 2


def test_interpolators():
    theirs = importlib.import_module("scipy.interpolate")
    x, at = np.linspace(0, 5, 9), np.linspace(0, 5, 17)
    points, device_at = (cp.array(x), cp.array(np.sin(x))), cp.array(at)
    for name in ("CubicSpline", "PchipInterpolator", "Akima1DInterpolator", "make_interp_spline"):
        ours = getattr(cupyx.scipy.interpolate, name)(*points)
        np.testing.assert_allclose(ours(device_at).get(), getattr(theirs, name)(x, np.sin(x))(at))
    before = cp.stats()["round_trips"]
    ours(device_at * 0.5)
    assert cp.stats()["round_trips"] == before
    spline = cupyx.scipy.interpolate.CubicSpline(*points).derivative()
    np.testing.assert_allclose(
        spline(device_at).get(), theirs.CubicSpline(x, np.sin(x)).derivative()(at), atol=1e-12
    )


def test_objects_of_scipy_have_its_classes_methods_and_errors():
    interpolate, signal, spatial = cupyx.scipy.interpolate, cupyx.scipy.signal, cupyx.scipy.spatial
    x = cp.linspace(0, 1, 9)
    spline = interpolate.CubicSpline(x, cp.sin(x))
    assert isinstance(spline, interpolate.PPoly) and spline.c.shape == (4, 8) and spline.axis == 0
    assert isinstance(interpolate.PPoly.from_spline(interpolate.make_interp_spline(x, x)), interpolate.PPoly)
    assert interpolate.BSpline.design_matrix(cp.array([0.5]), cp.array([0.0, 0, 1, 1]), 1).toarray().get().tolist() == [
        [0.5, 0.5]
    ]
    with pytest.raises(ValueError, match="match"):  # where the object is made, not later
        interpolate.CubicSpline(x, x[:3])
    system = signal.lti([1.0], [1.0, 2.0])
    assert isinstance(system, signal.TransferFunction) and isinstance(system.to_ss(), signal.StateSpace)
    assert system.poles.get().tolist() == [-2.0]
    system.den = cp.array([1.0, 3.0])
    assert system.poles.get().tolist() == [-3.0]
    np.testing.assert_allclose(signal.step(system)[1].get()[-1], 1 / 3, rtol=1e-2)
    tree = spatial.KDTree(cp.array([[0.0, 0], [1, 1], [5, 5]]))
    assert tree.query(cp.array([0.9, 0.9]))[1].get() == 1
    near = tree.query_ball_point(cp.zeros((2, 2)), 2.0, return_sorted=True)
    assert [row.get().tolist() for row in near] == [[0, 1], [0, 1]]
    triangles = spatial.Delaunay(cp.array([[0.0, 0], [0, 1], [1, 0], [1, 1]]))
    assert triangles.simplices.shape == (2, 3)
    assert triangles.find_simplex(cp.array([[2.0, 2]])).get().tolist() == [-1]
    with pytest.raises(NotImplementedError, match="callable"):
        interpolate.RBFInterpolator(cp.ones((3, 2)), cp.ones(3), kernel=lambda r: r)


def test_a_filter_continues_from_its_last_inputs_and_outputs():
    """CuPy's state, which is not SciPy's: ``len(b) + len(a) - 2`` numbers."""
    signal, theirs = cupyx.scipy.signal, importlib.import_module("scipy.signal")
    b, a, x = np.array([0.2, 0.3]), np.array([1.0, -0.4, 0.1]), np.arange(12.0)
    whole = theirs.lfilter(b, a, x)
    device = [cp.array(v) for v in (b, a, x)]
    first, state = signal.lfilter(device[0], device[1], device[2][:5], zi=cp.zeros(3))
    np.testing.assert_allclose(state.get(), [x[4], whole[3], whole[4]])
    second, _ = signal.lfilter(device[0], device[1], device[2][5:], zi=state)
    np.testing.assert_allclose(np.concatenate([first.get(), second.get()]), whole)
    steady = signal.lfilter_zi(device[0], device[1])
    np.testing.assert_allclose(signal.lfilter(device[0], device[1], cp.ones(4), zi=steady)[0].get(), [0.5 / 0.7] * 4)
    sos = cp.array([[1.0, 2, 1, 1, -0.3, 0.1], [1, 0, 0, 1, 0.2, 0]])
    level = float(signal.sosfilt(sos, cp.ones(200))[-1])
    np.testing.assert_allclose(signal.sosfilt(sos, cp.ones(3), zi=signal.sosfilt_zi(sos))[0].get(), [level] * 3)


def test_sparse_arrays_are_arrays():
    sparse, theirs = cupyx.scipy.sparse, importlib.import_module("scipy.sparse")
    dense = np.array([[1.0, 0, 2], [0, 0, 3]])
    array = sparse.csr_array(cp.array(dense))
    assert isinstance(array, sparse.sparray) and sparse.issparse(array) and not sparse.isspmatrix(array)
    np.testing.assert_allclose((array * array).toarray().get(), dense**2)
    np.testing.assert_allclose((array @ array.T).toarray().get(), dense @ dense.T)
    assert array.sum(axis=0).shape == (3,) and isinstance(array.T, sparse.csc_array)
    assert isinstance(array.get(), theirs.csr_array) and not hasattr(array, "getnnz")
    row = sparse.coo_array(cp.array([0.0, 4, 0, 5]))
    assert row.shape == (4,) and row.coords[0].get().tolist() == [1, 3]
    assert row.tocsr().reshape(2, 2).toarray().get().tolist() == [[0, 4], [0, 5]]
    assert sparse.eye_array(2).toarray().get().tolist() == [[1, 0], [0, 1]]
    assert sparse.permute_dims(array).shape == (3, 2)
    with pytest.raises(ValueError, match="exceeds"):
        sparse.coo_matrix((cp.ones(1), (cp.array([2]), cp.array([0]))), shape=(2, 2))
    copy = pickle.loads(pickle.dumps(array))
    assert type(copy) is type(array) and copy.nnz == 3


@pytest.mark.parametrize("name", ["cg", "cgs", "bicgstab", "gmres"])
def test_solvers_take_matrices_operators_and_callbacks(name):
    linalg = cupyx.scipy.sparse.linalg
    solve, a = getattr(linalg, name), np.array([[4.0, 1, 0], [1, 5, 2], [0, 2, 6]])
    A, b, seen = cp.array(a), cp.array([1.0, 2, 3]), []
    operator = linalg.LinearOperator((3, 3), matvec=lambda x: A @ x, dtype=float)
    inverse = linalg.aslinearoperator(cp.array(np.diag(1 / np.diag(a))))
    expected = np.linalg.solve(a, b.get())
    for matrix, options in (
        (A, {}),
        (cupyx.scipy.sparse.csr_matrix(A), {"M": inverse}),
        (operator, {"M": inverse}),
        (operator, {"x0": cp.ones(3)}),
        (A, {"callback": seen.append}),
    ):
        x, info = solve(matrix, b, rtol=1e-9, **options)
        assert info == 0
        np.testing.assert_allclose(x.get(), expected, rtol=1e-6)
    assert seen
    with pytest.raises(ValueError, match="square"):
        solve(A[:2], b)
    with pytest.raises(TypeError, match="dtype"):
        solve(A.astype(int), b)


def test_operators_are_composed():
    linalg = cupyx.scipy.sparse.linalg
    a = np.arange(6.0).reshape(2, 3) + 1j
    A = linalg.aslinearoperator(cp.array(a))
    both = (2 * A.H) @ A + linalg.aslinearoperator(cp.eye(3))
    x = cp.array([1.0, -1, 2])
    np.testing.assert_allclose(both.matvec(x).get(), (2 * a.conj().T @ a + np.eye(3)) @ x.get())
    np.testing.assert_allclose(A.T.matvec(cp.ones(2)).get(), a.T @ np.ones(2))


def test_images_with_python_callables():
    ndimage, theirs = cupyx.scipy.ndimage, importlib.import_module("scipy.ndimage")
    image = cp.array(IMAGE)
    result = ndimage.generic_gradient_magnitude(image, ndimage.sobel)
    np.testing.assert_allclose(result.get(), theirs.generic_gradient_magnitude(IMAGE, theirs.sobel))
    labels = cp.array(np.arange(30).reshape(5, 6) % 4)
    means = ndimage.labeled_comprehension(image, labels, cp.array([1, 3, 7]), lambda x: x.mean(), float, -1)
    np.testing.assert_allclose(means.get(), [IMAGE[labels.get() == 1].mean(), IMAGE[labels.get() == 3].mean(), -1])
    places = ndimage.value_indices(cp.array([5, 7, 5]))
    assert {value: x.get().tolist() for value, (x,) in places.items()} == {5: [0, 2], 7: [1]}
    assert ndimage.distance_transform_edt(image > 3, float64_distances=False).dtype == np.float32


def test_scipys_special_ufuncs_given_device_arrays():
    theirs, x = importlib.import_module("scipy.special"), np.linspace(0.5, 2, 7)
    ours = theirs.erf(cp.array(x))
    assert isinstance(ours, cp.ndarray)
    np.testing.assert_allclose(ours.get(), theirs.erf(x), rtol=1e-12)
    out = cp.empty(7)
    assert theirs.gammaln(cp.array(x), out=out) is out
    np.testing.assert_allclose(out.get(), theirs.gammaln(x), rtol=1e-12)
    with pytest.raises(TypeError):
        theirs.wofz(cp.array(x))  # CuPy has none


def test_kernels_of_windows_and_lines():
    ndimage, theirs = cupyx.scipy.ndimage, importlib.import_module("scipy.ndimage")
    largest = cp.RawKernel(
        """extern "C" __global__ void largest(const double* x, int n, double* y) {
        y[0] = x[0]; for (int i = 1; i < n; ++i) if (x[i] > y[0]) y[0] = x[i]; }""",
        "largest",
    )
    above = cp.ReductionKernel(
        "X x", "Y y", "_raw_x[_in_ind.size() / 2] > x", "a + b", "y = a", "0", "above", reduce_type="int"
    )
    reversed_line = cp.RawKernel(
        """extern "C" __global__ void turn(const double* x, ptrdiff_t n, double* y, ptrdiff_t m) {
        for (int i = 0; i < m; ++i) y[i] = x[n - 1 - i]; }""",
        "turn",
    )
    # parameters by names that the kernel around it might have
    same = "__device__ T same(T x) { return x; }"
    total = cp.ReductionKernel("T in", "T out", "same(in)", "a + b", "out = a", "0", "total", preamble=same)
    ours = ndimage.generic_filter(cp.array(IMAGE), total, 3)
    np.testing.assert_allclose(ours.get(), theirs.generic_filter(IMAGE, np.sum, 3))
    footprint = np.array([[1, 0, 1], [1, 1, 0]], bool)
    for mode in ("reflect", "constant", "wrap"):
        options = {"mode": mode, "origin": (0, 1)}
        ours = ndimage.generic_filter(cp.array(IMAGE), largest, footprint=cp.array(footprint), **options)
        np.testing.assert_allclose(ours.get(), theirs.maximum_filter(IMAGE, footprint=footprint, **options))
        ours = ndimage.generic_filter(cp.array(IMAGE), above, (3, 3), mode=mode, output=np.uint8)
        expected = theirs.generic_filter(IMAGE, lambda x: (x[4] > x).sum(), (3, 3), mode=mode, output=np.uint8)
        np.testing.assert_array_equal(ours.get(), expected)

    def turn(x, y):
        y[:] = x[::-1][: y.size]

    ours = ndimage.generic_filter1d(cp.array(IMAGE), reversed_line, 3, axis=0)
    np.testing.assert_allclose(ours.get(), theirs.generic_filter1d(IMAGE, turn, 3, axis=0))
    with pytest.raises(TypeError, match="bad function"):
        ndimage.generic_filter(cp.array(IMAGE), lambda x: x[0], 3)


def test_signal_functions_that_take_functions_or_that_scipy_no_longer_has():
    signal, theirs = cupyx.scipy.signal, importlib.import_module("scipy.signal")
    waves = signal.cwt(cp.sin(cp.arange(32.0)), signal.ricker, cp.arange(1, 5))
    assert waves.shape == (4, 32) and bool(cp.isfinite(waves).all())
    np.testing.assert_allclose(signal.qmf(cp.array([1.0, 2, 3])).get(), [3, -2, 1])
    steps = np.array([[2, 1, 2, 3, 2, 0, 1, 0]] * 2)
    for mode in ("clip", "wrap"):
        found = signal.argrelextrema(cp.array(steps), lambda a, b: a > b, axis=1, order=2, mode=mode)
        np.testing.assert_array_equal([x.get() for x in found], theirs.argrelextrema(steps, np.greater, 1, 2, mode))
    placed = signal.place_poles(cp.array([[0.0, 1], [0, 0]]), cp.array([[0.0], [1]]), cp.array([-1.0, -2]))
    np.testing.assert_allclose(placed.gain_matrix.get(), [[2, 3]], rtol=1e-6)


def test_arguments_by_cupys_places_and_names():
    """SciPy takes some of them by name alone, or under another name."""
    from scipy import linalg, signal

    bands, desired = [0, 0.5, 0.6, 1], [1, 1, 0, 0]
    found = cupyx.scipy.signal.firls(5, bands, desired, [1, 2], 2.0).get()
    np.testing.assert_allclose(found, signal.firls(5, bands, desired, weight=[1, 2], fs=2.0))
    found = cupyx.scipy.signal.windows.lanczos(5, False).get()
    np.testing.assert_allclose(found, signal.windows.lanczos(5, sym=False))
    np.testing.assert_allclose(cupyx.scipy.linalg.expm(a=cp.eye(2)).get(), linalg.expm(np.eye(2)))
    with pytest.raises(TypeError, match="takes"):
        cupyx.scipy.signal.firls(5, bands, desired, [1, 2], 2.0, 6, 7)


def test_complex_weights_want_a_complex_output():
    """Said on the caller's line, as CuPy says it."""
    ndimage, weights = cupyx.scipy.ndimage, cp.array([[1j, 2]])
    with pytest.raises(RuntimeError, match="complex"):
        ndimage.correlate(cp.ones((3, 3)), weights, output=cp.empty((3, 3)))
    with pytest.raises(RuntimeError, match="complex"):
        ndimage.convolve1d(cp.ones((3, 3)), weights[0], 0, "f8")
    with pytest.warns(UserWarning, match="promoting"):
        assert ndimage.convolve(cp.ones((3, 3)), weights, output=np.float64).dtype == complex
    assert ndimage.convolve(cp.ones((3, 3)), weights, output=np.complex64).dtype == np.complex64


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_filters_choose_among_large_integers(dtype):
    from rgpu.cupyx.scipy import ndimage

    base = 1 << 53
    x = cp.asarray(np.array([1, 3, 5, 7], dtype) + dtype(base))
    options = {"mode": "constant", "cval": base + 9}
    for found, expected in (
        (ndimage.minimum_filter(x, 3), [1, 1, 3, 5]),
        (ndimage.minimum_filter1d(x, 3, **options), [1, 1, 3, 5]),
        (ndimage.maximum_filter(x, footprint=cp.array([True, False, True]), **options), [9, 5, 7, 9]),
        (ndimage.median_filter(x, 3, **options), [3, 3, 5, 7]),
        (ndimage.rank_filter(x, 0, 3, output=cp.empty(4, dtype)), [1, 1, 3, 5]),
        (ndimage.percentile_filter(x, 100, 3, output=np.int64), [3, 5, 7, 7]),
    ):
        assert (found.get().astype(dtype) - dtype(base)).tolist() == expected
    most = np.iinfo(dtype).max
    small = cp.arange(1, 5, dtype=dtype)
    for cval in (most, int(most), float(most), np.inf):
        assert ndimage.minimum_filter(small, 3, mode="constant", cval=cval).get().tolist() == [1, 1, 2, 3]
        assert ndimage.maximum_filter(small, 3, mode="constant", cval=cval).get().tolist() == [most, 3, 4, most]


_GREY = """grey_erosion grey_dilation grey_opening grey_closing
morphological_gradient morphological_laplace white_tophat black_tophat""".split()


@pytest.mark.parametrize("name", _GREY)
def test_grey_morphology_of_large_integers(name):
    """What small integers give, where SciPy is exact: as far from zero as the input is, or differences, the same."""
    ndimage = cupyx.scipy.ndimage
    small = np.random.default_rng(0).integers(0, 40, (7, 6))
    base = (1 << 60) if name.startswith("grey") else 0  # differences of large values are small
    large = cp.asarray(small + (1 << 60))
    structure = np.array([[0, 2, 1], [3, 0, 5]])
    cases = (
        {"size": 3}, {"size": (2, 3), "mode": "mirror"}, {"size": 3, "origin": (1, -1), "mode": "wrap"},
        {"footprint": np.array([[1, 0, 1], [0, 0, 1]], bool), "mode": "nearest"},
        {"structure": structure}, {"structure": structure, "origin": (0, 1)}, {"size": 3, "axes": (1,)},
        {"structure": structure, "footprint": structure != 2, "mode": "constant", "cval": 7},
    )  # fmt: skip
    theirs = getattr(importlib.import_module("scipy.ndimage"), name)
    for case in cases:
        mine = {key: cp.asarray(x) if isinstance(x, np.ndarray) else x for key, x in case.items()}
        if "cval" in mine:
            mine["cval"] += 1 << 60
        found = getattr(ndimage, name)(large, **mine).get()
        np.testing.assert_array_equal(found - base, theirs(small, **case), err_msg=str(case))
    out = cp.empty((7, 6), np.int64)
    assert getattr(ndimage, name)(large, 3, output=out) is out
    np.testing.assert_array_equal(out.get() - base, theirs(small, 3))


def test_incomplete_factors_without_fill_in():
    sparse = cupyx.scipy.sparse
    dense = np.array([[4.0, -1, 0, -1], [-1, 4, -1, 0], [0, -1, 4, -1], [-1, 0, -1, 4]])
    for dtype in "fdFD":
        host = dense.astype(dtype) * (1 + 1j if dtype in "FD" else 1)
        a = sparse.csr_matrix(cp.asarray(host))
        places, data = a.indices.get(), a.data
        cupyx.cusparse.csrilu02(a)
        assert a.data is data and a.indices.get().tolist() == places.tolist() and a.dtype == dtype
        product = (np.tril(a.toarray().get(), -1) + np.eye(4)) @ np.triu(a.toarray().get())
        np.testing.assert_allclose(product[host != 0], host[host != 0], rtol=1e-6)
        factors = sparse.linalg.spilu(sparse.csc_matrix(cp.asarray(host)), fill_factor=1)
        assert factors.perm_r is None and factors.nnz == a.nnz
        whole = factors.L.toarray().get() @ factors.U.toarray().get()
        np.testing.assert_allclose(whole, product, rtol=1e-6, atol=1e-6)
        b = np.arange(8).reshape(4, 2).astype(dtype)
        for trans, matrix in ("N", whole), ("T", whole.T), ("H", whole.conj().T):
            np.testing.assert_allclose(matrix @ factors.solve(cp.asarray(b), trans).get(), b, atol=1e-5)


def test_what_has_no_incomplete_factors():
    sparse, factor = cupyx.scipy.sparse, cupyx.cusparse.csrilu02
    assert cupyx.cusparse.check_availability("csrilu02")
    for refused, matrix in (
        (TypeError, sparse.csc_matrix(cp.eye(2))),
        (TypeError, sparse.csr_matrix(cp.eye(2)).astype(bool)),
        (ValueError, sparse.csr_matrix(cp.ones((2, 3)))),
        (ValueError, sparse.csr_matrix(cp.array([[1.0, 0], [1, 0]]))),  # no pivot
        (ValueError, sparse.csr_matrix(cp.ones((2, 2)))),  # a pivot of zero
    ):
        with pytest.raises(refused):
            factor(matrix)
    with pytest.raises(ValueError, match="level_info"):
        factor(sparse.csr_matrix(cp.eye(2)), level_info=1)


def test_what_images_are_written_into_is_the_result():
    ndimage, x = cupyx.scipy.ndimage, cp.arange(16.0).reshape(4, 4)
    for call in (lambda out: ndimage.zoom(x, 1.0, out), lambda out: ndimage.rotate(x, 90, output=out, reshape=False)):
        expected, out = call(None), cp.zeros((4, 4))
        assert call(out) is out
        np.testing.assert_array_equal(out.get(), expected.get())


def test_binary_structures_by_their_extents():
    ndimage = cupyx.scipy.ndimage
    x = cp.asarray(np.random.default_rng(0).random((9, 8)) > 0.3)
    for name in ("binary_erosion", "binary_dilation", "binary_opening", "binary_closing"):
        function = getattr(ndimage, name)
        for structure, shape in ((2, (2, 2)), ((2, 3), (2, 3)), ([1, 3], (1, 3))):
            expected = function(x, cp.ones(shape, bool)).get()
            np.testing.assert_array_equal(function(x, structure).get(), expected)


def test_images_are_refused_on_the_line_that_asks():
    ndimage, x = cupyx.scipy.ndimage, cp.ones((4, 4), np.int32)
    for call in (
        lambda **options: ndimage.shift(x, 1, **options), lambda **options: ndimage.zoom(x, 1, **options),
        lambda **options: ndimage.rotate(x, 0, **options),
        lambda **options: ndimage.affine_transform(x, cp.eye(2), **options),
        lambda **options: ndimage.map_coordinates(x, cp.zeros((2, 4, 4)), **options),
    ):  # fmt: skip
        for refused in ({"cval": np.nan}, {"cval": np.inf, "output": np.int64}):
            with pytest.raises(NotImplementedError, match="cval"):
                call(order=1, **refused)
        call(order=1, cval=np.nan, output=np.float64)
        call(order=1, cval=np.nan, mode="nearest")
    with pytest.raises(RuntimeError, match="order"):
        ndimage.spline_filter(x, order=1, output=cp.empty((4, 4)))


def test_histograms_of_labels():
    ndimage, labels = cupyx.scipy.ndimage, cp.array([1, 1, 2, 2])
    found = ndimage.histogram(cp.array([0.0, 3, 1, 1]), 0, 4, 2, labels, cp.array([1, 2]))
    assert [one.get().tolist() for one in found] == [[1, 1], [2, 0]]
    assert ndimage.histogram(cp.array([0.0, 3, 1, 1]), 0, 4, 2).get().tolist() == [3, 1]


def test_affine_transforms_refuse_on_their_line():
    ndimage, image, matrix = cupyx.scipy.ndimage, cp.ones((8, 8), "f4"), cp.eye(3, dtype="f4")
    refused = [
        (cp.ones(8, "f4"), cp.eye(2, dtype="f4"), {}),
        (image.astype("f8"), matrix, {}),
        (image, cp.eye(2, dtype="f4"), {}),
        (image, matrix, {"mode": "wrap"}),
        (image, matrix, {"output": "f8"}),
        (image, matrix, {"output": cp.empty((7, 8), "f4")}),
    ]
    for x, m, more in refused:
        with pytest.raises(ValueError, match="texture memory"):
            ndimage.affine_transform(x, m, texture_memory=True, **more)
    with pytest.raises(RuntimeError, match="complex"):
        ndimage.affine_transform(image.astype("c16"), matrix, output=cp.empty((8, 8)))
    got = ndimage.affine_transform(image, matrix, order=1, texture_memory=True)
    assert got.dtype == np.float32 and (got.get() == 1).all()


def test_interpolations_never_read_beyond_an_image(cp):
    """SciPy's does with parameters that are no numbers: a worker and all its arrays would be gone."""
    import rgpu.cupyx.scipy.ndimage as ndimage

    image = cp.ones((60, 60))
    for far in (float("nan"), float("-inf"), 1e300):
        for mode in ("wrap", "reflect", "mirror", "grid-wrap"):
            for wrong in (
                lambda: ndimage.shift(image, far, mode=mode),  # noqa: B023 - called at once
                lambda: ndimage.affine_transform(image, cp.array([[far, 0], [0, 1]]), mode=mode),  # noqa: B023
                lambda: ndimage.affine_transform(image, cp.eye(2), far, mode=mode),  # noqa: B023
                lambda: ndimage.rotate(image, far, mode=mode),  # noqa: B023
            ):
                with pytest.raises(ValueError, match="finite"):
                    wrong().get()
    np.testing.assert_allclose(ndimage.shift(image, 2.5, mode="wrap").get(), 1)
