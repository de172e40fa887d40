"""``cupyx.GeneralizedUFunc``: loops over all dimensions but the core's."""

import numpy as np
import pytest


@pytest.fixture
def product(cp):
    from rgpu.cupyx import GeneralizedUFunc

    return GeneralizedUFunc(lambda a, b: a @ b, "(i,j),(j,k)->(i,k)", name="product", supports_batched=False)


def test_it_loops_and_broadcasts(cp, product):
    a, b = np.arange(24.0).reshape(2, 1, 3, 4), np.arange(40.0).reshape(5, 4, 2)
    result = product(cp.asarray(a), cp.asarray(b))
    np.testing.assert_allclose(result.get(), a @ b)
    out = cp.empty((2, 5, 3, 2))
    assert product(cp.asarray(a), cp.asarray(b), out=out) is out
    np.testing.assert_allclose(out.get(), a @ b)


def test_axes(cp, product):
    a, b = np.arange(24.0).reshape(3, 4, 2), np.arange(40.0).reshape(4, 2, 5)
    result = product(cp.asarray(a), cp.asarray(b[:, :, :2]), axes=[(0, 1), (0, 2), (0, 1)])
    expected = np.matmul(a, b[:, :, :2], axes=[(0, 1), (0, 2), (0, 1)])
    np.testing.assert_allclose(result.get(), expected)


def test_one_axis_is_kept(cp):
    from rgpu.cupyx import GeneralizedUFunc

    total = GeneralizedUFunc(lambda x: x.sum(), "(i)->()")
    x = np.arange(6.0).reshape(2, 3)
    assert total(cp.asarray(x), axis=0).tolist() == x.sum(axis=0).tolist()
    assert total(cp.asarray(x), axis=1, keepdims=True).tolist() == x.sum(axis=1, keepdims=True).tolist()


def test_errors(cp, product):
    with pytest.raises(ValueError, match="mismatch in its core dimension j"):
        product(cp.ones((2, 3)), cp.ones((4, 2)))
    with pytest.raises(ValueError, match="invalid shape"):
        product(cp.ones((2, 3)), cp.ones((3, 2)), out=cp.empty((3, 3)))
    with pytest.raises(TypeError, match="No loop"):
        product(cp.ones((2, 3)), cp.ones((3, 2)), signature="ii->i")
