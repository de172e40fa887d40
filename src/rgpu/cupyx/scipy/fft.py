"""``cupyx.scipy.fft``: discrete Fourier transforms that keep the precision of their input.

From the table of declared functions, with plans. The module is a backend of
``scipy.fft`` too (``scipy.fft.set_backend(cupyx.scipy.fft)``).
"""

from typing import Any

from rgpu import fft as _fft
from rgpu import surface
from rgpu.cupyx.scipy import _table
from rgpu.fft import transforms
from rgpu.fft.plans import get_fft_plan as get_fft_plan

_functions: dict[str, Any] = {}
_table.fill(_functions, "fft")
_functions = transforms.scipy_names(_functions)
globals().update(_functions)
for _name in ("fftfreq", "rfftfreq", "fftshift", "ifftshift"):
    globals()[_name] = getattr(_fft, _name)

__ua_domain__ = "numpy.scipy.fft"
__ua_convert__, __ua_function__ = _table.backend(_functions)
__getattr__, __dir__ = surface.face(__name__)
