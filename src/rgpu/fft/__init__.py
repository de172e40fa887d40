"""``cupy.fft``: filled from the table of functions."""

from rgpu.fft.settings import config as config
from rgpu.functions import namespace

namespace.fill(globals(), "cupy.fft")
