"""``cupyx.distributed``: communicators of several processes, one device each."""

from __future__ import annotations

from rgpu import surface
from rgpu.cupyx.distributed._init import init_process_group
from rgpu.cupyx.distributed._nccl_comm import NCCLBackend

__getattr__, __dir__ = surface.face(__name__)
