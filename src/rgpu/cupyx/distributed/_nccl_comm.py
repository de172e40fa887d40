"""``NCCLBackend``: collectives on arrays, by way of ``cupy.cuda.nccl``.

One communicator a process, for the device that is current when it is made. Dense arrays here; sparse
matrices travel as their arrays (``_sparse_comm``). What is not a collective of NCCL is a group of sends and receives.
"""

from __future__ import annotations

from typing import Any

from rgpu.cuda import nccl, stream
from rgpu.cupyx.distributed import _store
from rgpu.cupyx.distributed._sparse_comm import SparseCommunicator, is_sparse

try:
    from mpi4py import MPI

    _mpi_available = True
except ImportError:
    _mpi_available = False

_nccl_dtypes = {
    "b": nccl.NCCL_INT8, "B": nccl.NCCL_UINT8, "i": nccl.NCCL_INT32, "I": nccl.NCCL_UINT32,
    "l": nccl.NCCL_INT64, "L": nccl.NCCL_UINT64, "q": nccl.NCCL_INT64, "Q": nccl.NCCL_UINT64,
    "e": nccl.NCCL_FLOAT16, "f": nccl.NCCL_FLOAT32, "d": nccl.NCCL_FLOAT64,
    "F": nccl.NCCL_FLOAT32, "D": nccl.NCCL_FLOAT64,  # twice as many
}  # fmt: skip
_nccl_ops = {"sum": nccl.NCCL_SUM, "prod": nccl.NCCL_PROD, "max": nccl.NCCL_MAX, "min": nccl.NCCL_MIN}


def _get_nccl_dtype_and_count(array: Any, count: int | None = None) -> tuple[int, int]:
    char = array.dtype.char
    if char not in _nccl_dtypes:
        raise TypeError(f"Unknown dtype {array.dtype} for NCCL")
    count = array.size if count is None else count
    return _nccl_dtypes[char], 2 * count if char in "FD" else count


