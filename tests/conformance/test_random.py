"""cupy.random on an embedded server: distributions, seeds, errors, and that drawing never waits."""

import numpy as np
import pytest

import rgpu as cp
from rgpu.random import _generator

pytestmark = pytest.mark.timeout(60)

VALUES = {
    "p": 0.5,
    "n": 5,
    "a": 2.0,
    "left": 0.0,
    "mode": 0.5,
    "right": 2.0,
    "ngood": 5,
    "nbad": 4,
    "nsample": 3,
}


@pytest.fixture(scope="module", autouse=True)
def server():
    """One embedded server for the module; it checks every predicted layout."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RGPU_CHECK_PREDICTION", "1")
        cp.connect("local")
        yield
        cp.close()


def parameters(name):
    words = [word.split("=")[0] for word in _generator.DISTRIBUTIONS[name].split()]
    return [VALUES.get(word, 1.5) for word in words if word not in ("size", "dtype")]


@pytest.mark.parametrize("name", sorted(_generator.DISTRIBUTIONS))
def test_every_distribution_has_the_predicted_layout(name):
    for values in (parameters(name), [cp.array([x] * 3) for x in parameters(name)]):
        drawn = getattr(cp.random, name)(*values, size=(2, 3))
        assert drawn.shape[:2] == (2, 3)
        assert np.isfinite(drawn.get()).all()


@pytest.mark.parametrize("name", ["normal", "gamma", "uniform", "laplace", "standard_t", "random_sample"])
def test_float32(name):
    drawn = getattr(cp.random, name)(*parameters(name), size=7, dtype=np.float32)
    assert drawn.dtype == np.float32 and drawn.get().dtype == np.float32


@pytest.mark.parametrize(
    "name", ["beta", "exponential", "normal", "poisson", "uniform", "binomial", "gumbel"]
)
def test_mean_is_numpys(name):
    ours = getattr(cp.random.RandomState(1), name)(*parameters(name), size=40_000).get()
    theirs = getattr(np.random.RandomState(2), name)(*parameters(name), size=40_000)
    spread = theirs.std() / np.sqrt(theirs.size)
    assert abs(ours.mean() - theirs.mean()) <= 8 * spread


def test_a_seed_repeats_and_none_does_not():
    first, again = (cp.random.RandomState(7).rand(50).get() for _ in range(2))
    assert (first == again).all()
    cp.random.seed(7)
    assert (cp.random.rand(50).get() == first).all()
    cp.random.seed()
    assert (cp.random.rand(50).get() != first).any()


@pytest.mark.parametrize("kind", ["XORWOW", "MRG32k3a", "Philox4x3210"])
def test_bit_generators(kind):
    bits = getattr(cp.random, kind)
    spawned = np.random.SeedSequence(2**70, spawn_key=(1, 2))
    for seed in (0, 2**80, [1, 2, 3], spawned):
        first, again = (cp.random.Generator(bits(seed)).random(9).get() for _ in range(2))
        assert (first == again).all()
    assert bits(3).random_raw(5).dtype == np.int32


def test_drawing_never_waits():
    rng, loc = cp.random.default_rng(3), cp.arange(4.0)
    cp.random.rand(1).get()
    before = cp.stats()["round_trips"]
    for _ in range(20):
        cp.random.normal(loc, 2.0)
        cp.random.randint(0, 9, (3, 4))
        cp.random.choice(9, 4, p=[1 / 9] * 9)
        cp.random.permutation(loc)
        cp.random.shuffle(loc)
        cp.random.multinomial(5, [0.25, 0.75], 3)
        rng.gamma(2.0, size=5)
        rng.integers(7, size=5)
    assert cp.stats()["round_trips"] == before


def test_permutations_are_permutations():
    shuffled = cp.arange(20)
    cp.random.shuffle(shuffled)
    for result in (shuffled, cp.random.permutation(20), cp.random.permutation(cp.arange(20))):
        assert sorted(result.get().tolist()) == list(range(20))
    picked = cp.random.choice(20, 20, replace=False)
    assert sorted(picked.get().tolist()) == list(range(20))
    counts = cp.random.multinomial(10, [0.2, 0.8], (3, 2))
    assert counts.shape == (3, 2, 2) and (counts.get().sum(-1) == 10).all()


def test_out_is_written_in_place():
    out, rng = cp.zeros((2, 3)), cp.random.default_rng(0)
    assert rng.random(out=out) is out
    assert (out.get() > 0).any()
    with pytest.raises(TypeError, match="wrong type"):
        rng.random(dtype=np.float32, out=out)
    with pytest.raises(ValueError, match="size must match"):
        rng.standard_normal(size=(3, 3), out=out)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda r: r.randint(5, 5), ValueError),
        (lambda r: r.randint(0, 300, dtype=np.int8), ValueError),
        (lambda r: r.exponential(-1.0), ValueError),
        (lambda r: r.exponential(cp.array([1.0, -1.0])), ValueError),
        (lambda r: r.rand(2, dtype=np.int32), TypeError),
        (lambda r: r.rand(2, size=3), TypeError),
        (lambda r: r.normal(nothing=1), TypeError),
        (lambda r: r.beta(1.0), TypeError),
        (lambda r: r.zipf(1.0), ValueError),
        (lambda r: r.choice(3, 2, p=[0.5, 0.6, -0.1]), ValueError),
        (lambda r: r.choice(3, 5, replace=False), ValueError),
        (lambda r: r.choice(3), NotImplementedError),
        (lambda r: r.shuffle([1, 2]), TypeError),
        (lambda r: r.seed(1.5), TypeError),
        (lambda r: r.seed(-1), ValueError),
        (lambda r: r.normal(cp.zeros(3), size=(2, 2)), ValueError),
    ],
)
def test_argument_errors_are_raised_at_once(call, error):
    with pytest.raises(error):
        call(cp.random.RandomState(0))


def test_states_are_kept_per_device():
    state = cp.random.RandomState(3)
    old = cp.random.get_random_state()
    try:
        cp.random.set_random_state(state)
        assert cp.random.get_random_state() is state
        with pytest.raises(TypeError):
            cp.random.set_random_state(3)
    finally:
        cp.random.set_random_state(old)
