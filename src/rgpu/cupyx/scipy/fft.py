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


def _powers(base: int, target: int) -> list[int]:
    """Of the base, up to the first that reaches the target."""
    found = [1]
    while found[-1] < target:
        found.append(found[-1] * base)
    return found


def next_fast_len(target: int, real: bool = False) -> int:
    """The smallest length from ``target`` on that cuFFT is fast at: a product of 2, 3, 5 and 7 (0: 0). ``real`` changes
    nothing."""
    if target < 0:
        raise ValueError("a length is 0 or more")
    odd = (a * b * c for a in _powers(3, target) for b in _powers(5, target) for c in _powers(7, target))
    return min((n << (-(-target // n) - 1).bit_length() for n in odd), default=0) if target else 0


__ua_domain__ = "numpy.scipy.fft"
__ua_convert__, __ua_function__ = _table.backend(_functions)
__getattr__, __dir__ = surface.face(__name__)
