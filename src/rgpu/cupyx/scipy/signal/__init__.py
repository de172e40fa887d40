"""``cupyx.scipy.signal``: filtering, spectra and filter design.

From the table of declared functions; names that are not there yet say so when used.
"""

from rgpu import surface
from rgpu.cupyx.scipy import _table


class BadCoefficients(UserWarning):
    """Warning about badly conditioned filter coefficients."""


_table.fill(globals(), "signal")
__getattr__, __dir__ = surface.face(__name__)
