"""``cupyx``: CuPy's additions to NumPy's interface.

Scattering, pinned memory, error states, profiling. What only makes sense next to a local GPU is
accepted where accepting is honest, and refused by name where it is not.
"""

from rgpu import surface
from rgpu.cupyx._config import DeviceSynchronized, allow_synchronize, errstate, geterr, seterr
from rgpu.cupyx._pinned import empty_like_pinned, empty_pinned, zeros_like_pinned, zeros_pinned
from rgpu.cupyx._runtime import get_runtime_info
from rgpu.cupyx._scatter import rsqrt, scatter_add, scatter_max, scatter_min
from rgpu.functions.gufunc import GeneralizedUFunc

__getattr__, __dir__ = surface.face(__name__)

__all__ = [
    "DeviceSynchronized", "GeneralizedUFunc", "allow_synchronize", "empty_like_pinned", "empty_pinned", "errstate",
    "get_runtime_info", "geterr", "rsqrt", "scatter_add", "scatter_max", "scatter_min", "seterr",
    "zeros_like_pinned", "zeros_pinned",
]  # fmt: skip
