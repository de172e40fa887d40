"""cupyx.cutensor on an embedded server, against NumPy's einsum on the host."""

import numpy as np
import pytest

import rgpu as cp
from rgpu.cuda import cutensor as ct
from rgpu.cupyx import cutensor

pytestmark = pytest.mark.timeout(60)
DTYPES = ("f2", "f4", "f8", "c8", "c16")


@pytest.fixture(scope="module", autouse=True)
def server():
    """One embedded server for the module; it checks every predicted layout."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RGPU_CHECK_PREDICTION", "1")
        cp.connect("local")
        yield
        cp.close()


def tensors(dtype, *shapes):
    rng = np.random.default_rng(7)
    return [rng.uniform(0.5, 1.5, shape).astype(dtype) for shape in shapes]


def near(ours, theirs, dtype):
    assert ours.dtype == dtype
    bound = {"f2": 5e-3, "f4": 1e-5, "c8": 1e-5}.get(dtype, 1e-12)
    np.testing.assert_allclose(ours.get(), theirs, rtol=bound)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_of_permuted_tensors(dtype):
    a, b, c = tensors(dtype, (3, 4, 2), (2, 3), (2, 3, 4))
    on = [cp.array(x) for x in (a, b, c)]
    found = cutensor.elementwise_binary(1.5, on[0], "yzx", 0.5, on[2], "xyz")
    near(found, 1.5 * a.transpose(2, 0, 1) + 0.5 * c, dtype)
    out = cp.empty_like(on[2])
    again = cutensor.elementwise_trinary(
        2, on[0], "yzx", 3, on[1], cutensor.create_mode("x", "y"), 0.5, on[2], "xyz",
        out, op_A=ct.OP_SQRT, op_B=ct.OP_NEG, op_AB=ct.OP_ADD, op_ABC=ct.OP_MUL,
    )  # fmt: skip
    assert again is out
    near(out, (2 * np.sqrt(a).transpose(2, 0, 1) - 3 * b[:, :, None]) * (0.5 * c), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("beta", [0, 0.5])
def test_contractions_and_reductions(dtype, beta):
    a, b, c, d = tensors(dtype, (2, 3, 4), (4, 5, 3), (5, 2), (4, 2))
    result = cp.array(c)
    found = cutensor.contraction(
        1.5, cp.array(a), ("m", "h", "k"), cp.array(b), ("k", "n", "h"), beta, result, ("n", "m")
    )
    assert found is result
    near(found, 1.5 * np.einsum("mhk,knh->nm", a, b) + beta * c, dtype)
    reduced = cutensor.reduction(2, cp.array(a), (1, 2, 3), beta, cp.array(d), (3, 1))
    near(reduced, 2 * np.einsum("mhk->km", a) + beta * d, dtype)


def test_a_beta_of_zero_does_not_read_the_result():
    a, nothing = cp.ones((2, 3)), cp.full(2, np.nan)
    assert cutensor.reduction(1, a, "xy", 0, nothing, "x").tolist() == [3, 3]
    assert cutensor.reduction(1, a, "xy", 0, nothing, "x", op_reduce=ct.OP_MAX).tolist() == [1, 1]


def test_modes():
    mode = cutensor.create_mode("x", "y")
    assert repr(mode) == "mode(120, 121)" and mode.ndim == 2
    assert mode is cutensor.create_mode(120, 121) and mode != cutensor.create_mode("y", "x")
    a = cp.ones((2, 3))
    with pytest.raises(ValueError, match="ndim"):
        cutensor.elementwise_binary(1, a, "xyz", 1, a, "xy")
    with pytest.raises(ValueError, match="modes"):
        cutensor.elementwise_binary(1, a, "xz", 1, a, "xy")
    with pytest.raises(ValueError, match="modes"):
        cutensor.contraction(1, a, "xy", a, "xy", 0, cp.ones(2), "z")
    with pytest.raises(TypeError, match="dtype"):
        cutensor.reduction(1, cp.ones(3, int), "x", 0, cp.ones(()), "")
