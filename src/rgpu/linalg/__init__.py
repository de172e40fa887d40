"""``cupy.linalg``: filled from the table of functions; errors are NumPy's LinAlgError."""

from numpy.linalg import LinAlgError as LinAlgError

from rgpu.functions import namespace

namespace.fill(globals(), "cupy.linalg")
