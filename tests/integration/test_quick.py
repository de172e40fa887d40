"""A program sends the same commands through the C core as without it, and its arrays are the same."""

import json

import pytest

from rgpu import _native
from tests.support.servers import program

PROGRAM = """
import json, sys
import numpy as np
import rgpu as cp
from rgpu import _native
from rgpu.client import pool
from rgpu.wire import codec, ops

sent = []
stream = pool.current_stream()
take = stream.take
def spy(*how):
    body = take(*how)
    sent.extend(codec.unpack(body)[1] if body else [])
    return body
stream.take = spy

a, b, m = cp.arange(12.0).reshape(3, 4), cp.ones((3, 4)), cp.ones((4, 5))
i8, flags = cp.arange(6, dtype="i1"), cp.arange(4) > 1
double = cp.ElementwiseKernel("T x, T y", "T z", "z = x * y + 1", "quick_double")
class Sub(cp.ndarray):
    pass
kept, results = [], []
def line(k):
    c = a + b; d = c * 2 - a / 3.5; e = (1 - d) ** 2; f = a + a; g = b - a
    c += 1; c -= b; c *= 0.5; c += k
    kept.append(c)
    v = a[1:]; w = a.T[k % 2:, ::2]; x = v[:, 1]; y = a[k % 3]; z = a.reshape(4, 3)[..., None]
    v += 10; v -= 10.0
    s = a.sum(); t = a.sum(axis=0); u = a.max(axis=1, keepdims=True); o = cp.mean(a); p = a.mean(axis=(0, 1))
    q = a @ m; r = cp.maximum(a, 0.5); aa = cp.where(a > k, a, b); bb = cp.exp(-a); cc = double(a, b)
    dd = cp.clip(a, 0.25 * k, 7); ee = i8 + k; ff = i8 + 1.5; gg = a.view(Sub) + 1; hh = cp.add(a, b); ii = abs(a)
    jj = a == b; kk = i8 % 3; ll = 2 ** i8; mm = divmod(a, 2)[1]; nn = a[a > 3]; oo = cp.sum(z, axis=1)
    pp = a.astype("f4"); qq = a.ravel(); rr = b.copy(); rr[0] = k; rr[:, 1] += 2; ss = ~flags
    tt = a.transpose(1, 0) + 0
    uu = cp.zeros((2, 3)); vv = cp.ones(4, cp.int8); ww = cp.zeros(5, np.dtype("f4"), "F"); xx = cp.empty((2, 2), "f4")
    xx[:] = k; yy = a.astype(np.dtype("f4")); zz = cp.zeros(k + 1); zz += 1; uu += k
    ab = cp.zeros(i8[k % 6 : k % 6 + 1]); ac = cp.empty((0, k)); ad = cp.zeros((), bool)
    for p, q in ((a, a), (a, b), (b, a), (b, b), (a, a), (b[:1], a), (a, 1), (a, 1.0), (a, 200), (i8, 1), (i8, 200.0)):
        cp.subtract(p, q, dtype="f4"); cp.subtract(q, p); kept.append(p - q); results.append(kept.pop().sum().item())
    for n in (slice(1, None), slice(2), slice(0, 2), slice(0, 2, 2), slice(None, None, -1), slice(0, 3, 2**61 + 1)):
        results.append(a[n].tolist()); results.append(a[n, n].tolist())
    for n in range(12):
        results.append(cp.zeros((n, 2)).T.shape); results.append(tuple((cp.ones(n) + 1).tolist())); rr.sum(axis=n % 2)
    rr.shape = (4, 3) if k % 2 else (2, 6); results.append((rr * 2).tolist())
    with cp.cuda.Device(1):
        results.append([cp.zeros(3).device.id, cp.ones(2).sum().item()])
    for n, found in sorted(locals().items()):
        if isinstance(found, cp.ndarray):
            results.append([n, type(found).__name__, found.dtype.str, list(found.shape), list(found.strides),
                            found.tolist(), found.base is not None])
for k in range(8):
    line(k)
try:
    cp.ones(3) + cp.ones(4)
except ValueError as error:
    results.append(str(error))
quick = [cp.sum, type(a).sum, type(a).reshape, cp.clip, type(double).__call__, cp.zeros, cp.ones, cp.empty]
known = [f.known if isinstance(f.known, int) else sum(type(x) is not int for x in f.known.values()) for f in quick]
shown = [c for c in sent if c[0] not in (ops.Free.tag, ops.Read.tag)]
print(json.dumps([known, results, json.loads(json.dumps(shown, default=repr))]))
"""


@pytest.mark.skipif(_native.issue is None, reason="the C core is not built here")
def test_the_same_commands_and_results(servers):
    found = {}
    for pure in ("0", "1"):
        link = {"RGPU_LINK": ""} if pure == "1" else {}  # without the C core some links are not to be had
        settings = {"RGPU_PURE": pure, "RGPU_REPLAY": "0", "RGPU_CHECK_PREDICTION": "0"}  # checks are commands, too
        done = program(PROGRAM, *servers, **settings, **link)
        assert done.returncode == 0, done.stderr
        found[pure] = json.loads(done.stdout)
    assert all(found["0"][0]), "the C core has learned nothing"
    assert all(found["1"][0]), "its twin has learned nothing"
    assert found["0"][1] == found["1"][1]
    assert found["0"][2] == found["1"][2]


@pytest.fixture(params=["with the C core", "without"])
def core(request):
    """The environment that a program is to have."""
    if request.param == "without":
        return {"RGPU_PURE": "1", "RGPU_LINK": ""}
    return {}


def test_predictions_hold_when_calls_repeat(servers, core):
    done = program(PROGRAM, *servers, RGPU_CHECK_PREDICTION="1", **core)
    assert done.returncode == 0, done.stderr


def test_one_number_in_two_places(servers, core):
    """Which is whose cannot be told from the first call, so nothing is learned of it."""
    source = """
import rgpu as cp
a = cp.array([0.0, 0.5, 1.0])
for k in range(6):
    cp.clip(a, 0.5, 0.5), cp.where(a > 0.4, 2.0, 2.0)
for k in range(3):
    print(cp.clip(a, 0.25, 0.75).tolist(), cp.where(a > 0.4, 1.0, 3.0).tolist())
"""
    assert program(source, *servers, **core).stdout.splitlines() == ["[0.25, 0.5, 0.75] [3.0, 1.0, 1.0]"] * 3


def test_an_error_names_the_users_line(servers, core):
    """Also of a command that took the short way: the pool's limit is met by the twentieth of its kind."""
    source = """
import rgpu as cp
cp.get_default_memory_pool().set_limit(size=1 << 20)
a, kept = cp.ones(6000), []
def user(y):
    kept.append(y * 2.0)
try:
    for n in range(30):
        user(a)
    kept[-1].get()
except cp.cuda.memory.OutOfMemoryError as error:
    print("<string>:6:" in "".join(error.__notes__), len(kept))
"""
    assert program(source, *servers, **core).stdout == "True 30\n"
