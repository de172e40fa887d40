"""The functions of the CUDA runtime, on the devices of the pool.

Pointers are the addresses of ``rgpu.cuda.addresses`` or of the client's own memory; streams and events are
integers of ``rgpu.cuda.handles``. Nothing here talks CUDA: each function says what it means in commands. A
function of CuPy's that is not here raises NotImplementedError with its name.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from rgpu import surface
from rgpu.client import follow
from rgpu.client import pool as devices
from rgpu.cuda import addresses, copying, driver_pools, graph, handles, issue
from rgpu.cuda.driver_pools import MemPoolProps as MemPoolProps
from rgpu.cuda.errors import (
    INVALID_DEVICE,
    INVALID_VALUE,
    PEER_ALREADY_ENABLED,
    PEER_NOT_ENABLED,
    CUDARuntimeError,
    invalid,
)

is_hip = False
cudaInvalidDeviceId, cudaCpuDeviceId = -2, -1  # noqa: N816 - CuPy's names
eventDefault, eventBlockingSync, eventDisableTiming, eventInterprocess = 0, 1, 2, 4  # noqa: N816
streamDefault, streamNonBlocking, streamLegacy, streamPerThread = 0, 1, 1, 2  # noqa: N816
memoryTypeUnregistered, memoryTypeHost, memoryTypeDevice, memoryTypeManaged = range(4)  # noqa: N816
memPoolCreate, memPoolDestroy = driver_pools.create, driver_pools.destroy  # noqa: N816
memPoolTrimTo, memPoolGetAttribute = driver_pools.trim, driver_pools.attribute  # noqa: N816
_NOT_READY = 600  # what a query answers instead of success; not an error


def check_status(status: int) -> None:
    if status:
        raise CUDARuntimeError(status)


# ---- devices --------------------------------------------------------------------------------------


def getDeviceCount() -> int:
    return len(devices.get().devices)


def getDevice() -> int:
    return devices.current().ordinal


def _device(number: int) -> devices.Device:
    """A device by number, or by what is one as C takes it (a Device); CUDA's error for a wrong one."""
    if not hasattr(number, "__int__"):
        raise TypeError("an integer is required")
    number = int(number)
    found = devices.get().devices
    if not 0 <= number < len(found):
        raise invalid(
            INVALID_DEVICE, f"there is no device {number}: the pool has {len(found)} (0..{len(found) - 1})"
        )
    return found[number]


def setDevice(device: int) -> None:
    devices.use(_device(device))


def deviceSynchronize() -> None:
    synchronize_device(getDevice())


def synchronize_device(number: int) -> None:
    """Wait for everything issued to a device, and for host functions that wait for it."""
    device = _device(number)
    if device.attached:
        device.stream.sync()
        handles.finish_host_functions(device.stream)


_facts: weakref.WeakKeyDictionary[Any, dict] = weakref.WeakKeyDictionary()
_facts_lock = threading.RLock()


def _info(number: int) -> dict:
    """What the worker says about its device: name, properties, attributes. Asked once a session."""
    device = _device(number)
    key = device.stream
    with _facts_lock:
        found = _facts.get(key)
        if found is None:
            found = _facts[key] = issue.ask(device.stream, "device.info")
    return found


def getDeviceProperties(device: int) -> dict:
    info = _info(device)
    properties = dict(info["properties"])
    properties["totalGlobalMem"] = _device(device).memory_leased
    return properties


def device_attributes(number: int) -> dict[int, int]:
    """Attribute number -> value."""
    return _info(number)["attributes"]


def deviceGetAttribute(attrib: int, device: int) -> int:
    known = device_attributes(device)
    if attrib not in known:
        raise CUDARuntimeError(INVALID_VALUE)
    return known[attrib]


def deviceGetPCIBusId(device: int) -> str:
    found = _device(device)
    return found.info.get("pci_bus_id") or _virtual_bus(found)


def _virtual_bus(device: devices.Device) -> str:
    """A cpu device has none: the server's number in the pool and the device's on it."""
    server = devices.get().daemons.index(device.daemon)
    return f"{server:04X}:{device.index:02X}:00.0"


def deviceGetByPCIBusId(pci_bus_id: str) -> int:
    parts = pci_bus_id.replace(".", ":").split(":")
    try:
        wanted = [int(part, 16) for part in parts]
    except ValueError:
        raise CUDARuntimeError(INVALID_VALUE) from None
    for device in devices.get().devices:
        have = deviceGetPCIBusId(device.ordinal).replace(".", ":").split(":")
        if [int(part, 16) for part in have][-len(wanted) :] == wanted:
            return device.ordinal
    raise CUDARuntimeError(INVALID_DEVICE)


def memGetInfo() -> tuple[int, int]:
    """(free, total) bytes of the lease on the current device."""
    free, total = issue.ask(issue.here(), "device.memory")
    return free, total


def memory_of_device(number: int) -> tuple[int, int]:
    free, total = issue.ask(_device(number).stream, "device.memory")
    return free, total


def driverGetVersion() -> int:
    return _info(getDevice())["driver_version"]


def runtimeGetVersion() -> int:
    return _info(getDevice())["runtime_version"]


