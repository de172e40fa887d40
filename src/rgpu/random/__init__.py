"""``cupy.random``: random numbers drawn on the devices.

Old interface: functions over one ``RandomState`` a device. New interface: ``default_rng`` and
``Generator`` over a bit generator. No draw waits for the worker.
"""

from __future__ import annotations

from typing import Any

import numpy as _numpy

import rgpu._ndarray  # noqa: F401 - the class of results
from rgpu.random import _bit_generator, _distributions, _generator, _generator_api, _permutations, _sample
from rgpu.random._bit_generator import XORWOW, BitGenerator, MRG32k3a, Philox4x3210
from rgpu.random._generator import RandomState, get_random_state, reset_states, seed, set_random_state
from rgpu.random._generator_api import Generator
from rgpu.random._permutations import permutation, shuffle
from rgpu.random._sample import choice, multinomial, rand, randint, randn, random_integers, random_sample

random = ranf = sample = random_sample
globals().update({name: getattr(_distributions, name) for name in _distributions.NAMES})


def bytes(length: int) -> Any:
    """Random bytes, made on the host."""
    return _numpy.random.bytes(length)


def default_rng(seed: Any = None) -> Any:
    """A Generator over a new bit generator; a bit generator is wrapped, a Generator returned itself."""
    if isinstance(seed, BitGenerator):
        return Generator(seed)
    return seed if isinstance(seed, Generator) else Generator(XORWOW(seed))


__all__ = [  # noqa: PLE0604 - names of the table of distributions too
    "XORWOW", "BitGenerator", "Generator", "MRG32k3a", "Philox4x3210", "RandomState", "bytes", "choice",
    "default_rng", "get_random_state", "multinomial", "permutation", "rand", "randint", "randn", "random",
    "random_integers", "random_sample", "ranf", "reset_states", "sample", "seed", "set_random_state",
    "shuffle",
    *_distributions.NAMES,
]  # fmt: skip
