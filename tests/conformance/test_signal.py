"""cupyx.signal, cupyx.lapack, cupyx.linalg and the distances that SciPy lacks, against NumPy on the host."""

import warnings

import numpy as np
import pytest

import rgpu as cp
from rgpu.cupyx import cusolver, lapack, signal
from rgpu.cupyx import linalg as linear
from rgpu.cupyx.scipy import signal as filters
from rgpu.cupyx.scipy.spatial import distance

scipy_signal = pytest.importorskip("scipy.signal")
pytestmark = pytest.mark.timeout(60)
RANDOM = np.random.default_rng(7)
SIGNAL = RANDOM.random(90)


@pytest.fixture(scope="module", autouse=True)
def server():
    """One embedded server for the module; it checks every predicted layout."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RGPU_CHECK_PREDICTION", "1")
        cp.connect("local")
        yield
        cp.close()


def test_the_complex_cepstrum_has_an_inverse():
    cepstrum, delay = signal.complex_cepstrum(cp.array(SIGNAL))
    assert delay.shape == SIGNAL.shape and len(set(delay.get())) == 1
    back = signal.inverse_complex_cepstrum(cepstrum, delay[0])
    np.testing.assert_allclose(back.get(), SIGNAL, rtol=1e-9)
    columns, _ = signal.complex_cepstrum(cp.array([SIGNAL, SIGNAL]).T, axis=0)
    np.testing.assert_allclose(columns[:, 1].get(), cepstrum.get(), atol=1e-12)


def test_minimum_phase_keeps_the_magnitudes():
    found = signal.minimum_phase(cp.array(SIGNAL)).get()
    magnitude = np.abs(np.fft.fft(SIGNAL))
    np.testing.assert_allclose(np.abs(np.fft.fft(found)), magnitude, rtol=1e-9)
    expected = np.fft.ifft(np.log(magnitude)).real
    np.testing.assert_allclose(signal.real_cepstrum(cp.array(SIGNAL)).get(), expected, atol=1e-12)


def test_filters_of_higher_order():
    square, cube = RANDOM.random((4, 6)), RANDOM.random((3, 4, 5))
    second = signal.convolve1d2o(cp.array(SIGNAL), cp.array(square)).get()
    third = signal.convolve1d3o(cp.array(SIGNAL), cp.array(cube)).get()
    for i in (0, 17, len(second) - 1):
        u, v = SIGNAL[i : i + 4][::-1], SIGNAL[i : i + 6][::-1]
        np.testing.assert_allclose(second[i], u @ square @ v)
    u = SIGNAL[:5][::-1]
    np.testing.assert_allclose(third[0], np.einsum("x,y,z,xyz", u[2:], u[1:], u, cube))
    assert second.shape == (85,) and third.shape == (86,)


def test_fir_filters():
    b = np.array([0.5, 0.3, 0.2])
    x, taps = cp.array(SIGNAL), cp.array(b)
    np.testing.assert_allclose(signal.firfilter(taps, x).get(), scipy_signal.lfilter(b, 1, SIGNAL))
    np.testing.assert_allclose(signal.firfilter2(taps, x).get(), scipy_signal.filtfilt(b, 1, SIGNAL))
    np.testing.assert_allclose(signal.firfilter_zi(taps).get(), scipy_signal.lfilter_zi(b, 1))
    shifted = np.fft.fft(signal.freq_shift(x, 10, 90).get())
    np.testing.assert_allclose(shifted, np.roll(np.fft.fft(SIGNAL), -10), atol=1e-9)


def test_a_tone_comes_out_of_its_channel():
    tone = np.exp(2j * np.pi * 3 / 8 * np.arange(512))
    lowpass = scipy_signal.firwin(32, 1 / 8)
    channels = np.abs(signal.channelize_poly(cp.array(tone), cp.array(lowpass), 8).get()[:, 8:]).mean(axis=1)
    assert channels.argmax() == 3 and channels[3] > 0.5 > 20 * np.delete(channels, [2, 3, 4]).max()


@pytest.mark.parametrize(("shape", "guard", "reference"), [((40,), 2, 5), ((9, 12), (1, 2), (2, 3))])
def test_cell_averaging(shape, guard, reference):
    noise = RANDOM.random(shape)
    threshold, found = signal.ca_cfar(cp.array(noise), guard, reference)
    threshold, place = threshold.get(), tuple(n // 2 for n in shape)
    guards, wide = np.atleast_1d(guard), np.atleast_1d(guard) + reference
    inner, outer = (noise[tuple(slice(p - w, p + w + 1) for p, w in zip(place, reach))] for reach in (guards, wide))
    cells = outer.size - inner.size
    mean = (outer.sum() - inner.sum()) / cells
    np.testing.assert_allclose(threshold[place], mean * signal.cfar_alpha(1e-3, cells), rtol=1e-6)
    assert threshold[(0,) * len(shape)] == 0 and (found.get() == (noise > threshold)).all()
    with pytest.raises(ValueError, match="too small"):
        signal.ca_cfar(cp.zeros(shape), list(shape) if len(shape) > 1 else 40, reference)


def test_pulses_and_beams():
    pulses, sent = RANDOM.random((4, 64)), RANDOM.random(9)
    found = signal.pulse_compression(cp.array(pulses), cp.array(sent), window="hamming").get()
    weighted = np.fft.fft(sent * scipy_signal.get_window("hamming", 9, False), 64)
    np.testing.assert_allclose(found, np.fft.ifft(np.fft.fft(pulses) * weighted.conj()).real, atol=1e-12)
    np.testing.assert_allclose(signal.pulse_doppler(cp.array(pulses)).get(), np.fft.fft(pulses.T).T)
    weights = signal.mvdr(cp.array(pulses), cp.array(sent[:4])).get()
    np.testing.assert_allclose(weights @ sent[:4], 1)


def test_lapack_by_its_names():
    a, b = RANDOM.random((3, 3)) + 3 * np.eye(3), RANDOM.random(3)
    x = cp.array(b)
    lapack.gesv(cp.array(a), x)
    np.testing.assert_allclose(x.get(), np.linalg.solve(a, b))
    for rows in (RANDOM.random((5, 3)), RANDOM.random((2, 3))):
        right = RANDOM.random(len(rows))
        expected = np.linalg.lstsq(rows, right, rcond=None)[0]
        np.testing.assert_allclose(lapack.gels(cp.array(rows), cp.array(right)).get(), expected)
    positive = cp.array(np.stack([a @ a.T, np.eye(3)]))
    right = cp.array(np.stack([b, b]))
    np.testing.assert_allclose((positive @ lapack.posv(positive, right)[..., None])[..., 0].get(), right.get())
    with pytest.raises(ValueError, match="NaN"):
        linear.cho_solve((positive, True), right * np.nan)
    u, s, v = cusolver.gesvdj(positive)
    np.testing.assert_allclose((u * s[:, None] @ v.swapaxes(1, 2)).get(), positive.get(), atol=1e-12)
    np.testing.assert_allclose(linear.sparse.lschol(positive[0], x).get(), np.linalg.solve(a @ a.T, x.get()))


def test_distances_in_the_dtype_of_the_points():
    u, v = RANDOM.random((2, 4)), RANDOM.random((3, 4))
    for metric, expected in (
        ("kl_div", lambda a, b: (a * np.log(a / b)).sum()),
        ("hellinger", lambda a, b: np.sqrt(((np.sqrt(a) - np.sqrt(b)) ** 2).sum() / 2)),
        ("cheb", lambda a, b: np.abs(a - b).max()),
    ):
        found = distance.cdist(cp.array(u, np.float32), cp.array(v), metric)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found.get(), [[expected(a, b) for b in v] for a in u], rtol=1e-4)
    pairs = distance.pdist(cp.array(v), "cityblock").get()
    np.testing.assert_allclose(pairs, [np.abs(v[i] - v[j]).sum() for i, j in ((0, 1), (0, 2), (1, 2))])
    assert distance.euclidean(cp.array(u[0]), cp.array(u[1])).shape == ()
    with pytest.raises(ValueError, match="Unknown Distance Metric"):
        distance.cdist(cp.array(u), cp.array(v), "yule")


def test_results_in_fortran_order_stay_so_also_where_they_are_predicted():
    from rgpu.cupyx.scipy import signal as scipy_like

    rows = np.stack([SIGNAL, SIGNAL[::-1]])
    for x in (SIGNAL, SIGNAL * 2, rows, rows + 1):
        expected = scipy_signal.stft(x, nperseg=16)[2]
        for _ in range(2):
            found = scipy_like.stft(cp.array(x), nperseg=16)[2]
            np.testing.assert_allclose(found.get(), expected, atol=1e-12)
            assert found.flags.f_contiguous == expected.flags.f_contiguous
            np.testing.assert_allclose((found[1:] + 0).get(), expected[1:], atol=1e-12)
    assert scipy_like.stft(cp.array(SIGNAL), nperseg=16)[2].flags.f_contiguous


def test_a_function_takes_the_trend_out_of_segments():
    from rgpu.cupyx.scipy import signal as scipy_like

    def trendless(xp, of):
        return lambda part: part - 0.5 * part.mean(axis=of, keepdims=True)

    x, y = np.stack([SIGNAL, SIGNAL[::-1]]), np.stack([SIGNAL**2, SIGNAL])[:, :80]
    cases = (
        ("welch", (x,), {"nperseg": 20, "noverlap": 5}),
        ("csd", (x, y), {"nperseg": 16, "average": "median"}),
        ("coherence", (x, x[::-1] ** 2), {"nperseg": 16}),
        ("spectrogram", (x,), {"nperseg": 24, "mode": "psd"}),
        ("periodogram", (x,), {"nfft": 32}),
        ("periodogram", (x,), {"nfft": 128}),
    )
    for name, arrays, options in cases:
        *grids, expected = getattr(scipy_signal, name)(*arrays, fs=2.0, detrend=trendless(np, -1), **options)
        for axis, to in ((-1, 1), (0, 0)):  # the function is given samples along the same axis, as by CuPy
            given = [cp.moveaxis(cp.array(part), -1, axis) for part in arrays]
            found = getattr(scipy_like, name)(*given, fs=2.0, detrend=trendless(cp, axis), axis=axis, **options)
            for one, other in zip((*grids, np.moveaxis(expected, 1, to)), found, strict=True):
                np.testing.assert_allclose(other.get(), one, rtol=1e-9, atol=1e-12, err_msg=f"{name} {axis}")


def test_a_window_is_a_name_a_tuple_or_a_number():
    from rgpu.cupyx.scipy.signal import get_window

    np.testing.assert_allclose(get_window(("kaiser", 8.0), 9).get(), scipy_signal.get_window(("kaiser", 8.0), 9))
    np.testing.assert_allclose(get_window(4.0, 9).get(), scipy_signal.get_window(4.0, 9))
    for wrong in ({"hann"}, ["hann"], None):
        with pytest.raises(ValueError, match="window type"):
            get_window(wrong, 8)


def test_responses_are_handed_to_plot():
    seen = []
    b = cp.array([1.0, 0.5])
    for result in (
        filters.freqs(b, b, 8, plot=lambda *found: seen.append(found)),
        filters.freqz(b, 1, 8, plot=lambda *found: seen.append(found)),
    ):
        (w, h), (w_of, h_of) = seen.pop(0), result
        assert w is w_of and h is h_of and w.shape == h.shape == (8,)


def test_a_window_that_is_a_function_gets_the_frequencies():
    x = np.cos(np.arange(20.0))
    for xp, module in (cp, filters), (np, scipy_signal):
        found = module.resample(xp.asarray(x), 30, window=lambda f, xp=xp: xp.exp(-(f**2)))
        if xp is cp:
            ours = found.get()
    np.testing.assert_allclose(ours, found, atol=1e-12)


def test_symiirorder2_is_computed_in_double():
    x = np.random.default_rng(0).random(16).astype(np.float32)
    found = filters.symiirorder2(cp.asarray(x), 0.1, 0.1)
    assert found.dtype == np.float64
    expected = scipy_signal.symiirorder2(x, 0.1, 0.1, precision=1e-6)
    np.testing.assert_allclose(found.get(), expected, atol=1e-5)


def test_warnings_about_coefficients_come_as_cupys_do():
    """CuPy reads the coefficients back to warn, so that waiting is no loss."""
    bad, good = cp.array([0.0, 0.0, 1.0]), cp.array([1.0, 2.0])
    for function in (filters.normalize, filters.tf2zpk, filters.tf2ss, filters.lp2lp):
        for _ in range(2):  # nothing is learned
            with pytest.warns(filters.BadCoefficients, match="Badly conditioned") as given:
                function(bad, good)
            assert given[0].filename == __file__
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            function(good, cp.array([1.0, 3.0]))
    with pytest.warns(RuntimeWarning, match="Order is zero"):
        filters.buttord(0.0, 1.0, 3, 60)
    sos = filters.butter(12, [5.0, 30.0], "bandpass", fs=1200.0, output="sos")
    with pytest.warns(filters.BadCoefficients):
        zeros, poles, _ = filters.sos2zpk(sos)
    assert zeros.size == poles.size == 24
    with pytest.raises(ValueError), warnings.catch_warnings():
        warnings.simplefilter("error")
        filters.normalize(good, cp.zeros(2))


def test_what_cupy_refuses_of_convolutions_and_analytic_signals():
    assert filters.choose_conv_method(cp.arange(10), cp.arange(5)) == "direct"
    for shapes in (((3, 4), (2,)), ((), (5,)), ((4,), (2, 2))):
        with pytest.raises(NotImplementedError, match="one-dimensional"):
            filters.choose_conv_method(*map(cp.ones, shapes))
    x = np.arange(16.0).reshape(4, 4)
    np.testing.assert_allclose(filters.hilbert2(cp.array(x), (3, 4)).get(), scipy_signal.hilbert2(x, (3, 4)))
    for wrong in ((2, 0), (2,), [1, 2, 3]):
        with pytest.raises(ValueError, match="two positive"):
            filters.hilbert2(cp.array(x), wrong)
    with pytest.raises(ValueError, match="2-D"):
        filters.hilbert2(cp.ones((2, 3, 4)))


COUNTS = {  # a float may be one where CuPy says int(...), a single array nearly everywhere
    "welch": (lambda n: filters.welch(cp.array(SIGNAL), nperseg=n)[1], (float, cp.array)),
    "butter": (lambda n: filters.butter(n, 0.2)[0], (float, cp.array)),
    "kaiser": (lambda n: filters.windows.kaiser(n, 5.0), (float, cp.array)),
    "upfirdn": (lambda n: filters.upfirdn(cp.array(SIGNAL[:9]), cp.array(SIGNAL), 1, n), (float, cp.array)),
    "bartlett": (lambda n: cp.bartlett(n), (float, cp.array)),
    "freqz": (lambda n: filters.freqz(cp.array([1.0, 2.0]), 1, worN=n)[1], (cp.array,)),
    "tile": (lambda n: cp.tile(cp.array(SIGNAL), n), (cp.array,)),
    "vander": (lambda n: cp.vander(cp.array(SIGNAL[:5]), n), (cp.array,)),
}


@pytest.mark.parametrize("name", COUNTS)
def test_counts_may_be_floats_and_single_arrays(name):
    """What is learned of the result for one count is not believed for another."""
    call, kinds = COUNTS[name]
    for kind in kinds:
        for n in (4, 8, 4, 8):
            found, expected = call(kind(n)), call(n)
            assert found.shape == expected.shape
            np.testing.assert_array_equal(found.get(), expected.get())


def test_numbers_that_are_no_counts_make_no_layouts():
    x = cp.array(SIGNAL[:40])
    for wrong in (lambda: cp.diff(x, 2.0), lambda: cp.diag(cp.ones((45, 45)), 5.0)):
        try:
            wrong().get()
        except TypeError:
            pass
    assert (cp.arange(38.0) + 1).get()[-1] == 38 and cp.diff(x, 2).shape == (38,)
    assert all(type(n) is int for n in cp.diag(cp.ones((45, 45)), 5).shape)


def test_leading_zeros_shorten_polynomials():
    for first in (1.0, 0.0, 1.0):
        sections = np.array([[first, 2, 1, 1, 0.5, 0.25], [1, 2, 1, 1, 0.5, 0.25]])
        numerator, denominator = filters.sos2tf(cp.array(sections))
        expected = scipy_signal.sos2tf(sections)
        np.testing.assert_allclose(numerator.get(), expected[0])
        np.testing.assert_allclose(denominator.get(), expected[1])


def test_a_signal_with_itself_and_with_another():
    x, y = cp.array(SIGNAL), cp.array(SIGNAL[::-1].copy())
    for other, kind in ((x, "f"), (y, "c"), (x, "f")):
        assert filters.csd(x, other, nperseg=16)[1].get().dtype.kind == kind


def test_what_one_server_answered_is_not_believed_of_another(monkeypatch):
    from rgpu.client import pool, predict
    from rgpu.functions import dispatch

    x = cp.array(SIGNAL)

    def medfilt(n):  # beneath the C core, to which two servers are two streams
        return dispatch.learn("cupyx.scipy.signal.medfilt", (x, n), {}, True)

    medfilt(3), medfilt(3)
    before = cp.stats()["round_trips"]
    medfilt(3)
    assert cp.stats()["round_trips"] == before
    monkeypatch.setattr(pool.current(), "maker", ("elsewhere", "cuda"))
    medfilt(3)
    assert cp.stats()["round_trips"] == before + 1
    monkeypatch.setattr(predict, "_KEPT", len(predict.learned))
    medfilt(5)
    assert len(predict.learned) == 1  # endless signatures are not kept
