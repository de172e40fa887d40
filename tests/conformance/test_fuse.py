"""``cupy.fuse`` and ``cupy.vectorize``: one kernel where there can be one, the results of the function as written."""

import numpy as np
import pytest

from rgpu.client import pool


def patience(monkeypatch, calls):
    """Kernels are made after so many calls."""
    device = pool.current_stream().device
    monkeypatch.setattr(device, "settings", device.settings.but(fuse_after=calls))


@pytest.fixture(autouse=True)
def at_once(cp, monkeypatch):
    patience(monkeypatch, 0)


def launches(fused):
    """How many kernels the calls so far were planned as; None: the function runs as it is written."""
    (ready,) = set(fused._known.values())
    return None if ready is None else len(ready.plan._steps)


def agree(cp, function, arrays, kernels):
    """The fused function's results and its arguments afterwards are NumPy's, step by step and as kernels."""
    for calls in (9, 0):
        device = pool.current_stream().device
        device.settings = device.settings.but(fuse_after=calls)
        host, given = [x.copy() for x in arrays], [cp.asarray(x) for x in arrays]
        fused = cp.fuse(lambda *args: function(cp, *args))
        expected, found = function(np, *host), fused(*given)
        assert launches(fused) == kernels
        pairs = zip(
            (*(expected if isinstance(expected, tuple) else (expected,)), *host),
            (*(found if isinstance(found, tuple) else (found,)), *given),
        )
        for a, b in pairs:
            if a is None:
                assert b is None
                continue
            assert (b.shape, b.dtype) == (a.shape, a.dtype)
            np.testing.assert_allclose(b.get(), a, rtol=1e-5)


X = np.arange(12.0).reshape(3, 4) + 1
Y = np.linspace(-3, 5, 12).reshape(3, 4)


def squared_difference(xp, x, y):
    return (x - y) * (x - y)


def norm(xp, x, y):
    return xp.sqrt(xp.sum(x * y - x, axis=1) ** 2 + 10)


def updates(xp, x, y):
    x += y
    xp.multiply(x, 2, out=y)
    return x - y


def softmax(xp, x):
    e = xp.exp(x - x.max(axis=0))
    return e / e.sum(axis=0)


def through_sums(xp, x, y):
    a = x + y
    b = xp.sum(a, axis=0)
    x += b
    y += xp.sum(x, axis=0)
    return b, x, y, a


def assigned(xp, x, y):
    x[...] = xp.where(y > 0, xp.inf, y)


def beyond_formulas(xp, x):
    return xp.linalg.norm(x) + x


@pytest.mark.parametrize(
    ("function", "count", "kernels"),
    [(squared_difference, 2, 1), (norm, 2, 1), (updates, 2, 1), (softmax, 1, 3), (through_sums, 2, 5), (assigned, 2, 1),
     (beyond_formulas, 1, None)],
)  # fmt: skip
def test_fused_functions_are_kernels(cp, function, count, kernels):
    agree(cp, function, [X, Y][:count], kernels)


def test_types_are_numpys(cp):
    def promoted(xp, i, h):
        return i + h, i // 3, i * 2.5, h * 2.5, (i > 3).sum(), i.sum(), abs(-i), i % 4, i**2

    agree(cp, promoted, [np.arange(6, dtype="i4"), np.linspace(0, 1, 6).astype("e")], 3)


def test_a_number_is_an_argument_and_changes_no_type(cp):
    fused = cp.fuse(lambda x, s: x * s + 1)
    x = cp.ones(3, "f4")
    assert fused(x, 2.5).dtype == np.float32
    assert fused(x, np.float64(2.5)).dtype == np.float64
    assert fused(x, 4.5).tolist() == [5.5] * 3


def test_the_function_runs_once_for_shapes_alike(cp):
    calls = []

    @cp.fuse(kernel_name="twice")
    def fused(x, y):
        calls.append(1)
        return x * 2 + y

    for shape in ((3, 4), (5, 6), (4, 3)):
        assert fused(cp.ones(shape), cp.ones(shape)).shape == shape
    assert len(calls) == 1
    assert fused(cp.ones((3, 1)), cp.ones((3, 4))).shape == (3, 4)
    assert len(calls) == 2
    with pytest.raises(ValueError, match="broadcast"):
        fused(cp.ones((3, 2)), cp.ones((3, 4)))


def test_a_kernel_is_made_when_it_pays(cp, monkeypatch):
    patience(monkeypatch, 2)
    calls = []
    fused = cp.fuse(lambda x: calls.append(type(x).__name__) or x * 2)
    for _ in range(4):
        assert fused(cp.ones(3)).tolist() == [2] * 3
    assert int(fused(cp.ones(100_000)).sum()) == 200_000
    assert calls == ["Traced"]  # the function itself runs once


def test_nobody_waits(cp):
    fused = cp.fuse(norm.__get__(cp))  # the module as the first argument
    x, y = cp.asarray(X), cp.asarray(Y)
    before = cp.stats()["round_trips"]
    result = fused(x, y)
    assert cp.stats()["round_trips"] == before
    np.testing.assert_allclose(result.get(), norm(np, X, Y))


