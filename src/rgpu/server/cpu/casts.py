"""Casts of floats to integers, with CUDA's answers where C leaves them to chance."""

from __future__ import annotations

import numpy as np


def cast(source: np.ndarray, dtype: np.dtype, order: str = "K") -> np.ndarray:
    """``source.astype(dtype, order)``; a float that the integer cannot hold becomes the nearest one that it can.

    C, and NumPy with it, leaves ``-1.0`` as an unsigned integer and ``inf`` as any integer undefined: what comes out
    depends on the host. A GPU saturates, as CuPy's documentation shows.
    """
    if source.dtype.kind != "f" or dtype.kind not in "iu" or not source.size:
        return source.astype(dtype, order=order)  # type: ignore[arg-type]
    if dtype.kind == "i":
        try:
            with np.errstate(invalid="raise"):
                return source.astype(dtype, order=order)  # type: ignore[arg-type]
        except FloatingPointError:
            return _saturated(source, dtype, order)
    # The host tells nothing of these.
    if float(source.min()) > -1 and float(source.max()) < 1 << 32:
        return source.astype(dtype, order=order)  # type: ignore[arg-type]
    return _saturated(source, dtype, order)


def _saturated(source: np.ndarray, dtype: np.dtype, order: str) -> np.ndarray:
    wide = dtype if dtype.itemsize >= 4 else np.dtype(f"{dtype.kind}4")  # no GPU converts to fewer than 32 bits at once
    limits = np.iinfo(wide)
    with np.errstate(invalid="ignore"):
        result = source.astype(wide, order=order)  # type: ignore[call-overload]
    result[source >= np.float64(limits.max)] = limits.max
    result[source <= np.float64(limits.min)] = limits.min
    # PTX on NaN: zero, or the highest bit alone where either side has 64 bits
    highest = limits.min if wide.kind == "i" else 1 << (8 * wide.itemsize - 1)
    result[np.isnan(source)] = highest if 8 in (wide.itemsize, source.itemsize) else 0
    return result.astype(dtype, copy=False)
