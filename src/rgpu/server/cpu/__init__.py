"""CuPy's functions on the cpu backend where NumPy lacks them or does something else, by area.

Importing this package fills ``OVERRIDES``. Each override has CuPy's parameters and returns arrays
where CuPy does (never Python scalars). Nothing here may know the wire or the client.
"""

from __future__ import annotations

from rgpu.server.cpu import (
    fourier,
    linalg,
    logic,
    mathematics,
    morphology,
    polynomial,
    scipy_linalg,
    scipy_ndimage,
    scipy_signal,
    statistics,
)
from rgpu.server.cpu.arrays import OVERRIDES as OVERRIDES

AREAS = (
    fourier, linalg, logic, mathematics, morphology, polynomial, scipy_linalg, scipy_ndimage, scipy_signal, statistics,
)  # fmt: skip
