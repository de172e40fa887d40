"""``cupy.fft``: filled from the table of functions."""

from rgpu.functions import namespace

namespace.fill(globals(), "cupy.fft")
