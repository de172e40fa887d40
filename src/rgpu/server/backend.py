"""What a worker asks of its device, and how a backend is chosen.

A backend makes arrays, views of them and bytes of them, and resolves declared function names to
callables once, when it starts. It never sees the wire. ``cpu`` is the semantic reference;
``cupy`` is CUDA (and ROCm where CuPy has it).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rgpu.errors import ConfigError


class Backend(ABC):
    """One device. ``limit`` bounds the bytes that the session's arrays may own (0: the device)."""

    kind: str
    pci: str = ""  # the device's address; none: it is made of the host's CPUs
    array: type
    scalar: type | tuple[type, ...] = np.generic
    shortcuts: dict[str, Any] = {}  # functions whose work the C core's loop may do by itself, and how
    borrowed: tuple[type, ...] = ()  # arrays over memory that is not theirs and must stay so
    limit: int = 0
    allowance: Any = None  # what the session may use now, asked of the daemon; None: the limit
    spill_to: Any = None  # where arrays go that do not fit into device memory; None: all fit
    table: Any = None  # the session's, set by the executor: its accounts are what memory figures tell
    peers: Any = None  # the session's connections to other workers, set by the executor
    templates: Any = None  # what the client repeats, set by the executor
    made: Any = None  # how its objects that are no arrays were made (``server.state``)
    teller: Any = None  # who tells of them while the session is copied (``server.retelling``)
    graphs: Any = None  # of what the client repeats, where the device has them (``server.graphs``)
    recorder: Any = None  # of captured graphs, where the device has none of its own

    @abstractmethod
    def resolve(self, name: str) -> Callable[..., Any] | None:
        """The callable of a declared function name, or None where this backend lacks it."""

    @abstractmethod
    def empty(self, shape: Sequence[int], dtype: np.dtype, strides: Sequence[int] | None) -> Any:
        """A new array; raises the backend's OutOfMemoryError."""

    @abstractmethod
    def view(self, root: Any, shape: tuple, dtype: np.dtype, strides: tuple, offset: int) -> Any:
        """An array over root's memory; raises ValueError where it would leave it."""

    @abstractmethod
    def from_host(self, array: np.ndarray) -> Any:
        """A new device array with a host array's content."""

    @abstractmethod
    def to_host(self, array: Any, order: str) -> np.ndarray:
        """The content in host memory, contiguous in ``order``."""

    def memory(self, array: Any, offset: int, size: int) -> memoryview | None:
        """At most ``size`` bytes of the array's memory from ``offset`` on, where a host can write; else None."""
        return None

    @abstractmethod
    def write(self, array: Any, offset: int, data: Any) -> None:
        """Copy host bytes into a contiguous array, ``offset`` bytes from its beginning."""

    def lend(self, array: Any) -> memoryview:
        """The bytes of a contiguous array, in memory order; they may be the array's own."""
        if not (array.flags.c_contiguous or array.flags.f_contiguous):
            raise ValueError("the array is not contiguous")
        return _flat(self.to_host(array, "C" if array.flags.c_contiguous else "F"))

    def place(self, array: Any) -> memoryview:
        """Host memory for the new content of a contiguous array; ``landed`` puts it there."""
        if not (array.flags.c_contiguous or array.flags.f_contiguous):
            raise ValueError("the array is not contiguous")
        return memoryview(bytearray(array.nbytes))

    def landed(self, array: Any, place: memoryview) -> None:
        """The bytes in ``place`` are complete."""
        self.write(array, 0, place)

    def ticket(self, array: Any) -> bytes | None:
        """With it another process of this host, with a device of this kind, can ``redeem`` the array's bytes; None:
        there is no such way, or it is not worth it."""
        return None

    def redeem(self, target: Any, ticket: bytes, nbytes: int) -> bool:
        """Copy what a ticket stands for into a contiguous array, to the end. False: this device cannot."""
        return False

    def communicator(self, *args: Any) -> Any:
        """One rank of a communicator (``collective.Communicator``'s arguments)."""
        from rgpu.server.collective import Communicator

        return Communicator(*args)

    def group(self, on: bool) -> None:  # noqa: B027 - between host arrays sending never waits for receiving
        """Sends and receives from here on (to where it is off again) are one operation of this device's."""

    def collective(self, work: Callable[..., None], source: Any, target: Any, dtype: np.dtype) -> Any:
        """Run ``work(source, target)`` on flat host arrays of ``dtype`` over the bytes of two arrays (or None), in the
        order of the current stream. Returns a ``collective.Promise`` if it goes on beside the commands."""
        places = [None if x is None else self.lend(x) for x in (source, target)]
        host = [None if p is None else np.frombuffer(p, np.uint8).view(dtype) for p in places]
        if target is not None:
            host[1] = host[1].copy()
        work(*host)
        if target is not None:
            self.landed(target, memoryview(host[1].view(np.uint8)))

    @abstractmethod
    def own(self, result: Any, order: str = "C") -> Any:
        """An array that owns its memory in C order or Fortran's, with result's content."""

    def separate(self, result: Any, others: list) -> bool:
        """Whether a result owns its memory and is none of the others: then it needs no copy."""
        return result.flags.owndata and all(x is not result for x in others)

    @abstractmethod
    def synchronize(self) -> None:
        """Return when everything issued has run; raises asynchronous device errors."""

    def at_rest(self) -> bool:
        """Whether ``synchronize`` has nothing to wait for and nothing to raise."""
        return False

    @abstractmethod
    def use_stream(self, stream: Any) -> None:
        """Make a stream object (or None) current for what follows."""

    def entitle(self, allowance: Any, spill_to: Any = None) -> None:
        """From now on this is what the session may use."""
        self.allowance, self.spill_to = allowance, spill_to
        allowance.release = self.release

    @abstractmethod
    def address(self, array: Any) -> int:
        """Where an array's first element is, for the distance between two of one memory."""

    def explain(self, error: BaseException) -> BaseException:
        """An exception as the client should see it: with arguments that make it again there."""
        return error

    def release(self) -> None:  # noqa: B027 - a backend without pools has nothing to do
        """Give cached memory back to the device."""


def _flat(host: np.ndarray) -> memoryview:
    return memoryview(host.reshape(-1, order="A").view(np.uint8)) if host.size else memoryview(b"")


def load(kind: str, device: int, memory_limit: int = 0) -> Backend:
    """The backend of one device."""
    if kind == "cpu":
        from rgpu.server.backend_cpu import CpuBackend

        return CpuBackend(device, memory_limit)
    if kind == "sim":
        from rgpu.server.backend_sim import SimBackend

        return SimBackend(device, memory_limit)
    if kind in ("cupy", "cuda"):
        from rgpu.server.backend_cupy import CupyBackend

        return CupyBackend(device, memory_limit)
    raise ConfigError(f"unknown backend {kind!r}: use 'cpu' or 'cupy'")


def warm_up(kind: str) -> None:
    """Import what the backend needs, before anybody waits for it; touches no device."""
    if kind == "cpu":
        import rgpu.server.backend_cpu  # noqa: F401
    else:
        import rgpu.server.backend_cupy  # noqa: F401
