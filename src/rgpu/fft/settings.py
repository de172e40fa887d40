"""``cupy.fft.config``: CuPy's settings of its transforms.

They change how a GPU plans, never a result: the device's own library plans, whatever is said here. What a program
set is what it reads again.
"""

from __future__ import annotations

import contextvars
import warnings
from typing import Any

from rgpu.fft import cache
from rgpu.fft.cache import PlanCache

_planning = contextvars.ContextVar("rgpu.fft.enable_nd_planning", default=True)
_several = contextvars.ContextVar("rgpu.fft.use_multi_gpus", default=False)
_devices: contextvars.ContextVar[Any] = contextvars.ContextVar("rgpu.fft.devices", default=None)


def _deprecated(name: str) -> None:
    message = f"cupy.fft.config.{name} is deprecated as of CuPy 14"
    warnings.warn(message, DeprecationWarning, stacklevel=3)


def callbacks() -> Any:
    """Late: callbacks build on plans, and plans on these settings."""
    from rgpu.fft import callbacks

    return callbacks


class Config:
    """The object behind ``cupy.fft.config``; its flags are per context, as CuPy's are."""

    __spec__: Any = None
    _use_multi_gpus, _devices = _several, _devices

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

    def plans_axes_together(self) -> bool:
        """``enable_nd_planning``, for rgpu itself: without the warning."""
        return _planning.get()

    @property
    def use_multi_gpus(self) -> bool:
        return _several.get()

    @use_multi_gpus.setter
    def use_multi_gpus(self, value: Any) -> None:
        _several.set(bool(value))

    def set_cufft_gpus(self, gpus: Any) -> None:
        """The devices for plans made under ``use_multi_gpus``: their number, or a list.

        A transform runs on its array's device all the same."""
        if not isinstance(gpus, int | list | tuple):
            raise ValueError("gpus must be an int or a list or tuple of int.")
        devices = tuple(range(gpus)) if isinstance(gpus, int) else tuple(gpus)
        if len(devices) < 2:
            raise ValueError("Must use at least 2 GPUs.")
        _devices.set(devices)

    @property
    def devices(self) -> Any:
        return _devices.get() if _several.get() else None

    def set_cufft_callbacks(self, *args: Any, **kwargs: Any) -> Any:
        """See `rgpu.fft.callbacks`."""
        return callbacks().set_cufft_callbacks(*args, **kwargs)

    def get_current_callback_manager(self) -> Any:
        return callbacks().current()

    def get_plan_cache(self) -> PlanCache:
        return cache.get_plan_cache()

    def clear_plan_cache(self) -> None:
        cache.get_plan_cache().clear()

    def get_plan_cache_size(self) -> int:
        return cache.get_plan_cache().get_size()

    def set_plan_cache_size(self, size: int) -> None:
        cache.get_plan_cache().set_size(size)

    def get_plan_cache_max_memsize(self) -> int:
        return cache.get_plan_cache().get_memsize()

    def set_plan_cache_max_memsize(self, size: int) -> None:
        cache.get_plan_cache().set_memsize(size)

    def show_plan_cache_info(self) -> None:
        cache.show_plan_cache_info()


config = Config()
