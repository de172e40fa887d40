"""``get_runtime_info``: what runs here and on the servers."""

from __future__ import annotations

import platform
from typing import Any

import numpy as np

from rgpu import surface
from rgpu._version import __version__
from rgpu.client import pool


class _RuntimeInfo:
    """Versions and devices; ``str()`` is the table that people paste into reports."""

    def __init__(self) -> None:
        self.cupy_version = surface.cupy_version()
        self.rgpu_version = __version__
        self.numpy_version = np.__version__
        self.devices = [device.name for device in pool.get().devices]

    def __str__(self) -> str:
        rows = [
            ("OS", platform.platform()),
            ("Python Version", platform.python_version()),
            ("CuPy Version", f"{self.cupy_version} (rgpu {self.rgpu_version})"),
            ("NumPy Version", self.numpy_version),
            *((f"Device {number}", name) for number, name in enumerate(self.devices)),
        ]
        return "\n".join(f"{name:<29}: {value}" for name, value in rows) + "\n"


def get_runtime_info(*, full: bool = True) -> Any:
    """Versions of what takes part, and the devices of the pool."""
    return _RuntimeInfo()
