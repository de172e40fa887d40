"""A training loop leaves as repetitions, and computes what it does without them and what NumPy computes."""

import json

import pytest

from rgpu import _native
from tests.support.servers import program

pytestmark = pytest.mark.skipif(_native.issue is None, reason="what repeats is recognized by the C core alone")
TRAINING = """
import json, sys
import numpy as np
xp = __import__(sys.argv[1])
read = sys.argv[2] == "read"
rng = np.random.default_rng(3)
x, y = (xp.asarray(rng.standard_normal(s).astype("f4")) for s in ((64, 30), (64, 5)))
w = [xp.asarray((rng.standard_normal(s) * 0.1).astype("f4")) for s in ((30, 40), (40, 5))]
b = xp.zeros(40, "f4")
losses, rate = [], 0.1
for n in range(150):
    h = xp.tanh(x @ w[0] + b)
    out = h @ w[1]
    error = (out - y) / len(x)
    loss = (error * error).sum()
    dh = (error @ w[1].T) * (1 - h * h)
    w[1] -= rate * (h.T @ error)
    w[0] = w[0] - rate * (x.T @ dh)
    b -= rate * dh.sum(axis=0)
    rate *= 0.999
    if n == 100:
        x = x[::-1].copy(); y = y[::-1].copy()  # the loop goes on with others
    losses.append(float(loss) if read else loss)
numbers = [float(v).hex() for v in losses] + [float(v).hex() for v in (w[0].sum(), w[1].min(), b.max())]
state = xp.stats() if sys.argv[1] == "rgpu" else {"commands": 0, "replayed": 0}
print(json.dumps([numbers, state["commands"], state["replayed"]]))
"""


def train(servers, name, read, replay):
    done = program(TRAINING, servers[0], arguments=(name, read), RGPU_REPLAY=replay)
    return json.loads(done.stdout)


@pytest.mark.parametrize("read", ["read", "at the end"])
def test_a_training_loop_is_the_same_to_the_bit(servers, read):
    with_it, without, local = (
        train(servers, *how) for how in (("rgpu", read, "1"), ("rgpu", read, "0"), ("numpy", read, "1"))
    )
    assert with_it[0] == without[0] == local[0]
    assert without[2] == 0 and with_it[2] > 0.6 * with_it[1]


def test_an_error_in_a_repetition_names_its_line(servers):
    source = """
import rgpu as cp
a, b, small = cp.ones((50, 50)), cp.ones((50, 50)), cp.ones(50)
for n in range(40):
    c = a + b
    for k in range(10): c = c * 0.5 + a
    m = cp.linalg.cholesky(b if n == 35 else a.T @ a + 50 * cp.eye(50))  # line 7
    d = c @ m
    try:
        d.sum().item()
    except Exception as error:
        print(n, type(error).__name__, [note for note in error.__notes__ if "line 7" in note or ":7:" in note] != [])
print(cp.stats()["replayed"] > 100)
"""
    done = program(source, servers[0], RGPU_REPLAY="1")  # also where the other tests run without
    assert done.stdout.split("\n")[:2] == ["35 LinAlgError True", "True"] or done.stdout == "True\n", done.stdout


def test_threads_and_devices_share_the_handles_and_stay_right(servers):
    source = """
import threading
import numpy as np
import rgpu as cp
found = {}
def work(d):
    with cp.cuda.Device(d):
        x = cp.arange(1000.0) + d
        for n in range(300):
            y = x * 1.0001 + n
            x = cp.sqrt(y * y + 1) - n
        found[d] = x.get()
threads = [threading.Thread(target=work, args=(d % 2,), name=str(d)) for d in (0, 1)]
for t in threads: t.start()
for t in threads: t.join()
for d in (0, 1):
    x = np.arange(1000.0) + d
    for n in range(300):
        y = x * 1.0001 + n
        x = np.sqrt(y * y + 1) - n
    assert (found[d] == x).all(), d
print("ok")
"""
    assert program(source, servers[0]).stdout == "ok\n"
