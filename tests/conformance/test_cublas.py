"""``cupy.cublas``: where BLAS's routines write, and what they refuse. CuPy's own tests of it prove the numbers."""

import importlib

import numpy as np
import pytest


@pytest.fixture
def blas(cp):
    return importlib.import_module("rgpu.cublas")


def test_vectors(cp, blas):
    x = cp.array([3.0, -4.0, 0.0])
    assert (int(blas.iamax(x)), int(blas.iamin(x)), float(blas.asum(x)), float(blas.nrm2(x))) == (2, 3, 7, 5)
    y = cp.ones(3)
    blas.axpy(cp.array(2), x, y)
    blas.scal(np.float32(10), x)
    assert (x.tolist(), y.tolist()) == ([30, -40, 0], [7, -7, 1])
    out = np.empty((), "f4")
    assert blas.dot(x, y, out=out) is out and out == 490
    z = cp.array([1j, 2])
    assert (complex(blas.dotu(z, z)), complex(blas.dotc(z, z))) == (3, 5)
    with pytest.raises(TypeError, match="dotu"):
        blas.dot(z, z)
    with pytest.raises(ValueError, match="1D"):
        blas.nrm2(cp.eye(2))


def test_matrices(cp, blas):
    a, b = cp.arange(6.0).reshape(2, 3), cp.full((2, 3), np.nan)
    out = cp.full((3, 3), np.nan)
    assert blas.gemm("T", "N", a, a, out, alpha=2) is out  # beta is 0: what was there does not count
    np.testing.assert_array_equal(out.get(), 2 * a.get().T @ a.get())
    half = blas.syrk("N", a, lower=True)
    np.testing.assert_array_equal(half.get(), np.tril(a.get() @ a.get().T))
    assert half.flags.f_contiguous
    assert blas.geam("N", "N", 1, a, -1, a, b) is b and not b.any()
    np.testing.assert_array_equal(blas.dgmm("R", a, cp.arange(3.0), incx=-1).get(), a.get() * [2, 1, 0])
    y = cp.zeros(3)
    blas.gemv("T", 1.0, a, cp.array([1.0, 2.0]), 0.0, y)
    assert y.tolist() == [6, 9, 12]
    stack = cp.eye(3) * cp.arange(1.0, 3)[:, None, None]
    assert blas.batched_gesv(stack, cp.ones((2, 3))).tolist() == [[1] * 3, [0.5] * 3]
