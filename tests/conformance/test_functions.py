"""One call at least of every function of the wire table: the same body on NumPy and on rgpu.

Values, shapes and dtypes must be NumPy's (CuPy's where the two differ: then the call says so), and a
function whose layout the client can know must not make a round trip.
"""

from __future__ import annotations

import numpy as np
import pytest

from rgpu.wire.functions import TABLE

pytestmark = pytest.mark.timeout(120)

KINDS = ("unary", "binary", "ufunc", "reduce", "scan", "like", "pure", "wait")


def m(xp, *shape, dtype=float):
    """A well-conditioned array of this shape."""
    n = int(np.prod(shape))
    return xp.asarray(((np.arange(n) * 7 + 3) % 11 - 4.5).reshape(shape).astype(dtype))


def ints(xp, *values):
    return xp.asarray(np.array(values))


def spd(xp, n=4, dtype=float):
    """A symmetric positive definite matrix."""
    x = ((np.arange(n * n) * 5 + 1) % 7).reshape(n, n).astype(dtype)
    return xp.asarray(x @ x.T + n * np.eye(n, dtype=dtype))


def v(xp):
    return xp.asarray(np.array([3.0, -1.0, 2.0, 2.0, 0.5]))


#: name -> calls; each takes the namespace
CALLS = {
    "average": [
        lambda xp: xp.average(m(xp, 3, 4), axis=1),
        lambda xp: xp.average(m(xp, 3, 4), 0, m(xp, 3) + 9, True),
    ],
    "count_nonzero": [lambda xp: xp.count_nonzero(m(xp, 3, 4)), lambda xp: xp.count_nonzero(m(xp, 3, 4), 1)],
    "linalg.norm": [
        lambda xp: xp.linalg.norm(m(xp, 3, 4)),
        lambda xp: xp.linalg.norm(m(xp, 3, 4), 1, 0, True),
    ],
    "matmul": [lambda xp: xp.matmul(m(xp, 2, 3, 4), m(xp, 4, 5)), lambda xp: m(xp, 4) @ m(xp, 4)],
    "linalg.matmul": [lambda xp: xp.linalg.matmul(m(xp, 9, 7), m(xp, 7, 8))],
    "dot": [lambda xp: xp.dot(m(xp, 2, 3), m(xp, 3, 9)), lambda xp: xp.dot(m(xp, 7), m(xp, 7))],
    "einsum": [
        lambda xp: xp.einsum("ij,jk->ki", m(xp, 6, 7), m(xp, 7, 8)),
        lambda xp: xp.einsum("...i->...", m(xp, 2, 9)),
    ],
    "trace": [lambda xp: xp.trace(m(xp, 3, 4, 5), 1, 0, 2)],
    "trapezoid": [lambda xp: xp.trapezoid(m(xp, 3, 9), dx=0.5)],
    "cross": [lambda xp: xp.cross(m(xp, 5, 3), m(xp, 3))],
    "linalg.cross": [lambda xp: xp.linalg.cross(m(xp, 5, 3), m(xp, 5, 3))],
    "gradient": [lambda xp: xp.gradient(m(xp, 9)), lambda xp: list(xp.gradient(m(xp, 5, 6), 2.0))],
    "interp": [lambda xp: xp.interp(m(xp, 7), xp.arange(5.0), v(xp))],
    "select": [lambda xp: xp.select([v(xp) > 1, v(xp) < 0], [v(xp), -v(xp)], 7.0)],
    "choose": [lambda xp: xp.choose(ints(xp, 0, 1, 1), [m(xp, 3), m(xp, 3) * 2])],
    "take_along_axis": [lambda xp: xp.take_along_axis(m(xp, 2, 3), xp.asarray(np.array([[2], [0]])), 1)],
    "polyval": [lambda xp: xp.polyval(v(xp), m(xp, 3, 4))],
    "isclose": [lambda xp: xp.isclose(v(xp), v(xp) + 1e-9)],
    "digitize": [lambda xp: xp.digitize(v(xp), xp.arange(4.0))],
    "searchsorted": [lambda xp: xp.searchsorted(xp.arange(9.0), v(xp), "right")],
    "angle": [lambda xp: xp.angle(v(xp) + 1j)],
    "linalg.solve": [
        lambda xp: xp.linalg.solve(spd(xp), m(xp, 4)),
        lambda xp: xp.linalg.solve(spd(xp), m(xp, 4, 6)),
    ],
    "linalg.qr": [lambda xp: xp.absolute(xp.linalg.qr(m(xp, 6, 5), "r"))],
    "linalg.svd": [
        lambda xp: xp.linalg.svd(m(xp, 6, 5), compute_uv=False),
        lambda xp: xp.linalg.svd(m(xp, 6, 5), False)[1],
    ],
    "linalg.eigh": [lambda xp: xp.linalg.eigh(spd(xp))[0]],
    "linalg.matrix_power": [lambda xp: xp.linalg.matrix_power(spd(xp), 3)],
    "linalg.slogdet": [lambda xp: tuple(xp.linalg.slogdet(spd(xp)))],
    "linalg.pinv": [lambda xp: xp.linalg.pinv(m(xp, 6, 5))],
    "polynomial.polynomial.polyval": [lambda xp: xp.polynomial.polynomial.polyval(m(xp, 6), v(xp))],
    "polynomial.polynomial.polyvalfromroots": [
        lambda xp: xp.polynomial.polynomial.polyvalfromroots(m(xp, 6), v(xp))
    ],
    "clip": [lambda xp: xp.clip(v(xp), 0, 2), lambda xp: v(xp).clip(None, 1)],
    "ediff1d": [lambda xp: xp.ediff1d(v(xp), to_end=v(xp))],
    "diff": [lambda xp: xp.diff(m(xp, 3, 9), 2, 1), lambda xp: xp.diff(v(xp), prepend=v(xp))],
    "convolve": [lambda xp: xp.convolve(v(xp), m(xp, 3)), lambda xp: xp.convolve(v(xp), m(xp, 3), "same")],
    "correlate": [lambda xp: xp.correlate(v(xp), m(xp, 3))],
    "vdot": [lambda xp: xp.vdot(v(xp), v(xp))],
    "inner": [lambda xp: xp.inner(m(xp, 2, 5), v(xp))],
    "outer": [lambda xp: xp.outer(v(xp), m(xp, 2, 3))],
    "tensordot": [lambda xp: xp.tensordot(m(xp, 2, 3, 4), m(xp, 4, 3, 5), ([1, 2], [1, 0]))],
    "kron": [lambda xp: xp.kron(m(xp, 2, 3), v(xp))],
    "concatenate": [
        lambda xp: xp.concatenate([m(xp, 2, 3), m(xp, 4, 3)]),
        lambda xp: xp.concatenate((v(xp), m(xp, 2, 3)), None),
    ],
    "concat": [lambda xp: xp.concat([v(xp), v(xp)])],
    "stack": [lambda xp: xp.stack([v(xp), v(xp)], axis=1)],
    "vstack": [lambda xp: xp.vstack([v(xp), v(xp)])],
    "hstack": [lambda xp: xp.hstack([m(xp, 2, 3), m(xp, 2, 1)])],
    "dstack": [lambda xp: xp.dstack([v(xp), v(xp)])],
    "column_stack": [lambda xp: xp.column_stack([v(xp), m(xp, 5, 2)])],
    "tile": [lambda xp: xp.tile(m(xp, 2, 3), (2, 1, 2))],
    "roll": [lambda xp: xp.roll(m(xp, 2, 3), 1, 1)],
    "pad": [lambda xp: xp.pad(m(xp, 2, 3), ((1, 0), (2, 2))), lambda xp: xp.pad(v(xp), 2, "edge")],
    "append": [lambda xp: xp.append(m(xp, 2, 3), v(xp))],
    "resize": [lambda xp: xp.resize(v(xp), (2, 4))],
    "repeat": [lambda xp: xp.repeat(m(xp, 2, 3), 3, 1), lambda xp: xp.repeat(m(xp, 2), [2, 3])],
    "partition": [lambda xp: xp.sort(xp.partition(v(xp), 2)[:2])],
    "argpartition": [lambda xp: v(xp)[xp.argpartition(v(xp), 2)][2]],
    "lexsort": [lambda xp: xp.lexsort(m(xp, 2, 5))],
    "take": [lambda xp: xp.take(m(xp, 2, 3), ints(xp, 0, 2, 2), axis=1)],
    "where": [lambda xp: xp.where(v(xp) > 0, v(xp), 1.5), lambda xp: xp.where(v(xp) > 1)],
    "percentile": [
        lambda xp: xp.percentile(m(xp, 3, 4), [10, 50], axis=1),
        lambda xp: xp.percentile(v(xp), 30),
    ],
    "quantile": [lambda xp: xp.quantile(m(xp, 3, 4), 0.3, axis=0, keepdims=True)],
    "histogram": [lambda xp: xp.histogram(v(xp), 3), lambda xp: xp.histogram(v(xp), xp.arange(4.0))],
    "histogram2d": [lambda xp: xp.histogram2d(v(xp), v(xp) + 1, 3)],
    "histogramdd": [lambda xp: xp.histogramdd(m(xp, 9, 2), 3)[0]],
    "array_equal": [lambda xp: xp.array_equal(v(xp), v(xp))],
    "array_equiv": [lambda xp: xp.array_equiv(v(xp), m(xp, 2, 5))],
    "allclose": [lambda xp: xp.allclose(v(xp), v(xp) + 1e-9)],
    "isin": [lambda xp: xp.isin(m(xp, 2, 3), v(xp))],
    "in1d": [lambda xp: np.isin(v(np), m(np, 3)) if xp is np else xp.in1d(v(xp), m(xp, 3))],
    "packbits": [lambda xp: xp.packbits(ints(xp, 0, 1, 1, 0, 1, 0, 0, 0, 1))],
    "unpackbits": [lambda xp: xp.unpackbits(xp.asarray(np.array([3, 200], np.uint8)))],
    "vander": [lambda xp: xp.vander(v(xp), 3)],
    "diag": [lambda xp: xp.diag(v(xp), 1), lambda xp: xp.diag(m(xp, 3, 5), -1)],
    "diagflat": [lambda xp: xp.diagflat(m(xp, 2, 2), 1)],
    "tri": [lambda xp: xp.tri(4, 6, 1)],
    "ravel_multi_index": [lambda xp: xp.ravel_multi_index((ints(xp, 1, 2), ints(xp, 3, 0)), (4, 5))],
    "unravel_index": [lambda xp: xp.unravel_index(ints(xp, 7, 19), (4, 5))],
    "indices": [lambda xp: xp.indices((2, 3))],
    "diag_indices": [lambda xp: xp.diag_indices(4)],
    "diag_indices_from": [lambda xp: xp.diag_indices_from(spd(xp))],
    "tril_indices": [lambda xp: xp.tril_indices(4, 1, 5)],
    "triu_indices": [lambda xp: xp.triu_indices(4, -1)],
    "tril_indices_from": [lambda xp: xp.tril_indices_from(spd(xp))],
    "triu_indices_from": [lambda xp: xp.triu_indices_from(spd(xp), 1)],
    "arange": [lambda xp: xp.arange(2, 11, 3), lambda xp: xp.arange(0.5, 3)],
    "linspace": [lambda xp: xp.linspace(0, 1, 7, endpoint=False)],
    "logspace": [lambda xp: xp.logspace(0, 2, 5)],
    "eye": [lambda xp: xp.eye(3, 4, 1)],
    "identity": [lambda xp: xp.identity(3)],
    "meshgrid": [lambda xp: tuple(xp.meshgrid(v(xp), m(xp, 3), indexing="ij"))],
    "kaiser": [lambda xp: xp.kaiser(7, 2.0)],
    "polyadd": [lambda xp: xp.polyadd(v(xp), m(xp, 3))],
    "polysub": [lambda xp: xp.polysub(v(xp), m(xp, 3))],
    "polymul": [lambda xp: xp.polymul(v(xp), m(xp, 3))],
    "poly": [lambda xp: xp.poly(v(xp))],
    "polyfit": [lambda xp: xp.polyfit(xp.arange(5.0), v(xp), 2)],
    "roots": [lambda xp: xp.sort(xp.roots(xp.asarray(np.array([1.0, 0.0, -1.0]))))],
    "cumulative_sum": [lambda xp: xp.cumulative_sum(v(xp), include_initial=True)],
    "cumulative_prod": [lambda xp: xp.cumulative_prod(m(xp, 2, 3), axis=1)],
    "linalg.tensorsolve": [lambda xp: xp.linalg.tensorsolve(spd(xp).reshape(2, 2, 4), m(xp, 2, 2))],
    "linalg.tensorinv": [lambda xp: xp.linalg.tensorinv(spd(xp).reshape(2, 2, 4))],
    "linalg.eig": [lambda xp: xp.sort(xp.linalg.eig(spd(xp))[0].real)],
    "linalg.eigvals": [lambda xp: xp.sort(xp.linalg.eigvals(spd(xp)).real)],
    "fft.fftfreq": [lambda xp: xp.fft.fftfreq(7, 0.1)],
    "fft.rfftfreq": [lambda xp: xp.fft.rfftfreq(7, 0.1)],
    "fft.fftshift": [lambda xp: xp.fft.fftshift(m(xp, 4, 5))],
    "fft.ifftshift": [lambda xp: xp.fft.ifftshift(m(xp, 4, 5), axes=1)],
    "extract": [lambda xp: xp.extract(v(xp) > 0, v(xp))],
    "compress": [lambda xp: xp.compress(v(xp) > 0, v(xp))],
    "delete": [lambda xp: xp.delete(v(xp), 1)],
    "bincount": [lambda xp: xp.bincount(ints(xp, 1, 4, 1), minlength=3)],
    "real_if_close": [lambda xp: xp.real_if_close(v(xp) + 0j)],
    "linalg.lstsq": [lambda xp: xp.linalg.lstsq(m(xp, 6, 2), m(xp, 6), rcond=None)[:2]],
    "ldexp": [lambda xp: xp.ldexp(v(xp), ints(xp, 1, 2, 3, 1, 0))],
    "frexp": [lambda xp: xp.frexp(v(xp))],
    "bitwise_count": [lambda xp: xp.bitwise_count(ints(xp, 1, 7, 255))],
}
for _name in "bartlett blackman hamming hanning".split():
    CALLS[_name] = [lambda xp, name=_name: getattr(xp, name)(8)]
