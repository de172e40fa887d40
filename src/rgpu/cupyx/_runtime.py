"""``get_runtime_info``: what runs here and on the servers."""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any

import numpy as np

from rgpu import surface
from rgpu._version import __version__
from rgpu.client import pool
from rgpu.cuda import runtime


def _asked(question: Callable[[], Any]) -> str:
    """An answer, or the error in its place: a report about what is broken must not break."""
    try:
        return str(question())
    except Exception as error:
        return repr(error)


class _RuntimeInfo:
    """Versions and devices; ``str()`` is the table that people paste into reports."""

    def __init__(self) -> None:
        self.cupy_version = surface.cupy_version()
        self.rgpu_version = __version__
        self.numpy_version = np.__version__
        self.driver_version = _asked(runtime.driverGetVersion)
        self.runtime_version = _asked(runtime.runtimeGetVersion)
        self.devices = [device.name for device in pool.get().devices]

    def __str__(self) -> str:
        rows = [
            ("OS", platform.platform()),
            ("Python Version", platform.python_version()),
            ("CuPy Version", f"{self.cupy_version} (rgpu {self.rgpu_version})"),
            ("NumPy Version", self.numpy_version),
            ("CUDA Driver Version", self.driver_version),
            ("CUDA Runtime Version", self.runtime_version),
            *((f"Device {number}", name) for number, name in enumerate(self.devices)),
        ]
        return "\n".join(f"{name:<29}: {value}" for name, value in rows) + "\n"


def get_runtime_info(*, full: bool = True) -> Any:
    """Versions of what takes part, and the devices of the pool."""
    return _RuntimeInfo()
