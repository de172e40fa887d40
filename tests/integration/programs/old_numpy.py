"""A client with NumPy 1.26: every element-wise function, dtype and kind of scalar, and a walk through the rest.

Run with RGPU_CHECK_PREDICTION=1 by test_old_numpy.py: what the client expects of a result and the worker, with its
NumPy 2, makes of it must be one. Prints what it did.
"""

import itertools
import sys

import numpy as np

import rgpu as cp

DTYPES = "?bBhHiIlLefdFD"
SCALARS = [True, 3, -3, 1.5, 2j, np.float64(3), np.float32(2), np.int8(1), np.int64(5), np.bool_(True)]
UNARY = """absolute ceil conjugate cos exp floor invert isfinite log1p logical_not negative positive reciprocal rint
sign signbit sin sqrt square tanh trunc""".split()
BINARY = """add arctan2 bitwise_and copysign divide divmod equal floor_divide fmax fmod gcd greater hypot left_shift
less_equal logical_xor maximum multiply power remainder subtract""".split()


def attempt(function, *args):
    """1 if it was computed, 0 if this client refuses it."""
    try:
        result = function(*args)
    except (TypeError, OverflowError, ValueError):
        return 0
    for x in result if isinstance(result, tuple) else (result,):
        assert isinstance(x, cp.ndarray), x
    return 1


def elementwise():
    arrays = {char: cp.ones(2, char) for char in DTYPES}
    done = sum(attempt(getattr(cp, name), arrays[char]) for name in UNARY for char in DTYPES)
    for name, char in itertools.product(BINARY, DTYPES):
        function, a = getattr(cp, name), arrays[char]
        done += sum(attempt(function, a, b) for b in (*arrays.values(), *SCALARS))
        done += sum(attempt(function, b, a) for b in SCALARS)
        cp.cuda.Device().synchronize()  # raises what was predicted wrongly
    return done


def rest():
    a = cp.arange(12.0).reshape(3, 4)
    done = [
        a.sum(0), a.mean(), a.T @ a, cp.concat([a, a]), cp.unique(a), cp.linalg.inv(cp.eye(3) * 2), cp.fft.rfft(a),
        cp.sort(a, axis=0), cp.where(a > 3, a, 0), cp.einsum("ij,kj->ik", a, a), a[a > 2], cp.percentile(a, 30),
        cp.vdot(a, a), cp.cumulative_sum(a, axis=1), cp.random.default_rng(1).random(3), a.astype("f4") * np.float64(2),
        cp.pad(a, 1), cp.histogram(a, 4)[0], cp.var(a, axis=1), cp.clip(a, 1, 5), cp.linspace(0, 1, 5), cp.tril(a),
        cp.isclose(a, a), cp.bincount(cp.array([1, 1, 2])), cp.interp(a, cp.arange(3.0), cp.arange(3.0)),
    ]  # fmt: skip
    kernel = cp.ElementwiseKernel("T x, T y", "T z", "z = x + y")
    done.append(kernel(a, 2.0))
    for x in done:
        x.get()
    again = cp.stats()["round_trips"]
    (a * 2).sum(0)  # learned above or resolved here: nobody waits
    assert cp.stats()["round_trips"] == again
    assert (cp.array([1], "u1") + 3).dtype == np.uint8
    assert (np.float64(1) + cp.ones(1, "f4")).dtype == np.float64
    assert cp.floor(cp.arange(3)).dtype.kind == "i"
    np.testing.assert_array_equal(np.asarray(cp.asnumpy(a)), np.arange(12.0).reshape(3, 4))
    try:
        cp.array([1], "u1") + 300
    except OverflowError as error:
        assert "out of bounds" in str(error)
    else:
        raise AssertionError("300 is no uint8")
    return len(done)


print("NumPy", np.__version__)
print("computed", elementwise() + rest(), file=sys.stdout)