for _name in "fft ifft rfft irfft".split():
    CALLS[f"fft.{_name}"] = [
        lambda xp, name=_name: getattr(xp.fft, name)(m(xp, 3, 9)),
        lambda xp, name=_name: getattr(xp.fft, name)(m(xp, 9, 2, dtype=np.float32), 6, 0, "ortho"),
    ]
for _name in "fft2 ifft2 fftn ifftn rfft2 irfft2 rfftn irfftn".split():
    CALLS[f"fft.{_name}"] = [lambda xp, name=_name: getattr(xp.fft, name)(m(xp, 3, 4, 6))]
for _name in "setdiff1d setxor1d union1d intersect1d".split():
    CALLS[_name] = [lambda xp, name=_name: getattr(xp, name)(ints(xp, 1, 2, 3), ints(xp, 2, 5))]

_SQUARE = "linalg.det linalg.inv linalg.cholesky linalg.eigvalsh linalg.matrix_rank linalg.cond".split()
_INTEGERS = """bitwise_invert bitwise_not invert bitwise_and bitwise_or bitwise_xor left_shift right_shift
bitwise_left_shift bitwise_right_shift gcd lcm""".split()
_UNIT = "arcsin arccos asin acos arctanh atanh".split()
_ABOVE = "sqrt log log2 log10 log1p arccosh acosh".split()


