"""``cupyx.jit.thrust``: Thrust's algorithms for kernels; the marks are ``functions/kernels/jit/thrust``."""

from rgpu.functions.kernels.jit import thrust as _marks

__all__ = list(_marks.__all__)  # noqa: PLE0605 (as the marks are)
globals().update({name: getattr(_marks, name) for name in _marks.__all__})
