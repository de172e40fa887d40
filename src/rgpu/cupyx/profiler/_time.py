"""``benchmark``: time of a function on the host and on remote devices.

Host time is what issuing costs. Device time runs from the moment that the devices are idle until
they have done the work, seen from here, so it holds one round trip of the network.
"""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np

from rgpu.client import pool


class _PerfCaseResult:
    """Times of a benchmark in seconds: ``cpu_times`` (n,) and ``gpu_times`` (devices, n)."""

    def __init__(self, name: str, ts: np.ndarray, devices: tuple) -> None:
        self.name, self._ts, self._devices = name, ts, devices

    cpu_times = property(lambda self: self._ts[0])
    gpu_times = property(lambda self: self._ts[1:])

    @staticmethod
    def _to_str_per_item(device_name: str, t: np.ndarray) -> str:
        micro = t * 1e6
        text = f"    {device_name}: {micro.mean():9.03f} us"
        if t.size > 1:
            text += f"   +/- {micro.std():6.03f} (min: {micro.min():9.03f} / max: {micro.max():9.03f}) us"
        return text

    def to_str(self, show_gpu: bool = False) -> str:
        """One line with the host's times and, on demand, the devices'."""
        rows = [self._to_str_per_item("CPU", self._ts[0])]
        if show_gpu:
            rows += [self._to_str_per_item(f"GPU-{d}", t) for d, t in zip(self._devices, self._ts[1:])]
        return f"{self.name:<20s}:{' '.join(rows)}"

    def __str__(self) -> str:
        return self.to_str(show_gpu=True)

    __repr__ = __str__


def _check(value: Any, kind: type, what: str) -> None:
    if not isinstance(value, kind):
        raise ValueError(what)


def benchmark(
    func: Any, args: tuple = (), kwargs: Any = None, n_repeat: int = 10000, *, name: str | None = None,
    n_warmup: int = 10, max_duration: float = math.inf, devices: tuple | None = None,
) -> _PerfCaseResult:  # fmt: skip
    """Call ``func`` again and again and time it on the host and on the devices."""
    kwargs = {} if kwargs is None else kwargs
    if not callable(func):
        raise ValueError("`func` should be a callable object.")
    name = func.__name__ if name is None else name
    devices = (pool.current().ordinal,) if devices is None else devices
    _check(args, tuple, "`args` should be of tuple type.")
    _check(kwargs, dict, "`kwargs` should be of dict type.")
    _check(n_repeat, int, "`n_repeat` should be an integer.")
    _check(name, str, "`name` should be a string.")
    _check(n_warmup, int, "`n_warmup` should be an integer.")
    if not np.isreal(max_duration):
        raise ValueError("`max_duration` should be given in seconds")
    _check(devices, tuple, "`devices` should be of tuple type")
    return _repeat(func, args, kwargs, n_repeat, name, n_warmup, max_duration, devices)


def _repeat(
    func: Any, args: tuple, kwargs: dict, n_repeat: int, name: str, n_warmup: int, max_duration: float,
    devices: tuple,
) -> _PerfCaseResult:  # fmt: skip
    streams = [pool.get().device(i).stream for i in devices]
    for _ in range(n_warmup):
        func(*args, **kwargs)
    for stream in streams:
        stream.sync()
    rows: list[list[float]] = []
    spent = 0.0
    for _ in range(n_repeat):
        start = time.perf_counter()
        func(*args, **kwargs)
        row = [time.perf_counter() - start]
        for stream in streams:
            stream.sync()
            row.append(time.perf_counter() - start)
        rows.append(row)
        spent += time.perf_counter() - start
        if spent > max_duration:
            break
    return _PerfCaseResult(name, np.array(rows, np.float64).T, devices)