def lookup(xp, name):
    for part in name.split("."):
        xp = getattr(xp, part)
    return xp


def calls(function):
    """The calls of one entry of the table: its own, or those of its kind."""
    name, kind = function.name, function.kind
    if name in CALLS:
        return CALLS[name]
    if name in _SQUARE:
        return [lambda xp: lookup(xp, name)(spd(xp))]
    if name in _INTEGERS:
        operands = (lambda xp: ints(xp, 6, 5, 1),) * (1 if kind == "unary" else 2)
    elif kind == "unary":
        scale, shift = (0.2, 0.0) if name in _UNIT else (1.0, 6.0) if name in _ABOVE else (1.0, 0.0)
        operands = (lambda xp: v(xp) * scale + shift,)
    elif kind in ("binary", "ufunc") and name != "modf":
        operands = (lambda xp: abs(v(xp)) + 1, lambda xp: xp.asarray(np.array([1.5, 2.0, 2.5, 2.0, 2.0])))
    elif kind in ("reduce", "scan"):
        return [lambda xp: lookup(xp, name)(m(xp, 3, 5)), lambda xp: lookup(xp, name)(m(xp, 6, 7, 2), 1)]
    elif name in ("msort", "trapz"):
        return [lambda xp: np.sort(m(np, 3, 4), 0) if xp is np else lookup(xp, name)(m(xp, 3, 4))]
    else:
        operands = (lambda xp: m(xp, 6, 6),)
    return [lambda xp: lookup(xp, name)(*[x(xp) for x in operands])]


