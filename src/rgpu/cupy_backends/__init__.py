"""``cupy_backends``: where CuPy keeps its lower half; the same modules as ``rgpu.cuda``."""

from rgpu.cupy_backends import cuda

__all__ = ["cuda"]