_getLocalRuntimeVersion = runtimeGetVersion  # noqa: N816


def _getCUDAMajorVersion() -> int:
    return runtimeGetVersion() // 1000


# ---- peers: every device can reach every other (client.peer), enabled or not -------------------------

_peers: set[tuple[int, int]] = set()


def deviceCanAccessPeer(device: int, peerDevice: int) -> int:
    _device(device), _device(peerDevice)
    return int(device != peerDevice)


def deviceEnablePeerAccess(peerDevice: int) -> None:
    pair = (getDevice(), _device(peerDevice).ordinal)
    if pair[0] == pair[1]:
        raise CUDARuntimeError(INVALID_DEVICE)
    if pair in _peers:
        raise CUDARuntimeError(PEER_ALREADY_ENABLED)
    _peers.add(pair)


def deviceDisablePeerAccess(peerDevice: int) -> None:
    pair = (getDevice(), _device(peerDevice).ordinal)
    if pair not in _peers:
        raise CUDARuntimeError(PEER_NOT_ENABLED)
    _peers.remove(pair)


def _deviceEnsurePeerAccess(peerDevice: int) -> None:
    _peers.add((getDevice(), _device(peerDevice).ordinal))


# ---- memory ---------------------------------------------------------------------------------------

_allocations: dict[int, tuple[Any, int]] = {}  # address -> (allocation, type), until freed
_host_buffers: weakref.WeakValueDictionary[int, np.ndarray] = weakref.WeakValueDictionary()
_host_allocations: dict[int, np.ndarray] = {}  # of hostAlloc, until freed


def _keep(memory: Any, kind: int) -> int:
    if memory.ptr:
        _allocations[memory.ptr] = memory, kind
    return memory.ptr


def malloc(size: int) -> int:
    from rgpu.cuda.memory import Memory

    return _keep(Memory(size), memoryTypeDevice)


def mallocManaged(size: int, flags: int = 1) -> int:
    from rgpu.cuda.memory import ManagedMemory

    return _keep(ManagedMemory(size), memoryTypeManaged)


def mallocAsync(size: int, stream: int) -> int:
    with _on(stream):
        return malloc(size)


def free(ptr: int) -> None:
    if ptr and _allocations.pop(ptr, None) is None:
        raise invalid(
            INVALID_VALUE, f"{ptr:#x} did not come from a malloc of this module, or was freed before"
        )


def mallocFromPoolAsync(size: int, pool: int, stream: int) -> int:
    return _keep(driver_pools.allocate(size, pool, stream), memoryTypeDevice)


def freeAsync(ptr: int, stream: int) -> None:
    with _on(stream):
        free(ptr)


def host_buffer(size: int) -> np.ndarray:
    """What counts as pinned memory, as long as it lives; on the client it is ordinary memory."""
    buffer = np.empty(max(size, 1), np.uint8)
    _host_buffers[buffer.__array_interface__["data"][0]] = buffer
    return buffer


def hostAlloc(size: int, flags: int = 0) -> int:
    buffer = host_buffer(size)
    pointer = buffer.__array_interface__["data"][0]
    _host_allocations[pointer] = buffer
    return pointer


def freeHost(ptr: int) -> None:
    if ptr and _host_allocations.pop(ptr, None) is None:
        raise CUDARuntimeError(INVALID_VALUE)


def hostRegister(ptr: int, size: int, flags: int = 0) -> None:
    """Pinning the client's memory has no meaning for a device elsewhere."""


def hostUnregister(ptr: int) -> None:
    """See ``hostRegister``."""


class PointerAttributes:
    """Where an address is: ``device``, ``devicePointer``, ``hostPointer``, ``type``."""

    __module__ = "cupy_backends.cuda.api.runtime"

    def __init__(self, device: int, devicePointer: int, hostPointer: int, type: int = -1) -> None:  # noqa: A002
        self.device, self.devicePointer, self.hostPointer, self.type = (
            device,
            devicePointer,
            hostPointer,
            type,
        )


def pointerGetAttributes(ptr: int) -> PointerAttributes:
    if addresses.is_device(ptr):
        root, _ = addresses.find(ptr)
        kind = _allocations.get(ptr, (None, memoryTypeDevice))[1]
        return PointerAttributes(issue.ordinal(root._stream), ptr, 0, kind)
    if ptr in _host_buffers:
        return PointerAttributes(getDevice(), 0, ptr, memoryTypeHost)
    return PointerAttributes(cudaInvalidDeviceId, 0, ptr, memoryTypeUnregistered)


def pointerGetMemoryType(ptr: int) -> int:
    return pointerGetAttributes(ptr).type


def _on(stream: int) -> Any:
    """Inside, commands run on a stream given by its integer."""
    commands, held = handles.stream(stream)
    return follow.on(commands, handles.handle_of(held))


def memcpy(dst: int, src: int, size: int, kind: int) -> None:
    copying.copy(dst, src, size, kind)


def memcpyAsync(dst: int, src: int, size: int, kind: int, stream: int) -> None:
    with _on(stream):
        copying.copy(dst, src, size, kind)