def same(mine, truth):
    if isinstance(truth, tuple | list):
        assert len(mine) == len(truth)
        for x, y in zip(mine, truth):
            same(x, y)
        return
    host = mine.get() if hasattr(mine, "get") else np.asarray(mine)
    truth = np.asarray(truth)
    assert (host.shape, host.dtype) == (truth.shape, truth.dtype)
    np.testing.assert_allclose(host, truth, rtol=1e-4 if host.dtype.char in "efF" else 1e-8, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_every_function_gives_what_numpy_gives(cp, kind):
    failures = []
    for function in TABLE:
        if function.kind != kind:
            continue
        for call in calls(function):
            try:
                same(call(cp), call(np))
            except Exception as error:
                failures.append(f"{function.name}: {type(error).__name__}: {str(error).strip()[:200]}")
    assert not failures, "\n".join(failures)


#: functions whose first call of a signature asks the worker, and whose calls in ``CALLS`` read values
_WAIT_FIRST = {"histogram2d", "histogramdd"}
_WAITS_BY_ITSELF = {"histogram", "where", "unravel_index"}  # values are checked, as CuPy does


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "wait"])
def test_what_can_be_predicted_makes_no_round_trip(cp, kind):
    waited = []
    for function in TABLE:
        if function.kind != kind or function.name in _WAITS_BY_ITSELF:
            continue
        for call in calls(function):
            if function.name in _WAIT_FIRST:
                call(cp)
            cp.cuda.Device().synchronize()
            before = cp.stats()["round_trips"]
            kept = call(cp)
            if cp.stats()["round_trips"] != before:
                waited.append(function.name)
            del kept
    assert not waited, f"made a round trip: {sorted(set(waited))}"


