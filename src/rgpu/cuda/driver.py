"""``cupy.cuda.driver``: the few functions of the driver that ask about contexts and versions.

A context is a session with a device; its integer says only which. Everything else raises
NotImplementedError with its name.
"""

from __future__ import annotations

from rgpu import surface
from rgpu.client import pool as devices
from rgpu.cuda import handles, issue, runtime
from rgpu.cuda.errors import CUDADriverError

CONTEXTS = 1 << 45


def check_status(status: int) -> None:
    if status:
        raise CUDADriverError(status)


def get_build_version() -> int:
    """The CUDA version that CuPy was built with on the worker."""
    return runtime.runtimeGetVersion()


def _is_cuda_python() -> bool:
    return False


def ctxGetCurrent() -> int:
    """The current device's context; 0 in a thread that has used none."""
    return CONTEXTS + runtime.getDevice() if devices.thread_has_device() else 0


def ctxGetDevice() -> int:
    return runtime.getDevice()


def streamGetCtx(stream: int) -> int:
    commands, _ = handles.stream(stream)
    return CONTEXTS + issue.ordinal(commands)


__getattr__, __dir__ = surface.face(__name__)