def test_arrays_that_overlap(cp):
    @cp.fuse()
    def fused(x, z):
        x += z
        x += z

    host = np.arange(9.0).reshape(3, 3)
    x = cp.asarray(host)
    fused(x, x.T)
    host += host.T
    host += host.T
    assert x.get().tolist() == host.tolist()


def test_what_cupy_refuses(cp):
    x = cp.ones((3, 4))
    with pytest.raises(TypeError, match="Python scalar"):
        cp.fuse(lambda x: x if x > 0 else -x)(x)
    with pytest.raises(NotImplementedError, match="keepdims"):
        cp.fuse(lambda x: cp.sum(x, axis=0, keepdims=True))(x)
    with pytest.raises(NotImplementedError, match="full range"):
        cp.fuse(lambda x: x[1:])(x)
    with pytest.raises(TypeError, match="Invalid argument type"):
        cp.fuse(lambda x, y: x)(x, "y")


# ---- vectorize ------------------------------------------------------------------------------------


def collatz(n):
    steps = 0
    while n != 1:
        if n % 2:
            n = 3 * n + 1
        else:
            n //= 2
        steps += 1
    return steps


def both(x, y):
    return x + y, x / y


def test_vectorized_functions_branch_and_loop(cp):
    n = np.arange(1, 30)
    assert cp.vectorize(collatz)(cp.asarray(n)).get().tolist() == [collatz(int(x)) for x in n]
    total, ratio = cp.vectorize(both)(cp.arange(4), 2.0)
    assert (total.dtype, total.tolist(), ratio.tolist()) == (np.float64, [2, 3, 4, 5], [0, 0.5, 1, 1.5])
    relu = cp.vectorize(lambda x: x if x > 0.0 else 0.0)
    assert relu(cp.array([0.5, -1], "f4")).dtype == np.float32


def mixed(x):
    return x if x > 0 else np.float64(0)


def test_vectorize_refuses_by_type(cp):
    with pytest.raises(TypeError, match="Type mismatch"):
        cp.vectorize(mixed)(cp.ones(2, "f4"))
    with pytest.raises(NotImplementedError, match="otypes"):
        cp.vectorize(both, otypes="d")(cp.ones(2), 1)


# ---- where the server runs no client code ---------------------------------------------------------


def test_without_kernels_the_results_are_the_same(monkeypatch):
    import rgpu
    from tests.support.servers import Server

    monkeypatch.setenv("RGPU_ALLOW_NATIVE_KERNELS", "0")
    with Server("cpu:1", "strict") as server:
        rgpu.connect(server.address)
        fused = rgpu.fuse(lambda x, y: rgpu.sqrt(rgpu.sum(x * y, axis=1) ** 2))
        x, y = rgpu.asarray(X), rgpu.asarray(Y)
        np.testing.assert_allclose(fused(x, y).get(), np.sqrt((X * Y).sum(axis=1) ** 2))
        steps = rgpu.vectorize(collatz)(rgpu.arange(1, 8))
        assert (steps.dtype, steps.tolist()) == (np.int64, [collatz(n) for n in range(1, 8)])
        total, _ = rgpu.vectorize(both)(rgpu.arange(3, dtype="f4"), rgpu.ones(3, "f4"))
        assert (total.dtype, total.tolist()) == (np.float32, [1, 2, 3])
        rgpu.close()


def test_whole_slices(cp, monkeypatch):
    patience(monkeypatch, 9)
    fused = cp.fuse(lambda x: x[::1] + x[:, ::-1])
    np.testing.assert_array_equal(fused(cp.asarray(X)).get(), X + X[:, ::-1])
    with pytest.raises(NotImplementedError, match="full range"):
        cp.fuse(lambda x: x[::2])(cp.asarray(X))


def test_copyto_casts_as_it_is_told(cp, monkeypatch):
    patience(monkeypatch, 9)
    x = cp.zeros(3, np.int32)
    with pytest.raises(TypeError, match="same_kind"):
        cp.fuse(lambda a, b: cp.copyto(a, b))(x, cp.ones(3))
    cp.fuse(lambda a, b: cp.copyto(a, b, casting="unsafe"))(x, cp.full(3, 2.5))
    assert x.tolist() == [2] * 3


def test_a_value_made_of_numbers_alone_has_no_axes(cp):
    """Of a function of a number and an array, the array may play no part: nothing gave the kernel its size."""
    for calls in (9, 0):
        device = pool.current_stream().device
        device.settings = device.settings.but(fuse_after=calls)
        fused = cp.fuse(lambda x, y: (-x, x + y))
        negated, added = fused(np.float32(3), cp.arange(4, dtype=np.float32))
        assert negated.shape == () and negated.dtype == np.float32 and negated == -3
        assert added.get().tolist() == [3, 4, 5, 6]
