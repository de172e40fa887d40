"""``cupy._core._accelerator``: which of NVIDIA's libraries CuPy prefers. Settings that are kept, and heeded by nobody:
the worker's CuPy, or its CPU, chooses for itself."""

from __future__ import annotations

from typing import Any

ACCELERATOR_CUB, ACCELERATOR_CUTENSOR, ACCELERATOR_CUTENSORNET = 1, 2, 3

_chosen: dict[str, list] = {"elementwise": [], "reduction": [], "routine": []}


def get_elementwise_accelerators() -> list:
    return list(_chosen["elementwise"])


def set_elementwise_accelerators(accelerators: Any) -> None:
    _chosen["elementwise"] = list(accelerators)


def get_reduction_accelerators() -> list:
    return list(_chosen["reduction"])


def set_reduction_accelerators(accelerators: Any) -> None:
    _chosen["reduction"] = list(accelerators)


def get_routine_accelerators() -> list:
    return list(_chosen["routine"])


def set_routine_accelerators(accelerators: Any) -> None:
    _chosen["routine"] = list(accelerators)
