"""Functions for which CuPy makes device arrays of NumPy's; PyLops calls some of them so."""

import numpy as np
import pytest

import rgpu as cp

pytestmark = pytest.mark.timeout(120)
ROW, MATRIX = np.arange(4.0), np.arange(6.0).reshape(2, 3)
LARGE = np.arange(20_000.0).reshape(100, 200)  # too large to travel inside the command


@pytest.fixture(scope="module", autouse=True)
def server():
    """One embedded server for the module; it checks every predicted layout."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RGPU_CHECK_PREDICTION", "1")
        cp.connect("local")
        yield
        cp.close()


@pytest.mark.parametrize(
    "call",
    [
        lambda xp: xp.diag(ROW, 1),
        lambda xp: xp.diag(MATRIX, -1),
        lambda xp: xp.diag(LARGE),
        lambda xp: xp.diagflat(MATRIX),
        lambda xp: xp.fft.fftshift(MATRIX),
        lambda xp: xp.fft.ifftshift(MATRIX, axes=(1,)),
        lambda xp: xp.around(ROW / 3, 1),
        lambda xp: xp.round(ROW / 3, 1),
        lambda xp: xp.linalg.cond(np.eye(3) * 2),
        lambda xp: xp.extract(ROW > 1, xp.asarray(ROW)),
        lambda xp: xp.compress(ROW > 1, xp.asarray(ROW)),
        lambda xp: xp.delete(xp.asarray(ROW), np.array([1, 2])),
        lambda xp: xp.delete(xp.asarray(ROW), ROW > 1),
        lambda xp: xp.cov(ROW, ROW**2),
        lambda xp: xp.corrcoef(np.stack([ROW, ROW**2])),
        lambda xp: xp.polynomial.polynomial.polyval(xp.asarray(ROW), ROW),
        lambda xp: xp.polynomial.polynomial.polyvalfromroots(xp.asarray(ROW), ROW),
    ],
)
def test_host_arrays_become_device_arrays(call):
    result, expected = call(cp), np.asarray(call(np))
    assert isinstance(result, cp.ndarray) and result.dtype == expected.dtype
    np.testing.assert_allclose(result.get(), expected, rtol=1e-12)


def test_other_functions_take_no_host_arrays():
    for function in (cp.sort, cp.argwhere, cp.fft.fft, cp.transpose):
        with pytest.raises(TypeError):
            function(ROW)
