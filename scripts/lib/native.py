"""What scripts/bench compares with in its own process: NumPy, or CuPy itself where the server's devices are GPUs."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import rgpu

_INSTALL = "pip install '.[server-cuda12]' (or server-cuda13)"
_NO_GPU = "does nvidia-smi show one, and does CUDA_VISIBLE_DEVICES hide it? Without one: --backend cpu"


class Unavailable(RuntimeError):
    """It is not here; the message says what to do."""


@dataclass(frozen=True)
class Native:
    backend: str
    name: str
    module: Any
    wait: Callable[[], Any]  # until what was issued is done; with NumPy it always is

    @property
    def gpu(self) -> bool:
        return self.backend == "cupy"

    @property
    def in_process(self) -> str:
        return f"{self.name} in process"

    def devices(self, count: int) -> str:
        """The first devices as rgpu-server names them: so many of a host's cores, one GPU or all there are."""
        if self.gpu:
            return "cuda:0" if count == 1 else "cuda"
        return f"cpu:{count}"

    def about(self) -> dict[str, Any]:
        """What the figures depend on besides the host."""
        if not self.gpu:
            return {}
        runtime = self.module.cuda.runtime
        card = runtime.getDeviceProperties(0)["name"].decode()
        versions = {"CUDA": runtime.runtimeGetVersion(), "driver's CUDA": runtime.driverGetVersion()}
        return {"gpu": card, "cupy": self.module.__version__} | {
            name: f"{version // 1000}.{version % 1000 // 10}" for name, version in versions.items()
        }

    def agrees(self, ours: Any, theirs: Any) -> bool:
        """Whether results are the same: to the bit, but for a GPU's libraries, which choose their algorithms."""
        return bool(np.allclose(ours, theirs, rtol=1e-3, atol=1e-5) if self.gpu else np.array_equal(ours, theirs))

    def leaves_out(self, what: str) -> bool:
        """Whether something that tells only of cpu devices has no place here; then it says so."""
        if self.gpu:
            print(f"left out with --backend cupy: {what}", file=sys.stderr)
        return self.gpu

    def check_card(self) -> None:
        """The first device of the pool is the card that CuPy uses here."""
        if self.gpu:
            bus = self.module.cuda.runtime.deviceGetPCIBusId(0)
            if not rgpu.cuda.runtime.deviceGetPCIBusId(0).lower().endswith(bus.lower()):  # NVML's domain is longer
                hidden = "unset CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER"
                raise Unavailable(f"CuPy's first device here, {bus}, is not the server's: {hidden}")


def numpy() -> Native:
    return Native("cpu", "NumPy", np, lambda: None)


def cupy() -> Native:
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # as NVML counts the cards, and so the server
    try:
        module = importlib.import_module("cupy")
        if module.ndarray is rgpu.ndarray:
            raise Unavailable("'import cupy' means rgpu here: start scripts/bench by itself, without rgpu run")
        importlib.import_module("pynvml")  # the server's
    except ImportError as error:
        raise Unavailable(f"--backend cupy needs CuPy and NVML's binding: {_INSTALL}; now: {error}") from None
    runtime = module.cuda.runtime
    try:
        count = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        raise Unavailable(f"no GPU for --backend cupy ({error}): {_NO_GPU}") from None
    if not count:
        raise Unavailable(f"no GPU for --backend cupy: {_NO_GPU}")
    return Native("cupy", "CuPy", module, lambda: module.cuda.get_current_stream().synchronize())