def test_a_wrong_keyword_is_a_type_error_at_once(cp):
    a = cp.arange(4.0)
    for call in (
        lambda: cp.sum(a, axes=0), lambda: cp.sort(a, order="x"), lambda: cp.linalg.svd(a, hermitian=True),
        lambda: cp.concatenate(), lambda: cp.mean(a, a=a), lambda: cp.nancumsum(a, 0, None, None, 1),
    ):  # fmt: skip
        with pytest.raises(TypeError):
            call()


def test_out_is_checked_when_the_call_is_made(cp):
    a = m(cp, 3, 4)
    out = cp.empty(4)
    assert cp.sum(a, axis=0, out=out) is out
    np.testing.assert_allclose(out.get(), m(np, 3, 4).sum(0))
    with pytest.raises(ValueError):
        cp.sum(a, axis=1, out=out)
    with pytest.raises(TypeError):
        cp.clip(a, 0, 1, out=cp.empty((3, 4), int))


def test_singular_matrices_give_nan_not_an_error(cp):
    singular = cp.zeros((3, 3))
    assert np.isnan(cp.linalg.inv(singular).get()).all()
    assert np.isnan(cp.linalg.solve(singular, cp.ones(3)).get()).all()
    with pytest.raises(np.linalg.LinAlgError):
        cp.linalg.inv(cp.zeros((3, 4)))


def test_polynomials(cp):
    mine, truth = cp.poly1d([1, 2, 3]), np.poly1d([1, 2, 3])
    for body in (
        lambda p: p + 1, lambda p: 2 * p, lambda p: p * p - p, lambda p: p**3, lambda p: -p, lambda p: p / 2,
    ):  # fmt: skip
        np.testing.assert_allclose(body(mine).get().coeffs, body(truth).coeffs)
    assert str(mine) == str(truth) and mine.order == 2 and mine[1] == 2 and mine == cp.poly1d([0, 1, 2, 3])
    np.testing.assert_allclose(mine(v(cp)).get(), truth(v(np)))
    np.testing.assert_array_equal(cp.trim_zeros(cp.array([0, 0, 1, 2, 0])).get(), [1, 2])
