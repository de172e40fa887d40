"""``cupyx.time``: the old place of ``cupyx.profiler.benchmark``."""

from __future__ import annotations

import warnings
from typing import Any

from rgpu import surface
from rgpu.cupyx.profiler._time import _PerfCaseResult as _PerfCaseResult
from rgpu.cupyx.profiler._time import _repeat as _repeat
from rgpu.cupyx.profiler._time import benchmark


def repeat(func: Any, args: tuple = (), kwargs: Any = None, n_repeat: int = 10000, **options: Any) -> Any:
    """Deprecated: ``cupyx.profiler.benchmark``."""
    warnings.warn(
        "cupyx.time.repeat is deprecated: use cupyx.profiler.benchmark", stacklevel=2
    )
    return benchmark(func, args, kwargs, n_repeat, **options)


__getattr__, __dir__ = surface.face(__name__)
