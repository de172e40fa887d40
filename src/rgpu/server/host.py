"""Which host this process is on, for whoever asks whether memory can be shared.

RGPU_HOST_ID overrides it: containers of one machine that share no memory are two hosts, and a test can
make one machine look like several. And whether it can run clients' kernels. Knows nothing else of the machine.
"""

from __future__ import annotations

import functools
import os
import platform
import shutil
from pathlib import Path

from rgpu.config import NATIVE_KERNELS, parse_flag


@functools.cache
def host_id() -> str:
    """The same for all processes that share this host's memory, different anywhere else."""
    given = os.environ.get("RGPU_HOST_ID")
    if given:
        return given[:64]
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        room = os.stat("/dev/shm").st_dev if os.path.isdir("/dev/shm") else 0
    except OSError:
        return platform.node()[:64]
    return f"{boot}.{room}"


def compilers() -> list[str]:
    """The C++ compilers of this host, the one to use first; CXX names one that comes before all."""
    names = (os.environ.get("CXX"), "g++", "clang++", "c++")
    return [path for name in names if name and (path := shutil.which(name))]


@functools.cache
def runs_kernels() -> bool:
    """Whether clients' kernels can run on cpu devices here: the operator allows it, and there is a compiler."""
    return parse_flag(os.environ.get(NATIVE_KERNELS, "0")) and bool(compilers())