class NCCLBackend:
    """The communicator of one process: ``rank`` of ``n_devices``, met at ``host:port`` (or through MPI)."""

    def __init__(
        self,
        n_devices: int,
        rank: int,
        host: str = _store._DEFAULT_HOST,
        port: int = _store._DEFAULT_PORT,
        use_mpi: bool = False,
    ) -> None:
        self._n_devices, self.rank = n_devices, rank
        self._store_proxy = _store.TCPStoreProxy(host, port)
        self._use_mpi = _mpi_available and use_mpi
        if self._use_mpi:
            self._init_with_mpi(n_devices, rank)
        else:
            self._init_with_tcp_store(n_devices, rank, host, port)

    def _init_with_mpi(self, n_devices: int, rank: int) -> None:
        self._mpi_comm = MPI.COMM_WORLD
        self._mpi_comm.Barrier()
        unique_id = nccl.get_unique_id() if self._mpi_comm.Get_rank() == 0 else None
        unique_id = self._mpi_comm.bcast(unique_id, root=0)
        self._comm = nccl.NcclCommunicator(n_devices, unique_id, rank)

    def _init_with_tcp_store(self, n_devices: int, rank: int, host: str, port: int) -> None:
        if rank == 0:
            self._store = _store.TCPStore(n_devices)
            self._store.run(host, port)
            unique_id = nccl.get_unique_id()
            self._store_proxy["nccl_id"] = unique_id
            self._store_proxy.barrier()
        else:
            self._store_proxy.barrier()
            unique_id = self._store_proxy["nccl_id"]
        self._comm = nccl.NcclCommunicator(n_devices, unique_id, rank)

    def stop(self) -> None:
        """Leave the group."""
        self._comm.destroy()
        if self.rank == 0 and not self._use_mpi:
            self._store.stop()

    def _dispatch(self, name: str, array: Any, *args: Any) -> None:
        first = array[0] if isinstance(array, list | tuple) else array
        kind = SparseCommunicator if is_sparse(first) else _Dense
        getattr(kind, name)(self, array, *args)

    @staticmethod
    def _stream_pointer(given: Any) -> int:
        return (stream.get_current_stream() if given is None else given).ptr

    @staticmethod
    def _operator(op: str, char: str) -> int:
        if op not in _nccl_ops:
            raise RuntimeError(f"Unknown op {op} for NCCL")
        if char in "FD" and op != "sum":
            raise ValueError("Only nccl.SUM is supported for complex arrays")
        return _nccl_ops[op]

    def all_reduce(self, in_array: Any, out_array: Any, op: str = "sum", stream: Any = None) -> None:
        """``out_array`` of every rank: the 'sum', 'prod', 'max' or 'min' of all ``in_array``."""
        self._dispatch("all_reduce", in_array, out_array, op, stream)

    def reduce(self, in_array: Any, out_array: Any, root: int = 0, op: str = "sum", stream: Any = None) -> None:
        """The same, in the ``out_array`` of ``root`` only."""
        self._dispatch("reduce", in_array, out_array, root, op, stream)

    def broadcast(self, in_out_array: Any, root: int = 0, stream: Any = None) -> None:
        """Every rank's array gets the content of root's."""
        self._dispatch("broadcast", in_out_array, root, stream)

    def reduce_scatter(self, in_array: Any, out_array: Any, count: int, op: str = "sum", stream: Any = None) -> None:
        """``in_array`` has ``count`` elements for each rank, which gets their reduction in ``out_array``."""
        self._dispatch("reduce_scatter", in_array, out_array, count, op, stream)

    def all_gather(self, in_array: Any, out_array: Any, count: int, stream: Any = None) -> None:
        """``out_array`` gets the first ``count`` elements of every rank's ``in_array``, in order of rank."""
        self._dispatch("all_gather", in_array, out_array, count, stream)

    def send(self, array: Any, peer: int, stream: Any = None) -> None:
        """To rank ``peer``, which receives."""
        self._dispatch("send", array, peer, stream)

    def recv(self, out_array: Any, peer: int, stream: Any = None) -> None:
        """From rank ``peer``, which sends."""
        self._dispatch("recv", out_array, peer, stream)

    def send_recv(self, in_array: Any, out_array: Any, peer: int, stream: Any = None) -> None:
        """Both with the same rank, at once."""
        self._dispatch("send_recv", in_array, out_array, peer, stream)

    def scatter(self, in_array: Any, out_array: Any, root: int = 0, stream: Any = None) -> None:
        """Rank i gets ``in_array[i]`` of root."""
        self._dispatch("scatter", in_array, out_array, root, stream)

    def gather(self, in_array: Any, out_array: Any, root: int = 0, stream: Any = None) -> None:
        """``out_array[i]`` of root gets rank i's ``in_array``."""
        self._dispatch("gather", in_array, out_array, root, stream)

    def all_to_all(self, in_array: Any, out_array: Any, stream: Any = None) -> None:
        """``out_array[i]`` gets rank i's ``in_array[this rank]``."""
        self._dispatch("all_to_all", in_array, out_array, stream)

    def barrier(self) -> None:
        """Return when every process of the group is here; devices may still be at work. NcclError when one is gone."""
        if self._use_mpi:
            self._mpi_comm.Barrier()
        else:
            self._store_proxy.barrier(self._comm.check_async_error)


def _check(*arrays: Any) -> None:
    for array in arrays:
        if not array.flags.c_contiguous and not array.flags.f_contiguous:
            raise RuntimeError("NCCL requires arrays to be either c- or f-contiguous")


