"""cupy.fft and cupyx.scipy.fft: plans, settings, callbacks and the order of results, against NumPy."""

import importlib

import numpy as np
import pytest
import scipy.fft

import rgpu as cp
from rgpu import cupyx
from rgpu.fft.plans import get_fft_plan as fft_plan

pytestmark = pytest.mark.timeout(60)
SCALE = """
__device__ cufftDoubleComplex scaled(void* data, unsigned long long offset, void* info, void* shared) {
    cufftDoubleComplex x = ((cufftDoubleComplex*)data)[offset];
    x.x *= ((double*)info)[0];
    x.y *= ((double*)info)[0];
    return x;
}
"""


@pytest.fixture(scope="module", autouse=True)
def server():
    """One embedded server for the module; it checks every predicted layout."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RGPU_CHECK_PREDICTION", "1")
        cp.connect("local")
        yield
        cp.close()


@pytest.fixture
def a():
    return cp.array(np.arange(24.0).reshape(2, 3, 4) ** 1.5)


def test_a_plan_is_checked_and_serves_as_a_context(a):
    get_fft_plan = cupyx.scipy.fft.get_fft_plan
    plan, rows = get_fft_plan(a.astype(complex)), get_fft_plan(a.astype(complex), axes=-1)
    assert isinstance(plan, cp.cuda.cufft.PlanNd) and isinstance(rows, cp.cuda.cufft.Plan1d)
    with plan:
        assert cp.cuda.cufft.get_current_plan() is plan
        np.testing.assert_allclose(cp.fft.fftn(a).get(), np.fft.fftn(a.get()))
        with pytest.raises(ValueError, match="do not match"):
            cp.fft.fftn(a[:1])
    assert cp.cuda.cufft.get_current_plan() is None
    with rows, pytest.raises(ValueError, match="Target array size"):
        cp.fft.fft(a, 7)
    with pytest.raises(ValueError, match="Batch size"):
        cupyx.scipy.fft.fft(a[0], plan=rows)
    with rows, pytest.raises(RuntimeError, match="either"):
        cupyx.scipy.fft.fft(a, plan=rows)


def test_no_axes_is_no_transform(a):
    assert cp.fft.fftn(a, axes=()) is a
    with pytest.raises(IndexError):
        cp.fft.rfftn(a, axes=())


def test_transforms_over_all_axes_keep_fortrans_order(a):
    turned = cp.asfortranarray(a)
    for name, options in (("fftn", {}), ("ifftn", {"axes": (1, 2)}), ("fft2", {"s": (2, 6)}), ("rfftn", {})):
        result = getattr(cp.fft, name)(turned, **options)
        assert result.flags.f_contiguous == (name != "rfftn")
        np.testing.assert_allclose(result.get(), getattr(np.fft, name)(a.get(), **options), atol=1e-9)


def test_callbacks_are_applied_to_what_is_loaded(a):
    data = cp.array([2.0])
    for name in ("fft", "ifft", "fftn", "irfft"):
        with cp.fft.config.set_cufft_callbacks(cb_load=SCALE, cb_ver="jit", cb_load_data=data.data):
            result = getattr(cp.fft, name)(a.astype(complex), norm="ortho")
        np.testing.assert_allclose(result.get(), 2 * getattr(np.fft, name)(a.get(), norm="ortho"), atol=1e-9)
    with pytest.raises(ValueError, match="d_loadCallbackPtr"), pytest.warns(DeprecationWarning):
        cp.fft.config.set_cufft_callbacks(cb_load=SCALE)


def test_settings_are_remembered(a):
    config = cp.fft.config
    assert importlib.import_module("rgpu.fft.config") is config
    config.set_cufft_gpus(2)
    assert config.devices is None
    config.use_multi_gpus = True
    assert config.devices == (0, 1) and cupyx.scipy.fft.get_fft_plan(a[0, 0].astype(complex)).gpus == [0, 1]
    config.use_multi_gpus = False


def test_the_module_is_a_backend_of_scipys(a):
    theirs = pytest.importorskip("scipy.fft")
    with theirs.set_backend(cupyx.scipy.fft):
        result = theirs.fft(a)
    assert isinstance(result, cp.ndarray)
    np.testing.assert_allclose(result.get(), theirs.fft(a.get()))


def test_fftpack_may_put_a_transform_over_its_input():
    from rgpu.cupyx.scipy import fftpack

    host = np.arange(60).reshape(3, 4, 5) + 1j
    for order in "CF":
        x = cp.array(host, order=order)
        found = fftpack.fftn(x, overwrite_x=True)
        assert found.data.ptr == x.data.ptr and found.flags.f_contiguous == (order == "F")
        np.testing.assert_allclose(x.get(), np.fft.fftn(host), atol=1e-9)
    x = cp.array(host)
    assert fftpack.fftn(x, (3, 4, 4), overwrite_x=True).data.ptr != x.data.ptr
    np.testing.assert_array_equal(x.get(), host)


def test_a_transform_goes_over_its_input_where_it_may():
    from rgpu.cupyx.scipy import fft

    host = (np.arange(60).reshape(3, 4, 5) + 1j).astype(np.complex64)
    for order, axes in ("C", (-2, -1)), ("F", (0, 1)):
        x = cp.array(host, order=order)
        assert fft.fft2(x, axes=axes, overwrite_x=True, norm="ortho") is x
        np.testing.assert_allclose(x.get(), np.fft.fft2(host, axes=axes, norm="ortho"), rtol=1e-4, atol=1e-4)
    x = cp.array(host)
    assert fft.ifft(x, overwrite_x=True) is x
    np.testing.assert_allclose(x.get(), np.fft.ifft(host), rtol=1e-4, atol=1e-4)
    for array, axis in (cp.array(host), 1), (cp.array(host.real), -1), (cp.array(host)[:], -1):  # it works on a copy
        before = array.get()
        assert fft.fft(array, axis=axis, overwrite_x=True) is not array
        np.testing.assert_array_equal(array.get(), before)


def test_a_plan_transforms_by_itself():
    host = np.arange(120.0).reshape(2, 3, 4, 5) ** 1.5 + 1j
    forward, inverse = cp.cuda.cufft.CUFFT_FORWARD, cp.cuda.cufft.CUFFT_INVERSE
    for order, axes in ("C", (2, 3)), ("C", (0, 1)), ("F", (0, 1)), ("F", (2, 3)), ("C", (3,)):
        x = cp.array(host, order=order)
        plan = fft_plan(x, axes=axes)
        out = plan.get_output_array(x) if len(axes) == 1 else plan.get_output_array(x, order=order)
        plan.check_output_array(x, out)
        plan.fft(x, out, forward)
        np.testing.assert_allclose(out.get(), np.fft.fftn(host, axes=axes))
        plan.fft(out, out, inverse)
        np.testing.assert_allclose(out.get() / np.prod([host.shape[axis] for axis in axes]), host, atol=1e-12)
    real = cp.array(host.real)
    plan = fft_plan(real, axes=(2, 3), value_type="R2C")
    out = plan.get_output_array(real)
    plan.fft(real, out, forward)
    np.testing.assert_allclose(out.get(), np.fft.rfft2(host.real))
    plan = fft_plan(out, shape=(4, 5), axes=(2, 3), value_type="C2R")
    back = plan.get_output_array(out)
    plan.fft(out, back, inverse)
    np.testing.assert_allclose(back.get() / 20, host.real, atol=1e-12)
    with pytest.raises(ValueError, match="output"):
        plan.check_output_array(out, cp.zeros((2, 3, 4, 4)))


@pytest.mark.parametrize("name", "hfft ihfft hfft2 ihfft2 hfftn ihfftn".split())
def test_hermitian_transforms(name):
    from rgpu.cupyx.scipy import fft

    theirs = importlib.import_module("scipy.fft")
    host = np.random.default_rng(0).standard_normal((3, 4, 6))
    host = host if name.startswith("i") else host + 1j * host[::-1]
    cases = [{"norm": norm} for norm in (None, "backward", "forward", "ortho")]
    cases += [{"n": 5, "axis": 1}] if name.endswith("t") else [{"s": (4, 5), "axes": (0, 2)}]
    for case in cases:
        expected = getattr(theirs, name)(host, **case)
        for module in [fft, cp.fft] if hasattr(np.fft, name) else [fft]:
            np.testing.assert_allclose(getattr(module, name)(cp.array(host), **case).get(), expected, atol=1e-12)
    with pytest.raises(ValueError, match="norm"):
        getattr(fft, name)(cp.array(host), norm="none")
    with pytest.raises(NotImplementedError):
        getattr(fft, name)(cp.array(host), plan=fft_plan(cp.array(host)))


def test_hermitian_transforms_under_a_plan():
    """The plan is one of the real transform inside."""
    a = cp.array(np.arange(6.0) + 1j)
    with fft_plan(a, value_type="C2R"):
        np.testing.assert_allclose(cp.fft.hfft(a).get(), np.fft.hfft(a.get()), atol=1e-12)
    with fft_plan(a, shape=(8,), value_type="C2R"), pytest.raises(ValueError):
        cp.fft.hfft(a)


@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
def test_a_load_callback_changes_no_last_bits(norm):
    """Programs compare with the transform of what the callback would have loaded."""
    code = """
    __device__ cufftComplex same(void* data, unsigned long long offset, void* info, void* shared) {
        return ((cufftComplex*)data)[offset];
    }
    """
    host = np.random.default_rng(0).standard_normal((64, 50)).astype(np.float32)
    x = cp.array(host) + 1j * cp.array(host[::-1])
    for name in ("fft", "ifft", "irfft"):
        with cp.fft.config.set_cufft_callbacks(cb_load=code, cb_ver="jit"):
            found = getattr(cp.fft, name)(x, norm=norm).get()
        np.testing.assert_array_equal(found, getattr(cp.fft, name)(x, norm=norm).get())


@pytest.mark.parametrize("name", ["dct", "idst", "dctn", "idstn"])
def test_cosines_and_sines_of_the_types_that_cupy_has(name):
    function, x = getattr(cupyx.scipy.fft, name), cp.arange(9.0)
    for type, error in ((1, NotImplementedError), (4, NotImplementedError), (5, ValueError), (0, ValueError)):
        with pytest.raises(error, match="type"):
            function(x, type=type)
    np.testing.assert_allclose(function(x, type=3).get(), getattr(scipy.fft, name)(np.arange(9.0), type=3))


@pytest.mark.parametrize("name", ["fht", "ifht"])
def test_a_bias_makes_double_precision_of_single(name):
    x = np.linspace(1, 2, 10).astype("f")
    for bias in (0.0, 0.8, 0.0, -0.5):
        ours = getattr(cupyx.scipy.fft, name)(cp.array(x), 0.1, 0.3, 0.1, bias)
        theirs = getattr(scipy.fft, name)(x, 0.1, 0.3, 0.1, bias)
        assert ours.dtype == theirs.dtype == ("f" if bias == 0 else "d")
        np.testing.assert_allclose(ours.get(), theirs, rtol=1e-5)


def test_lengths_that_cufft_is_fast_at():
    def fast(n):
        for prime in (2, 3, 5, 7):
            while n % prime == 0:
                n //= prime
        return n == 1

    lengths = [n for n in range(1, 3000) if fast(n)]
    for target in range(1, 2000):
        assert cupyx.scipy.fft.next_fast_len(target) == next(n for n in lengths if n >= target)
    assert cupyx.scipy.fft.next_fast_len(0) == 0 and cupyx.scipy.fft.next_fast_len(10**9 + 1, real=True) < 1.02e9
    with pytest.raises(ValueError, match="length"):
        cupyx.scipy.fft.next_fast_len(-1)
