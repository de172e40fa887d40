"""Communicators of CUDA workers: NCCL itself where every rank has it, the host's rings where one has not.

Ranks tell each other at the meeting place which NCCL they have; with one version everywhere the operations are
NCCL's own, on the current stream. Waits for hardware: no test without GPUs comes here.
"""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np
from cupy.cuda import nccl

from rgpu.server import collective


class Communicator(collective.Communicator):
    """One rank, on this process's card."""

    _nccl: Any = None

    def _meet(self, client: str) -> None:
        super()._meet(client)
        mine = str(nccl.get_version()) if nccl.available else "none"
        self._visitor.put(f"nccl/{self.rank}", mine)
        versions = {self._visitor.take(f"nccl/{rank}") for rank in range(self.size)}
        if mine == "none" or versions != {mine}:
            return
        if self.rank == 0:
            self._visitor.put("nccl/id", bytes(nccl.get_unique_id()).hex())
        unique_id = bytes.fromhex(self._visitor.take("nccl/id"))
        self._nccl = nccl.NcclCommunicator(self.size, unique_id, self.rank)

    def launch(self, name: str, source: Any, target: Any, kind: np.dtype, dtype: int, op: int, root: int) -> bool:
        """On the current stream, by NCCL. False: not all ranks have it."""
        if self._nccl is None:
            return False
        self._nccl.check_async_error()
        stream = cupy.cuda.get_current_stream().ptr
        given, taken = (0 if x is None else x.data.ptr for x in (source, target))
        nbytes = (source if source is not None else target).nbytes
        count = nbytes // kind.itemsize
        if name == "all_reduce":
            self._nccl.allReduce(given, taken, count, dtype, op, stream)
        elif name == "reduce":
            self._nccl.reduce(given, taken, count, dtype, op, root, stream)
        elif name == "broadcast":
            self._nccl.broadcast(given or taken, taken, count, dtype, root, stream)
        elif name == "reduce_scatter":
            self._nccl.reduceScatter(given, taken, count // self.size, dtype, op, stream)
        elif name == "all_gather":
            self._nccl.allGather(given, taken, count, dtype, stream)
        elif name == "send":
            self._nccl.send(given, count, dtype, root, stream)
        else:
            self._nccl.recv(taken, count, dtype, root, stream)
        return True

    def abort(self, why: str) -> None:
        super().abort(why)
        self._abort_nccl()

    def _told(self, why: str) -> None:
        super()._told(why)
        self._abort_nccl()

    def _abort_nccl(self) -> None:
        """From any thread: the device may be inside an operation that waits for a lost rank, without an end."""
        ours, self._nccl = self._nccl, None
        if ours is not None:
            ours.abort()

    def close(self) -> None:
        if self._nccl is not None:
            (self._nccl.abort if self.error else self._nccl.destroy)()  # destroying waits, perhaps for a lost rank
            self._nccl = None
        super().close()

    @property
    def ended(self) -> bool:
        return self._nccl is None and super().ended


def group(on: bool) -> None:
    """NCCL's own group: without it a send would wait for its receiver before the next operation begins."""
    if nccl.available:
        (nccl.groupStart if on else nccl.groupEnd)()
