"""``init_process_group``: what each process of a group calls first."""

from __future__ import annotations

import os
from typing import Any

from rgpu.cupyx.distributed import _store
from rgpu.cupyx.distributed._nccl_comm import NCCLBackend

_backends = {"nccl": NCCLBackend}


def init_process_group(
    n_devices: int,
    rank: int,
    *,
    backend: str = "nccl",
    host: str | None = None,
    port: int | None = None,
    use_mpi: bool = False,
) -> Any:
    """The communicator of this process, for its current device; returns when all ``n_devices`` have come.

    They meet at rank 0's ``host`` and ``port`` (else CUPYX_DISTRIBUTED_HOST and CUPYX_DISTRIBUTED_PORT, else
    127.0.0.1:13333). ``use_mpi``: through mpi4py instead, where it is installed.
    """
    if n_devices <= 0:
        raise ValueError(f"Invalid number of devices {n_devices}")
    if not 0 <= rank < n_devices:
        raise ValueError(f"Invalid number of rank {rank} {n_devices}")
    if backend not in _backends:
        raise ValueError(f"{backend} is not supported")
    if host is None:
        host = os.environ.get("CUPYX_DISTRIBUTED_HOST", _store._DEFAULT_HOST)
    if port is None:
        port = int(os.environ.get("CUPYX_DISTRIBUTED_PORT", _store._DEFAULT_PORT))
    return _backends[backend](n_devices, rank, host, port, use_mpi)
