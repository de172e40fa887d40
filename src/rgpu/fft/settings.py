"""``cupy.fft.config``: CuPy's settings of its transforms. They change how a GPU plans, never a result.

What would promise something that is not done (several GPUs for one transform, callbacks) refuses.
"""

from __future__ import annotations

import contextvars
import warnings
from typing import Any, NoReturn

_planning = contextvars.ContextVar("rgpu.fft.enable_nd_planning", default=True)


def _deprecated(name: str) -> None:
    warnings.warn(f"cupy.fft.config.{name} is deprecated", DeprecationWarning, stacklevel=3)


class Config:
    """The object behind ``cupy.fft.config``; the planning flag is per context, as CuPy's is."""

    @property
    def enable_nd_planning(self) -> bool:
        _deprecated("enable_nd_planning")
        return _planning.get()

    @enable_nd_planning.setter
    def enable_nd_planning(self, value: Any) -> None:
        _deprecated("enable_nd_planning")
        if value not in (True, False):
            raise ValueError("enable_nd_planning is a boolean")
        _planning.set(bool(value))

    @property
    def use_multi_gpus(self) -> bool:
        _deprecated("use_multi_gpus")
        return False

    @use_multi_gpus.setter
    def use_multi_gpus(self, value: Any) -> None:
        _deprecated("use_multi_gpus")
        if value:
            self.set_cufft_gpus(value)

    def set_cufft_gpus(self, gpus: Any) -> NoReturn:
        raise NotImplementedError("rgpu computes a transform on one device")

    def set_cufft_callbacks(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError("rgpu does not forward cuFFT callbacks")


config = Config()
