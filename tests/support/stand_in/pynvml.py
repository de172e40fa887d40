"""What the daemon asks NVML of the stand-in's card; what is not here is what a card cannot tell."""

import types

from cupy.cuda import CARD


class NVMLError(Exception): ...


def nvmlInit(): ...


def nvmlShutdown(): ...


def nvmlDeviceGetCount():
    return 1


def nvmlDeviceGetHandleByIndex(index):
    return index


def nvmlDeviceGetUUID(handle):
    return "GPU-00000000-0000-0000-0000-000000000000"


def nvmlDeviceGetName(handle):
    return "a stand-in"


def nvmlDeviceGetMemoryInfo(handle, *version):
    return types.SimpleNamespace(total=CARD, used=0)


def nvmlDeviceGetPciInfo(handle):
    return types.SimpleNamespace(busId=b"00000000:01:00.0")
