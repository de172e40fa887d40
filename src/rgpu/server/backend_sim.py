"""The sim backend: a device that takes the time a GPU would take, by a cost model, on any host.

Data is the cpu backend's, so that results of small things are right; products of matrices, which are what costs time,
are not computed: their results are zeros of the right shape. A command ends when the modelled device
would have finished it; the processor is free meanwhile. For measuring how programs scale, never for results.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from rgpu.errors import ConfigError
from rgpu.server.backend_cpu import CpuBackend

SETTING = "RGPU_SIM"
PRODUCTS = ("matmul", "dot", "inner", "tensordot")


class Cost(NamedTuple):
    """Seconds a launch, floating-point operations a second, bytes of memory a second (a V100's, about)."""

    launch: float = 5e-6
    flops: float = 14e12
    bandwidth: float = 800e9

    @classmethod
    def from_environment(cls) -> Cost:
        """RGPU_SIM=``launch=5e-6,flops=14e12,bandwidth=8e11``; what is missing is the default."""
        found: dict[str, float] = {}
        for part in filter(None, os.environ.get(SETTING, "").split(",")):
            name, _, value = part.partition("=")
            try:
                number = float(value)
            except ValueError:
                number = 0.0
            if name not in cls._fields or not number > 0:
                raise ConfigError(f"{SETTING}: {part!r} is none of {', '.join(f'{f}=number' for f in cls._fields)}")
            found[name] = number
        return cls(**found)

    def of_bytes(self, nbytes: int) -> float:
        return self.launch + nbytes / self.bandwidth

    def of_product(self, operations: float, nbytes: int) -> float:
        return self.launch + max(operations / self.flops, nbytes / self.bandwidth)


class SimBackend(CpuBackend):
    """One simulated device. ``finished``: when it will be done with what was issued."""

    shortcuts = {}  # every function takes its time
    def __init__(self, device: int = 0, memory_limit: int = 0) -> None:
        super().__init__(device, memory_limit)
        self.cost = Cost.from_environment()
        self.finished = 0.0

    def resolve(self, name: str) -> Callable[..., Any] | None:
        found = super().resolve(name)
        if found is None or name.partition(".")[0] in ("device", "stream", "event", "memory", "peer", "nccl"):
            return found
        if name in PRODUCTS:
            return functools.partial(self._product, found)
        return functools.partial(self._timed, found)

    def _timed(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        touched = [*args, *kwargs.values(), result]
        self._take(self.cost.of_bytes(sum(x.nbytes for x in touched if isinstance(x, np.ndarray))))
        return result

    def _product(self, function: Callable[..., Any], a: Any, b: Any, *args: Any, **kwargs: Any) -> Any:
        if args or kwargs or not (isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and a.ndim == b.ndim == 2):
            return self._timed(function, a, b, *args, **kwargs)
        if a.shape[1] != b.shape[0]:
            return function(a, b)  # its error
        result = np.zeros((a.shape[0], b.shape[1]), np.result_type(a, b))
        self._take(self.cost.of_product(2.0 * a.size * b.shape[1], a.nbytes + b.nbytes + result.nbytes))
        return result

    def _take(self, seconds: float) -> None:
        """The device is busy for so long after what it does already; commands end when it is done."""
        now = time.perf_counter()
        self.finished = max(self.finished, now) + seconds
        if self.finished - now > 200e-6:  # shorter waits are made up for by the next one
            time.sleep(self.finished - now)

    def at_rest(self) -> bool:
        return False

    def synchronize(self) -> None:
        super().synchronize()
        time.sleep(max(0.0, self.finished - time.perf_counter()))
