"""Calls whose floats stand in no signature are issued by what other values made: no layout may depend on them."""

import math

import numpy as np
import pytest

import rgpu as cp
import rgpu.cupyx.scipy.ndimage as ndimage
from rgpu.client import pool
from rgpu.errors import RgpuError
from rgpu.functions import dispatch
from rgpu.wire.functions import BY_NAME

FLOATS = [0.5, 0.0, -0.0, 1.0, -2.5, 3.0, 8.0, 1e-300, 1e300, -1e300, 2.0**63, math.inf, -math.inf, math.nan]
OTHERS = [0, 1, 7, -3, 1 << 40, True, False]
#: what stands before the parameter in a call, for arrays of each dtype
BEFORE = {
    "clip": lambda a: (a,),
    "where": lambda a: (a > 1,),
    "isclose": lambda a: (a, a),
    "allclose": lambda a: (a, a),
    "nan_to_num": lambda a: (a,),
    "interp": lambda a: (a, cp.arange(4.0), cp.arange(4.0)),
}
BETWEEN = {
    ("clip", 2): (0.25,),
    ("where", 2): (0.25,),
    ("isclose", 3): (1e-5,),
    ("allclose", 3): (1e-5,),
    ("interp", 4): (0.5,),
}


def layout(name, args, kwargs):
    """What the worker makes of it, unpredicted; None where it refuses."""
    encoded = dispatch._Arguments(pool.current_stream(), args, kwargs, True)
    try:
        found = dispatch.ask(BY_NAME[name], encoded)
    except (ArithmeticError, TypeError, ValueError, RgpuError):
        return None
    return found.shape, found.dtype, found.get().shape


def calls(name, parameter, array, value):
    if isinstance(parameter, int):
        return (
            *BEFORE[name](array),
            *BETWEEN.get((name, parameter), ()),
            *((value, 0.5) if name == "where" and parameter == 1 else (value,)),
        ), {}
    return BEFORE[name](array), {parameter: value}


@pytest.mark.parametrize("name", dispatch._FREE)
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i1", "i8", "u4", "?", "c8"])
def test_no_value_decides_a_layout(name, dtype):
    array = cp.arange(6).reshape(2, 3).astype(dtype)
    for parameter in dispatch._FREE[name]:
        found = {layout(name, *calls(name, parameter, array, value)) for value in FLOATS} - {None}
        assert len(found) <= 1, (name, parameter, found)


def test_every_free_parameter_is_tried():
    """In the layouts above there is one of each function: nothing holds only because all is refused."""
    array = cp.arange(6.0).reshape(2, 3)
    for name, parameters in dispatch._FREE.items():
        assert any(layout(name, *calls(name, parameter, array, 0.5)) for parameter in parameters), name


CALLS = {
    "clip": lambda xp, a, x: xp.clip(a, x, 5.0),
    "isclose": lambda xp, a, x: xp.isclose(a, a + 1, x),
    "isclose atol": lambda xp, a, x: xp.isclose(a, a + 1, rtol=0.5, atol=x),
    "isclose equal_nan": lambda xp, a, x: xp.isclose(a, a, x, 1e-8, True),
    "nan_to_num": lambda xp, a, x: xp.nan_to_num(a, nan=x),
    "nan_to_num posinf": lambda xp, a, x: xp.nan_to_num(a, posinf=x, neginf=0.5),
    "interp": lambda xp, a, x: xp.interp(a.ravel(), xp.arange(2.0, 5.0), xp.arange(3.0), x, 1.0),
    "where": lambda xp, a, x: xp.where(a > 1, x, 0.5),
    "quantile": lambda xp, a, x: xp.quantile(a, 0.25 if x == 1.0 else 0.5, keepdims=bool(x)),
    "percentile": lambda xp, a, x: xp.percentile(a, 25.0 if x == 1.0 else 50.0, axis=0),
    "round": lambda xp, a, x: xp.round(a, 1) + x,
}  # fmt: skip


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_repeated_calls_have_each_value(call):
    host = np.arange(6.0).reshape(2, 3)
    host[0, 1] = np.nan if call in (CALLS["nan_to_num"], CALLS["isclose equal_nan"]) else np.inf
    host[1, 1] = 4.5
    device = cp.array(host)
    with np.errstate(all="ignore"):
        for _ in range(4):
            for value in (*FLOATS, *OTHERS):
                found, expected = call(cp, device, value), np.asarray(call(np, host, value))
                assert found.shape == expected.shape and found.dtype == expected.dtype, value
                np.testing.assert_allclose(found.get(), expected, err_msg=str(value))


def test_flags_and_counts_that_are_floats_decide():
    a, m = cp.arange(12.0), cp.arange(12.0).reshape(3, 4)
    for _ in range(4):
        for keep in (0.0, 1.0):
            try:
                assert cp.quantile(m, 0.5, keepdims=keep).ndim == (2 if keep else 0)
            except TypeError:
                pass
        for n in (2.0, 5.0):
            assert cp.bartlett(n).shape == (int(n),) and cp.hanning(n).shape == (int(n),)
        with pytest.raises(ValueError):
            cp.quantile(a, 1.5).get()
        assert float(cp.quantile(a, 0.5)) == 5.5


WEIGHTS = {
    "gaussian": lambda m, x: ndimage.gaussian_filter(m, x),
    "cval": lambda m, x: ndimage.gaussian_filter(m, 1.5, mode="constant", cval=x),
    "shift": lambda m, x: ndimage.shift(m, x, order=1),
    "laplace": lambda m, x: ndimage.laplace(m, mode="constant", cval=x),
    "gradient": lambda m, x: ndimage.gaussian_gradient_magnitude(m, x),
}  # fmt: skip


@pytest.mark.parametrize("call", WEIGHTS.values(), ids=WEIGHTS)
def test_weights_of_filters(call):
    m = cp.arange(64.0).reshape(8, 8)
    expected = {}
    for _ in range(4):
        for value in (0.5, 1.0, 1.5, 3.0, 0.75, 1, 2):
            found = call(m, value)
            assert found.shape == (8, 8) and found.dtype == m.dtype
            np.testing.assert_array_equal(found.get(), expected.setdefault(value, found.get()))
    assert len({x.tobytes() for x in expected.values()}) > 1


def test_one_number_given_twice_is_two_numbers():
    """Its places in the command look alike, and the next call has a number for each."""
    a, x = cp.arange(6.0), float("2.5")
    for low, high in [(x, x)] * 5 + [(1.0, 4.0), (x, x), (0.5, 2.0)]:
        np.testing.assert_array_equal(cp.clip(a, low, high).get(), np.clip(np.arange(6.0), low, high))


def test_one_array_given_twice_is_told_apart():
    from rgpu.cupyx.scipy import signal

    x, y = cp.arange(64.0), cp.arange(64.0)[::-1].copy()
    for _ in range(4):
        assert signal.csd(x, x, nperseg=16)[1].dtype.kind == "f"
        assert signal.csd(x, y, nperseg=16)[1].dtype.kind == "c"
