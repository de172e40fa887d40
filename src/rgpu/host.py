"""What this host is and has, as far as rgpu cares: libraries, limits, network, RDMA, MPS. Plain values.

Asked by `rgpu health`, on the client's host and by each daemon on its own. Looks only; imports none of the
libraries it tells the versions of.
"""

from __future__ import annotations

import os
import platform
import shutil
import socket
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

_LIBRARIES = ("numpy", "scipy", "pyzmq", "msgpack", "cffi", "nvidia-ml-py", "cupy-cuda12x", "cupy-cuda13x", "cupy")
_NET = Path("/sys/class/net")


def facts() -> dict[str, Any]:
    """Everything; what cannot be known is None or missing."""
    return {
        "time": time.time(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "executable": sys.executable,
        "libraries": _versions(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "open_files": _limit("RLIMIT_NOFILE"),
        "locked_memory": _limit("RLIMIT_MEMLOCK"),
        "shared_memory_free": _free("/dev/shm"),
        "interfaces": interfaces(),
        "rdma": rdma(),
        "mps": _mps(),
    }


def rdma() -> list[str]:
    """The RDMA cards of this host."""
    return _names("/sys/class/infiniband")


def _versions() -> dict[str, str]:
    found = {}
    for name in _LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _limit(which: str) -> int | None:
    """The soft limit; None for none, and where the system knows none."""
    try:
        import resource
    except ImportError:
        return None
    soft = resource.getrlimit(getattr(resource, which))[0]
    return None if soft == resource.RLIM_INFINITY else soft


def _free(path: str) -> int | None:
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return None


def _names(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def interfaces() -> list[dict[str, Any]]:
    """Network interfaces that are up, other than loopback: name, MTU, and Mb/s where the driver tells."""
    found = []
    for name in _names(str(_NET)):
        state, mtu, speed = (_read(_NET / name / what) for what in ("operstate", "mtu", "speed"))
        if name != "lo" and state in ("up", "unknown") and mtu:
            fast = int(speed) if speed and speed.isdecimal() and int(speed) > 0 else None
            found.append({"name": name, "mtu": int(mtu), "speed": fast})
    return found


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _mps() -> bool:
    """Whether NVIDIA's MPS control daemon answers on this host."""
    directory = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")
    control = Path(directory) / "control"
    if not control.exists() or not hasattr(socket, "AF_UNIX"):
        return False
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(0.5)
        try:
            probe.connect(str(control))
        except ConnectionRefusedError:
            return False  # left over from a daemon that ended
        except OSError:
            return True  # a pipe, as older ones have; or not ours to talk to
    return True
