"""``benchmark``: time of a function on the host and on remote devices.

Host time is what issuing costs. Device time runs between two events on the device's stream, as in CuPy: from
when the worker meets the first command until the last is done.
"""

from __future__ import annotations

import importlib
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
    cuda = importlib.import_module("rgpu.cuda")
    events = []
    for number in devices:
        with cuda.Device(number):
            events.append((cuda.Event(), cuda.Event()))
    for _ in range(n_warmup):
        func(*args, **kwargs)
    _record(cuda, devices, events, 1)
    rows: list[list[float]] = []
    spent = 0.0
    for _ in range(n_repeat):
        _record(cuda, devices, events, 0, wait=False)
        start = time.perf_counter()
        func(*args, **kwargs)
        issued = time.perf_counter()
        _record(cuda, devices, events, 1)
        rows.append([issued - start, *(cuda.get_elapsed_time(*pair) * 1e-3 for pair in events)])
        spent += time.perf_counter() - start
        if spent >= max_duration:
            break
    return _PerfCaseResult(name, np.array(rows, np.float64).T, devices)


def _record(cuda: Any, devices: tuple, events: list, which: int, wait: bool = True) -> None:
    """Record an event on each device's current stream, and wait for it."""
    for number, pair in zip(devices, events):
        with cuda.Device(number):
            pair[which].record()
    if wait:
        for pair in events:
            pair[which].synchronize()
