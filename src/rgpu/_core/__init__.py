"""``cupy._core``: the names of CuPy's core that libraries built on it import, though CuPy calls them private.

They are rgpu's public functions under CuPy's other names, and the few constructors (`create_ufunc`,
`create_reduction_func`) that CuPy makes its own functions with. Nothing of rgpu's own is here, and rgpu never
imports it; what is not here raises AttributeError, as any other name that does not exist.
"""

from __future__ import annotations

import importlib
from typing import Any

from rgpu._core import _accelerator as _accelerator
from rgpu._core import _dtype as _dtype
from rgpu._core import _kernel as _kernel
from rgpu._core import _scalar as _scalar
from rgpu._core import core as core
from rgpu._core import fusion as fusion
from rgpu._core import internal as internal
from rgpu._core._accelerator import get_elementwise_accelerators as get_elementwise_accelerators
from rgpu._core._accelerator import get_reduction_accelerators as get_reduction_accelerators
from rgpu._core._accelerator import get_routine_accelerators as get_routine_accelerators
from rgpu._core._accelerator import set_elementwise_accelerators as set_elementwise_accelerators
from rgpu._core._accelerator import set_reduction_accelerators as set_reduction_accelerators
from rgpu._core._accelerator import set_routine_accelerators as set_routine_accelerators
from rgpu._core._kernel import _full_mask as _full_mask
from rgpu._core._kernel import _full_mask_hex as _full_mask_hex
from rgpu._core._kernel import _get_warpsize as _get_warpsize
from rgpu._core._kernel import create_ufunc as create_ufunc
from rgpu._core._reduction import create_reduction_func as create_reduction_func
from rgpu._core._routines_linalg import get_compute_type as get_compute_type
from rgpu._core._routines_linalg import set_compute_type as set_compute_type
from rgpu._core.core import elementwise_copy as elementwise_copy
from rgpu._core.internal import complete_slice as complete_slice
from rgpu._core.internal import get_size as get_size
from rgpu.functions.ufunc import ufunc as ufunc

#: CuPy's public names that its core offers as well
_PUBLIC = """ElementwiseKernel RawKernel RawModule ReductionKernel absolute add angle array array_split
ascontiguousarray asfortranarray bitwise_and bitwise_count bitwise_or bitwise_xor broadcast broadcast_to conjugate
divide divmod dot equal floor_divide fromDlpack from_dlpack greater greater_equal invert left_shift less less_equal
matmul moveaxis multiply nanmax nanmin ndarray negative not_equal positive power remainder right_shift rollaxis size
sqrt subtract true_divide""".split()


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module("rgpu"), name)
    raise AttributeError(f"module 'cupy._core' has no attribute {name!r}")
