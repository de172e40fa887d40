"""Devices of the pool as CuPy's ``Device``: numbers 0..n-1, whatever server they are on.

The current device is per thread. A wrong number is noticed when it is used, as in CUDA. Nothing here
keeps state of its own but the stack of ``with``.
"""

from __future__ import annotations

import threading
from typing import Any

from rgpu import surface
from rgpu.cuda import runtime


class _Stack(threading.local):
    def __init__(self) -> None:
        self.devices: list[int] = []


_stack = _Stack()


class Device:
    """One device by number (default: the current one). ``with`` makes it current for a while."""

    __module__ = "cupy.cuda.device"

    def __init__(self, device: Any = None) -> None:
        self.id = runtime.getDevice() if device is None else int(device)

    @classmethod
    def from_pci_bus_id(cls, pci_bus_id: str) -> Device:
        """The device with this PCI address (``pci_bus_id`` tells it)."""
        return cls(runtime.deviceGetByPCIBusId(pci_bus_id))

    def __int__(self) -> int:
        return self.id

    def __enter__(self) -> Device:
        before = runtime.getDevice()
        if before != self.id:
            runtime.setDevice(self.id)
        _stack.devices.append(before)
        return self

    def __exit__(self, *_: Any) -> None:
        runtime.setDevice(_stack.devices.pop())

    def __repr__(self) -> str:
        return f"<CUDA Device {self.id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __lt__(self, other: Any) -> bool:
        return self.id < other.id if isinstance(other, Device) else NotImplemented

    def __le__(self, other: Any) -> bool:
        return self.id <= other.id if isinstance(other, Device) else NotImplemented

    def use(self) -> Device:
        """Make this device current for the calling thread."""
        runtime.setDevice(self.id)
        return self

    def synchronize(self) -> None:
        """Wait until everything issued to this device has run; raises what failed."""
        runtime.synchronize_device(self.id)

    @property
    def compute_capability(self) -> str:
        properties = runtime.getDeviceProperties(self.id)
        return f"{properties['major']}{properties['minor']}"

    @property
    def mem_info(self) -> tuple[int, int]:
        """(free, total) bytes of the lease on this device."""
        return runtime.memory_of_device(self.id)

    @property
    def attributes(self) -> dict[str, int]:
        """Attribute names without ``cudaDevAttr`` and their values."""
        known = runtime.device_attributes(self.id)
        prefix = "cudaDevAttr"
        numbers = ((name, getattr(runtime, name)) for name in dir(runtime) if name.startswith(prefix))
        return {name.removeprefix(prefix): known[number] for name, number in numbers if number in known}

    @property
    def pci_bus_id(self) -> str:
        return runtime.deviceGetPCIBusId(self.id)


def get_device_id() -> int:
    """The number of the current device."""
    return runtime.getDevice()


def get_compute_capability() -> str:
    return Device().compute_capability


def from_pointer(ptr: int) -> Device:
    """The device that a device address belongs to."""
    return Device(runtime.pointerGetAttributes(ptr).device)


__getattr__, __dir__ = surface.face(__name__)
