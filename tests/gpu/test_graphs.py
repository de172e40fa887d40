"""What a loop repeats on a real card: launched as CUDA graphs, and the same to the bit as without."""

import json

import pytest

from tests.support.servers import program

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]
TRAINING = """
import json, sys
import numpy as np
import rgpu as cp
rng = np.random.default_rng(3)
w, g0 = (cp.asarray(rng.standard_normal(1000).astype("f4")) for _ in range(2))
m, v = cp.zeros_like(w), cp.zeros_like(w)
x = cp.asarray(rng.standard_normal((200, 1000)).astype("f4"))
losses = []
for n in range(200):  # Adam, and one product of matrices between two graphs
    g = g0 * 0.01 + cp.tanh(w) * 0.1
    m *= 0.9
    m += g * 0.1
    v *= 0.999
    v += g * g * 0.001
    w = w - 0.01 * m / (cp.sqrt(v) + 1e-8)
    out = x @ w
    error = cp.maximum(out, 0) - 1
    loss = (error * error).mean()
    g0 = g0 * 0.99 + loss * 0.01
    losses.append(float(loss) if n % 10 == 0 else loss)
numbers = [float(x).hex() for x in losses] + [float(x).hex() for x in (w.sum(), m.min(), v.max(), g0.sum())]
print(json.dumps([numbers, cp.stats()["devices"][0].get("graphs")]))
"""
PLAIN = {"RGPU_REPLAY": "0"}


def train(servers, **environment):
    return json.loads(program(TRAINING, servers[0], **environment).stdout)


def test_a_training_loop_is_launched_as_graphs_and_the_same_to_the_bit(servers):
    numbers, graphs = train(servers, RGPU_REPLAY="1")
    expected, none = train(servers, **PLAIN)
    assert numbers == expected and none is None
    assert graphs["captured"] and graphs["launched"] > 100, graphs
    assert graphs["commands"] > 3 * graphs["launched"]


def test_memory_is_given_back_to_a_program_that_wants_all_of_it(servers):
    source = """
import rgpu as cp
x = cp.arange(1 << 20, dtype="f4")
for n in range(100):
    y = cp.sin(x) * 0.5
    z = y + x * 0.25
    x = cp.minimum(z, 100)
total = float(x.sum())
free, _ = cp.cuda.runtime.memGetInfo()
big = cp.zeros(int(free * 0.95), "u1")
print(int(big.sum()), total == float(x.sum()), cp.stats()["devices"][0]["graphs"]["launched"] > 50)
"""
    assert program(source, servers[0], RGPU_REPLAY="1").stdout == "0 True True\n"
