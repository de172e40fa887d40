"""The inventory of devices: cpu devices from the host, GPUs from a stand-in for NVML."""

import sys
import threading
import types

import pytest

from rgpu.config import parse_devices
from rgpu.errors import ConfigError
from rgpu.server import nvml as nvml_room
from rgpu.server import telemetry
from rgpu.server.lease import Session
from rgpu.server.telemetry import Inventory
from tests.support.waiting import wait_until


def session(device, memory_used, busy):
    return Session(b"s" * 16, 1, device, None, None, 0.0, resident_used=memory_used, busy=busy)


@pytest.fixture
def nvml(monkeypatch):
    """Two cards; the second one has no power sensor."""

    class NVMLError(Exception):
        pass

    def no_sensor(handle):
        if handle == 1:
            raise NVMLError("not supported")
        return 412_000

    fake = types.SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetMemoryInfo=lambda handle: types.SimpleNamespace(total=1 << 37, used=5 << 30),
        nvmlDeviceGetCudaComputeCapability=lambda handle: (9, 0),
        nvmlDeviceGetUUID=lambda handle: f"GPU-{handle}".encode(),
        nvmlDeviceGetPciInfo=lambda handle: types.SimpleNamespace(busId=b"00000000:0%d:00.0" % handle),
        nvmlDeviceGetName=lambda handle: "NVIDIA H200",
        nvmlSystemGetDriverVersion=lambda: "570.1",
        nvmlDeviceGetUtilizationRates=lambda handle: types.SimpleNamespace(gpu=61, memory=3),
        nvmlDeviceGetPowerUsage=no_sensor,
        nvmlDeviceGetTemperature=lambda handle, sensor: 48,
        nvmlDeviceGetComputeMode=lambda handle: 0,
    )
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


def test_cpu_devices_share_the_host(monkeypatch):
    monkeypatch.setattr(telemetry, "host_memory", lambda: 8 << 30)
    inventory = Inventory(parse_devices("cpu:3"))
    assert [(d.index, d.kind, d.memory_total) for d in inventory.devices] == [
        (index, "cpu", 2 << 30) for index in range(3)
    ]
    assert len({d.properties["uuid"] for d in inventory.devices}) == 3
    assert Inventory(parse_devices("cpu:3"), 5).devices[0].memory_total == 5


def test_a_cpu_device_is_what_its_sessions_use():
    inventory = Inventory(parse_devices("cpu:1"))
    sessions = [session(0, memory_used=10, busy=0.7), session(0, memory_used=5, busy=0.6)]
    reading = inventory.read(inventory.devices[0], sessions)
    assert (reading.memory_used, reading.utilization) == (15, 100)


def test_threads_are_shared_out(monkeypatch):
    monkeypatch.setattr(telemetry.os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert [telemetry.threads_per_device(n) for n in (0, 1, 3, 8, 100)] == [8, 8, 2, 1, 1]


def test_gpus(nvml):
    inventory = Inventory(parse_devices("cuda:1"), 64 << 30)
    (device,) = inventory.devices
    assert (device.index, device.kind, device.visible, device.memory_total) == (0, "cuda", "GPU-1", 64 << 30)
    assert device.properties["compute_capability"] == [9, 0]
    assert device.properties["pci_bus_id"] == "00000000:01:00.0"
    reading = inventory.read(device, [])
    assert (reading.memory_used, reading.utilization) == (5 << 30, 61)
    assert (reading.details["temperature"], reading.details["power"]) == (48, None)
    assert (reading.details["compute_mode"], reading.details["pcie_gen"]) == ("Default", None)
    assert Inventory(parse_devices("cuda")).devices[0].memory_total == 1 << 37
    inventory.close()


def test_auto(nvml, monkeypatch):
    monkeypatch.setattr(telemetry.importlib.util, "find_spec", lambda module: object())
    assert [d.kind for d in Inventory(parse_devices("auto")).devices] == ["cuda", "cuda"]
    mixed = Inventory(parse_devices("auto"), always_cpu=True)
    assert [(d.index, d.kind) for d in mixed.devices] == [(0, "cuda"), (1, "cuda"), (2, "cpu")]
    assert mixed.read(mixed.devices[2], []).memory_used == 0
    mixed.close()
    monkeypatch.setattr(telemetry.importlib.util, "find_spec", lambda module: None)
    assert [d.kind for d in Inventory(parse_devices("auto")).devices] == ["cpu"]


def test_a_card_that_hangs_makes_nobody_wait(nvml, monkeypatch):
    """Who asks gets the last reading, and after some seconds its age."""
    monkeypatch.setattr(nvml_room, "SAMPLE_SECONDS", 0.01)
    monkeypatch.setattr(nvml_room, "STALE_SECONDS", 0.1)
    stuck, release = threading.Event(), threading.Event()
    inventory = Inventory(parse_devices("cuda:0"))
    assert "reading_age" not in inventory.read(inventory.devices[0], []).details

    def hang(handle):
        stuck.set()
        release.wait(10)
        raise nvml.NVMLError("GPU is lost")

    nvml.nvmlDeviceGetUtilizationRates = hang
    assert stuck.wait(5)
    reading = wait_until(lambda: _stale(inventory.read(inventory.devices[0], [])))
    assert reading.utilization == 61
    release.set()
    wait_until(lambda: inventory.read(inventory.devices[0], []).utilization == 0)
    inventory.close()


def _stale(reading):
    return reading if reading.details.get("reading_age", 0) > 0.1 else None


def test_gpus_that_are_not_there(nvml, monkeypatch):
    with pytest.raises(ConfigError, match="no CUDA device 7; this host has 2"):
        Inventory(parse_devices("cuda:0,7"))

    def no_driver():
        raise nvml.NVMLError("driver not loaded")

    nvml.nvmlInit = no_driver
    with pytest.raises(ConfigError, match="driver not loaded; does nvidia-smi work"):
        Inventory(parse_devices("cuda"))
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(ConfigError, match="pip install"):
        Inventory(parse_devices("cuda"))
