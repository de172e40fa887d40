"""Transforms with CuPy's dtypes: real transforms drop imaginary parts, half is computed as single."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rgpu.server.cpu.arrays import override


def _real_input(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(a: np.ndarray, *args: Any, **kwargs: Any) -> Any:
        return function(a.real if a.dtype.kind == "c" else a, *args, **kwargs)

    return call


def _real_output(function: Callable[..., Any], default: Any) -> Callable[..., Any]:
    """Half precision survives a transform of one axis only."""

    def call(a: np.ndarray, s: Any = None, axes: Any = default, norm: Any = None) -> Any:
        result = function(a, s, axes, norm)
        several = len(axes if axes is not None else s if s is not None else a.shape) != 1
        return result.astype(np.float32) if several and result.dtype == np.float16 else result

    return call


for _name in ("rfft", "rfft2", "rfftn"):
    override(f"fft.{_name}")(_real_input(getattr(np.fft, _name)))
for _name, _axes in (("irfft2", (-2, -1)), ("irfftn", None)):
    override(f"fft.{_name}")(_real_output(getattr(np.fft, _name), _axes))
