"""``cupy._core.dlpack``: arrays of other libraries."""

from __future__ import annotations

from rgpu.functions.creation import from_dlpack as from_dlpack
from rgpu.functions.creation import fromDlpack as fromDlpack
