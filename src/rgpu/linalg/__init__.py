"""``cupy.linalg``: filled from the table of functions; errors are NumPy's LinAlgError."""

from numpy.linalg import LinAlgError as LinAlgError

from rgpu.functions import namespace, shapes

namespace.fill(globals(), "cupy.linalg")
matrix_transpose = shapes.NAMES["matrix_transpose"]