class _Dense:
    """The operations on dense arrays; the first argument is the backend."""

    @staticmethod
    def all_reduce(comm: NCCLBackend, in_array: Any, out_array: Any, op: str = "sum", stream: Any = None) -> None:
        _check(in_array, out_array)
        dtype, count = _get_nccl_dtype_and_count(in_array)
        number = comm._operator(op, in_array.dtype.char)
        pointer = comm._stream_pointer(stream)
        comm._comm.allReduce(in_array.data.ptr, out_array.data.ptr, count, dtype, number, pointer)

    @staticmethod
    def reduce(
        comm: NCCLBackend, in_array: Any, out_array: Any, root: int = 0, op: str = "sum", stream: Any = None
    ) -> None:
        _check(in_array)
        if comm.rank == root:
            _check(out_array)
        dtype, count = _get_nccl_dtype_and_count(in_array)
        number = comm._operator(op, in_array.dtype.char)
        pointer = comm._stream_pointer(stream)
        comm._comm.reduce(in_array.data.ptr, out_array.data.ptr, count, dtype, number, root, pointer)

    @staticmethod
    def broadcast(comm: NCCLBackend, in_out_array: Any, root: int = 0, stream: Any = None) -> None:
        _check(in_out_array)
        dtype, count = _get_nccl_dtype_and_count(in_out_array)
        pointer = in_out_array.data.ptr
        comm._comm.broadcast(pointer, pointer, count, dtype, root, comm._stream_pointer(stream))

    @staticmethod
    def reduce_scatter(
        comm: NCCLBackend, in_array: Any, out_array: Any, count: int, op: str = "sum", stream: Any = None
    ) -> None:
        _check(in_array, out_array)
        dtype, count = _get_nccl_dtype_and_count(in_array, count)
        number = comm._operator(op, in_array.dtype.char)
        pointer = comm._stream_pointer(stream)
        comm._comm.reduceScatter(in_array.data.ptr, out_array.data.ptr, count, dtype, number, pointer)

    @staticmethod
    def all_gather(comm: NCCLBackend, in_array: Any, out_array: Any, count: int, stream: Any = None) -> None:
        _check(in_array, out_array)
        dtype, count = _get_nccl_dtype_and_count(in_array, count)
        pointer = comm._stream_pointer(stream)
        comm._comm.allGather(in_array.data.ptr, out_array.data.ptr, count, dtype, pointer)

    @staticmethod
    def send(comm: NCCLBackend, array: Any, peer: int, stream: Any = None) -> None:
        _check(array)
        dtype, count = _get_nccl_dtype_and_count(array)
        comm._comm.send(array.data.ptr, count, dtype, peer, comm._stream_pointer(stream))

    @staticmethod
    def recv(comm: NCCLBackend, out_array: Any, peer: int, stream: Any = None) -> None:
        _check(out_array)
        dtype, count = _get_nccl_dtype_and_count(out_array)
        comm._comm.recv(out_array.data.ptr, count, dtype, peer, comm._stream_pointer(stream))

    @classmethod
    def send_recv(cls, comm: NCCLBackend, in_array: Any, out_array: Any, peer: int, stream: Any = None) -> None:
        nccl.groupStart()
        try:
            cls.send(comm, in_array, peer, stream)
            cls.recv(comm, out_array, peer, stream)
        finally:
            nccl.groupEnd()

    @classmethod
    def scatter(cls, comm: NCCLBackend, in_array: Any, out_array: Any, root: int = 0, stream: Any = None) -> None:
        if in_array.shape[0] != comm._n_devices:
            raise RuntimeError(f"scatter requires in_array to have {comm._n_devices} elements in its first dimension")
        nccl.groupStart()
        try:
            if root == comm.rank:
                for peer in range(comm._n_devices):
                    cls.send(comm, in_array[peer], peer, stream)
            cls.recv(comm, out_array, root, stream)
        finally:
            nccl.groupEnd()

    @classmethod
    def gather(cls, comm: NCCLBackend, in_array: Any, out_array: Any, root: int = 0, stream: Any = None) -> None:
        if comm.rank == root and out_array.shape[0] != comm._n_devices:
            raise RuntimeError(f"gather requires out_array to have {comm._n_devices} elements in its first dimension")
        nccl.groupStart()
        try:
            if root == comm.rank:
                for peer in range(comm._n_devices):
                    cls.recv(comm, out_array[peer], peer, stream)
            cls.send(comm, in_array, root, stream)
        finally:
            nccl.groupEnd()

    @classmethod
    def all_to_all(cls, comm: NCCLBackend, in_array: Any, out_array: Any, stream: Any = None) -> None:
        for name, array in (("in_array", in_array), ("out_array", out_array)):
            if array.shape[0] != comm._n_devices:
                raise RuntimeError(
                    f"all_to_all requires {name} to have {comm._n_devices} elements in its first dimension"
                )
        nccl.groupStart()
        try:
            for peer in range(comm._n_devices):
                cls.send(comm, in_array[peer], peer, stream)
                cls.recv(comm, out_array[peer], peer, stream)
        finally:
            nccl.groupEnd()
