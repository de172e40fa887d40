"""``cupy._environment``: where CUDA is installed. Nowhere: it is on the servers, and a client needs none of it."""

from __future__ import annotations

from rgpu.cuda import get_cuda_path as get_cuda_path


def get_nvcc_path() -> None:
    """No nvcc: kernels are compiled where they run."""


def get_cub_path() -> None:
    """No CUB here."""


def get_rocm_path() -> None:
    """No ROCm."""


def get_hipcc_path() -> None:
    """No hipcc."""