def memcpyPeer(dst: int, dstDevice: int, src: int, srcDevice: int, size: int) -> None:
    _device(dstDevice), _device(srcDevice)
    copying.copy(dst, src, size, copying.DEVICE_TO_DEVICE)


def memcpyPeerAsync(dst: int, dstDevice: int, src: int, srcDevice: int, size: int, stream: int) -> None:
    with _on(stream):
        memcpyPeer(dst, dstDevice, src, srcDevice, size)


def memcpy2D(dst: int, dpitch: int, src: int, spitch: int, width: int, height: int, kind: int) -> None:
    copying.copy_rows(dst, dpitch, src, spitch, width, height, kind)


def memcpy2DAsync(
    dst: int, dpitch: int, src: int, spitch: int, width: int, height: int, kind: int, stream: int
) -> None:
    with _on(stream):
        copying.copy_rows(dst, dpitch, src, spitch, width, height, kind)


def memset(ptr: int, value: int, size: int) -> None:
    root, offset = addresses.find(copying.address_of(ptr))
    copying.fill(root, offset, value, size)


def memsetAsync(ptr: int, value: int, size: int, stream: int) -> None:
    with _on(stream):
        memset(ptr, value, size)


def memPrefetchAsync(devPtr: int, count: int, dstDevice: int, stream: int) -> None:
    """Begin to copy the managed memory or the unified array at this address to a device; for other memory a hint that
    is checked only."""
    root, _ = addresses.find(devPtr)
    if dstDevice == cudaCpuDeviceId:
        return
    _device(dstDevice)
    from rgpu.cuda import managed, unified

    found = unified.behind(root)
    if found is not None:
        found.prefetch(dstDevice)
    else:
        managed.prefetch(root, dstDevice)


def memAdvise(devPtr: int, count: int, advice: int, device: int) -> None:
    """What is said of managed memory: that one copy serves many reads, where it is best; for other memory a hint that
    is checked only."""
    root, _ = addresses.find(devPtr)
    if advice not in range(1, 7):
        raise CUDARuntimeError(INVALID_VALUE)
    if device != cudaCpuDeviceId:
        _device(device)
    from rgpu.cuda import managed

    managed.advise(root, advice, device)


# ---- streams --------------------------------------------------------------------------------------


def streamCreate() -> int:
    return streamCreateWithPriority(streamDefault, 0)


def streamCreateWithFlags(flags: int) -> int:
    return streamCreateWithPriority(flags, 0)


def streamCreateWithPriority(flags: int, priority: int) -> int:
    return handles.create("stream.create", bool(flags & streamNonBlocking), priority, owned=True).pointer


def streamDestroy(stream: int) -> None:
    handles.destroy(stream)


def streamSynchronize(stream: int) -> None:
    graph.refuse(stream)
    handles.synchronize(stream)


def streamQuery(stream: int) -> int:
    try:
        graph.refuse(stream)
    except CUDARuntimeError as error:
        return error.status
    return 0 if handles.query(stream) else _NOT_READY


def streamWaitEvent(stream: int, event: int, flags: int = 0) -> None:
    graph.waits(stream, event)
    handles.wait_event(stream, event)


def streamAddCallback(stream: int, callback: Callable[..., None], arg: Any, flags: int = 0) -> None:
    """``callback(stream, status, arg)`` on the client when the work issued so far is done."""
    commands, held = handles.stream(stream)
    handles.host_functions(commands).add(held, lambda: callback(stream, 0, arg))


def launchHostFunc(stream: int, callback: Callable[..., None], arg: Any) -> None:
    """``callback(arg)`` on the client when the work issued so far is done."""
    commands, held = handles.stream(stream)
    if not graph.host_function(stream, lambda: callback(arg)):
        handles.host_functions(commands).add(held, lambda: callback(arg))


def streamIsCapturing(stream: int) -> bool:
    handles.stream(stream)
    return graph.is_capturing(stream)


# ---- events ---------------------------------------------------------------------------------------


def eventCreate() -> int:
    return eventCreateWithFlags(eventDefault)


def eventCreateWithFlags(flags: int) -> int:
    return handles.create("event.create", flags, owned=True).pointer


def eventDestroy(event: int) -> None:
    handles.destroy(event)


def eventRecord(event: int, stream: int) -> None:
    graph.recorded(event, stream)
    handles.record(event, stream)


def eventSynchronize(event: int) -> None:
    found = handles.find(event)
    issue.ask(found.stream, "event.synchronize", found)


def eventQuery(event: int) -> int:
    found = handles.find(event)
    return 0 if issue.ask(found.stream, "event.query", found) else _NOT_READY


def eventElapsedTime(start: int, end: int) -> float:
    """Milliseconds between two events of one device (waits for both)."""
    first, last = handles.find(start), handles.find(end)
    if first.stream is not last.stream:
        raise CUDARuntimeError(handles.INVALID_RESOURCE_HANDLE)
    return issue.ask(first.stream, "event.elapsed", first, last)


def profilerStart() -> None:
    """A profiler on the client sees no device; accepted, so that programs run."""


def profilerStop() -> None:
    """See ``profilerStart``."""


__getattr__, __dir__ = surface.face(__name__)
