"""Bit generators: the streams of random bits that a ``Generator`` draws from.

Each is an object on the worker, seeded with the same words that NumPy's SeedSequence makes of
the seed here, so that a seed means the same on every machine.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from rgpu.client import pool
from rgpu.client.meta import fresh
from rgpu.client.remote import Remote
from rgpu.functions import creation
from rgpu.functions.objects import RemoteObject


def _words(entropy: Any) -> list[int]:
    """Entropy as 32-bit words, lowest first (NumPy's order)."""
    if isinstance(entropy, int | np.integer):
        value, words = int(entropy), []
        while value or not words:
            words.append(value & 0xFFFFFFFF)
            value >>= 32
        return words
    return [word for item in entropy for word in _words(item)]


def _assembled(sequence: np.random.SeedSequence) -> np.ndarray:
    """The words a SeedSequence starts from; a sequence made of them alone is equal to it."""
    words = _words(sequence.entropy)
    if sequence.spawn_key:
        words += [0] * (sequence.pool_size - len(words))
        words += _words(sequence.spawn_key)
    return np.array(words, np.uint32)


def attributes(ordinal: int) -> dict:
    """What a bit generator has besides its object on the worker; its seed is not known any more."""
    return {"lock": threading.Lock(), "_seed_seq": None, "_current_device_id": ordinal}


class BitGenerator(RemoteObject):
    """Base of the bit generators; ``seed``: None, integers or a SeedSequence."""

    __module__ = "cupy.random._bit_generator"

    def __init__(self, seed: Any = None) -> None:
        self.lock = threading.Lock()
        if isinstance(seed, Remote):
            seed = seed.get()  # type: ignore[attr-defined]
        self._seed_seq = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
        self._current_device_id = pool.current().ordinal

    def random_raw(self, size: Any = None, output: bool = True) -> Any:
        """Random words as the generator makes them."""
        raise NotImplementedError("Not implemented in base BitGenerator")

    def _check_device(self) -> None:
        if pool.current_stream() is not self._stream:
            raise RuntimeError("This Generator state is allocated in a different device")


class _DeviceBitGenerator(BitGenerator):
    def __init__(self, seed: Any = None, *, size: int = -1) -> None:
        super().__init__(seed)
        self._create(f"random.{type(self)._kind}", _assembled(self._seed_seq), size=size)

    _kind = ""

    def random_raw(self, size: Any = None, output: bool = True) -> Any:
        self._check_device()
        shape = () if size is None else creation.checked_shape(size)
        result = self._call("random.BitGenerator.random_raw", fresh(shape, np.dtype(np.int32)), shape)
        return result if output else None


class XORWOW(_DeviceBitGenerator):
    """The default bit generator."""

    __module__ = "cupy.random._bit_generator"
    _kind = "XORWOW"


class MRG32k3a(_DeviceBitGenerator):
    """A combined multiple recursive generator."""

    __module__ = "cupy.random._bit_generator"
    _kind = "MRG32k3a"


class Philox4x3210(_DeviceBitGenerator):
    """A counter-based generator."""

    __module__ = "cupy.random._bit_generator"
    _kind = "Philox4x3210"
