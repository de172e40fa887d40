"""``cupyx.scipy.fftpack``: the older interface to Fourier transforms.

From the table of declared functions, with plans; names that are not there yet say so when used.
"""

from typing import Any

from rgpu import surface
from rgpu.cupyx.scipy import _table
from rgpu.fft import transforms
from rgpu.fft.plans import get_fft_plan as get_fft_plan

_made: dict[str, Any] = {}
_table.fill(_made, "fftpack")
globals().update(transforms.fftpack_names(_made))
__getattr__, __dir__ = surface.face(__name__)
