"""CuPy's exception classes for the device, and CUDA's numbers and texts behind them.

Importing this teaches ``client.failures`` to rebuild them from a worker's report. An error of CUDA is
known by its status; the texts are the driver's own.
"""

from __future__ import annotations

from typing import Any

from rgpu.client.failures import KINDS

INVALID_VALUE, OUT_OF_MEMORY, INVALID_DEVICE = 1, 2, 101
INVALID_RESOURCE_HANDLE, NOT_READY, PEER_ALREADY_ENABLED, PEER_NOT_ENABLED = 400, 600, 704, 705

#: status -> (name without its prefix, text); the runtime says cudaErrorX, the driver CUDA_ERROR_X
_STATUS = {
    0: ("Success", "no error"),
    1: ("InvalidValue", "invalid argument"),
    2: ("MemoryAllocation", "out of memory"),
    3: ("InitializationError", "initialization error"),
    4: ("CudartUnloading", "driver shutting down"),
    35: ("InsufficientDriver", "CUDA driver version is insufficient for CUDA runtime version"),
    46: ("DevicesUnavailable", "CUDA-capable device(s) is/are busy or unavailable"),
    98: ("InvalidDeviceFunction", "invalid device function"),
    100: ("NoDevice", "no CUDA-capable device is detected"),
    101: ("InvalidDevice", "invalid device ordinal"),
    200: ("InvalidKernelImage", "device kernel image is invalid"),
    201: ("DeviceUninitialized", "invalid device context"),
    209: ("NoKernelImageForDevice", "no kernel image is available for execution on the device"),
    214: ("ECCUncorrectable", "uncorrectable ECC error encountered"),
    217: ("PeerAccessUnsupported", "peer access is not supported between these two devices"),
    218: ("InvalidPtx", "a PTX JIT compilation failed"),
    300: ("InvalidSource", "device kernel image is invalid"),
    301: ("FileNotFound", "file not found"),
    400: ("InvalidResourceHandle", "invalid resource handle"),
    401: ("IllegalState", "the operation cannot be performed in the present state"),
    500: ("SymbolNotFound", "named symbol not found"),
    600: ("NotReady", "device not ready"),
    700: ("IllegalAddress", "an illegal memory access was encountered"),
    701: ("LaunchOutOfResources", "too many resources requested for launch"),
    702: ("LaunchTimeout", "the launch timed out and was terminated"),
    704: ("PeerAccessAlreadyEnabled", "peer access is already enabled"),
    705: ("PeerAccessNotEnabled", "peer access has not been enabled"),
    710: ("Assert", "device-side assert triggered"),
    714: ("HardwareStackError", "hardware stack error"),
    715: ("IllegalInstruction", "an illegal instruction was encountered"),
    716: ("MisalignedAddress", "misaligned address"),
    717: ("InvalidAddressSpace", "operation not supported on global/shared address space"),
    718: ("InvalidPc", "invalid program counter"),
    719: ("LaunchFailure", "unspecified launch failure"),
    801: ("NotSupported", "operation not supported"),
    900: ("StreamCaptureUnsupported", "operation not permitted when stream is capturing"),
    901: ("StreamCaptureInvalidated", "operation failed due to a previous error during capture"),
    903: ("StreamCaptureUnmatched", "capture was not ended in the same stream as it began"),
    904: ("StreamCaptureUnjoined", "capturing stream has unjoined work"),
    906: ("StreamCaptureImplicit", "operation would make the legacy stream depend on a capturing blocking stream"),
    999: ("Unknown", "unknown error"),
}
#: the driver's names where they are not the runtime's in capitals
_DRIVER = {
    2: "OUT_OF_MEMORY", 3: "NOT_INITIALIZED", 4: "DEINITIALIZED", 200: "INVALID_IMAGE",
    201: "INVALID_CONTEXT", 209: "NO_BINARY_FOR_GPU", 400: "INVALID_HANDLE", 500: "NOT_FOUND",
}  # fmt: skip


def _capitals(name: str) -> str:
    words = "".join(
        f"_{c}" if c.isupper() and not name[max(i - 1, 0)].isupper() else c for i, c in enumerate(name)
    )
    return words.lstrip("_").upper()


def rebuild(name: str, arguments: tuple) -> BaseException:
    """Unpickle one of these: their own module is CuPy's, which a program that says rgpu does not have."""
    return KINDS[name](*arguments)


class CUDARuntimeError(RuntimeError):
    """An error of the CUDA runtime; ``status`` is its number."""

    __module__ = "cupy_backends.cuda.api.runtime"

    def __init__(self, status: int) -> None:
        self.status = status
        name, text = _STATUS.get(status, ("", "unrecognized error code"))
        super().__init__(f"cudaError{name}: {text}" if status else f"cudaSuccess: {text}")

    def __reduce__(self) -> Any:
        return rebuild, (type(self).__name__, (self.status,))


class CUDADriverError(RuntimeError):
    """An error of the CUDA driver; ``status`` is its number."""

    __module__ = "cupy_backends.cuda.api.driver"

    def __init__(self, status: int) -> None:
        self.status = status
        name, text = _STATUS.get(status, ("Unknown", "unrecognized error code"))
        super().__init__(f"CUDA_ERROR_{_DRIVER.get(status) or _capitals(name)}: {text}")

    def __reduce__(self) -> Any:
        return rebuild, (type(self).__name__, (self.status,))


class OutOfMemoryError(MemoryError):
    """The device, or the limit of its pool, has no room for ``size`` more bytes."""

    __module__ = "cupy.cuda.memory"

    def __init__(self, size: int, total: int, limit: int = 0) -> None:
        self._size, self._total, self._limit = size, total, limit
        text = f"Out of memory allocating {size:,} bytes"
        if limit:
            text += f" (allocated so far: {total:,} bytes, limit set to: {limit:,} bytes)."
        elif total != -1:
            text += f" (allocated so far: {total:,} bytes)."
        super().__init__(text)

    def __reduce__(self) -> Any:
        return rebuild, (type(self).__name__, (self._size, self._total, self._limit))


def library_error(name: str, module: str, texts: dict[int, str] | None = None) -> Any:
    """The exception class of one of CUDA's libraries: a status, and the text the worker gave for it (else the
    one of ``texts``)."""

    def __init__(self: Any, status: Any, text: str = "") -> None:
        self.status = status
        RuntimeError.__init__(self, text or (texts or {}).get(status) or str(status))

    def __reduce__(self: Any) -> Any:
        return rebuild, (name, (self.status, str(self)))

    body = {
        "__init__": __init__,
        "__reduce__": __reduce__,
        "__module__": module,
        "__doc__": f"An error of {module}.",
    }
    made = type(name, (RuntimeError,), body)
    KINDS[name] = made
    return made


def invalid(status: int, why: str) -> CUDARuntimeError:
    """A runtime error with a note that says what was wrong here."""
    error = CUDARuntimeError(status)
    error.add_note(why)
    return error


for _kind in (CUDARuntimeError, CUDADriverError, OutOfMemoryError):
    KINDS[_kind.__name__] = _kind
