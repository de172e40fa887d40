"""The inventory of devices: cpu devices from the host, GPUs from a stand-in for NVML."""

import sys
import threading
import types

import pytest

from rgpu.config import parse_devices
from rgpu.errors import ConfigError
from rgpu.server import nvml as nvml_room
from rgpu.server import samples, telemetry
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


def test_what_a_card_says_of_itself_beside_its_load(nvml):
    """In nvidia-smi's words: what is pending, which rows were replaced, what the board is."""
    answers = {
        "nvmlDeviceGetRemappedRows": (2, 1, 1, 0), "nvmlDeviceGetEccMode": (1, 0), "nvmlDeviceGetDisplayMode": 1,
        "nvmlDeviceGetBrand": 2, "nvmlDeviceGetAccountingMode": 0, "nvmlDeviceGetAccountingBufferSize": 4000,
        "nvmlDeviceGetInforomImageVersion": b"G520.0200.00.05", "nvmlDeviceGetGpuMaxPcieLinkGeneration": 5,
        "nvmlDeviceGetSupportedClocksEventReasons": 0x1FF,
    }  # fmt: skip
    for name, answer in answers.items():
        setattr(nvml, name, lambda *_, answer=answer: answer)
    inventory = Inventory(parse_devices("cuda:0"))
    (device,) = inventory.devices
    shown = {**device.properties, **inventory.read(device, []).details}
    assert [shown[name] for name in ("remapped_corrected", "remapped_uncorrected")] == [2, 1]
    assert [shown[name] for name in ("remapping_pending", "remapping_failed")] == ["Yes", "No"]
    assert [shown[name] for name in ("ecc_mode", "ecc_mode_pending")] == ["Enabled", "Disabled"]
    assert [shown[name] for name in ("display_attached", "brand", "accounting_mode")] == ["Yes", "Tesla", "Disabled"]
    assert [shown[name] for name in ("accounting_buffer", "pcie_gen_device")] == [4000, 5]
    assert (shown["inforom_image"], shown["clocks_event_reasons_supported"]) == ("G520.0200.00.05", 0x1FF)
    inventory.close()


def _stale(reading):
    return reading if reading.details.get("reading_age", 0) > 0.1 else None


def test_samples_are_of_the_last_two_minutes(nvml):
    inventory = Inventory(parse_devices("cuda"))
    load = iter(range(1000))
    nvml.nvmlDeviceGetUtilizationRates = lambda handle: types.SimpleNamespace(gpu=next(load), memory=3)
    cards = inventory._groups[0]

    def read(device):
        cards._samples[device.index] = cards._sample(cards._served[device.index])
        return inventory.read(device, [])

    kept = samples.Samples(inventory.devices[:1], read)
    assert kept.summary(0) == {}
    for moment in range(samples.KEPT + 80):
        kept.tick(100.0 + moment)
        kept.tick(100.5 + moment)  # not a second later: no reading
    told = kept.summary(0)
    assert told["utilization"][:4] == [samples.KEPT - 1, samples.KEPT, 199, 80]
    assert told["utilization"][4] == pytest.approx(139.5)
    assert told["utilization_memory"] == [samples.KEPT - 1, samples.KEPT, 3, 3, 3]
    assert told["power"][2:] == [412, 412, 412]
    assert not {"utilization_encoder", "clock_sm"} & set(told)  # this card does not tell them
    inventory.close()


def test_a_card_that_has_stopped_answering_gives_no_samples(nvml, monkeypatch):
    inventory = Inventory(parse_devices("cuda:0"))
    kept = samples.Samples(inventory.devices, lambda device: inventory.read(device, []))
    kept.tick(1.0)
    monkeypatch.setattr(nvml_room, "STALE_SECONDS", -1.0)
    kept.tick(2.0)
    assert kept.summary(0)["power"][1] == 1
    inventory.close()


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


@pytest.fixture
def mig(nvml):
    """The first card is cut into two instances, numbers 0 and 2; the second one is whole. Handles of instances are
    texts. A stand-in at the library's boundary: no card with MIG was at hand."""

    def of_card(answer):
        def ask(handle, *_):
            if isinstance(handle, str):
                raise nvml.NVMLError("not supported for MIG devices")
            return answer

        return ask

    def instance(card, number):
        if number == 1:
            raise nvml.NVMLError("not found")
        return f"{card}/{number}"

    sizes = {"0/0": (20 << 30, "3g.20gb", 42), "0/2": (10 << 30, "2g.10gb", 28)}
    whole = {"nvmlDeviceGetUUID": nvml.nvmlDeviceGetUUID, "nvmlDeviceGetMemoryInfo": nvml.nvmlDeviceGetMemoryInfo}
    nvml.nvmlDeviceGetMigMode = lambda handle: (1, 1) if handle == 0 else (0, 0)
    nvml.nvmlDeviceGetMaxMigDeviceCount = lambda handle: 7 if handle == 0 else 0
    nvml.nvmlDeviceGetMigDeviceHandleByIndex = lambda card, number: (
        instance(card, number) if number < 3 else instance(card, 1)
    )
    nvml.nvmlDeviceGetUUID = lambda h: f"MIG-{h}" if h in sizes else whole["nvmlDeviceGetUUID"](h)
    nvml.nvmlDeviceGetName = lambda h: f"NVIDIA A100 MIG {sizes[h][1]}" if h in sizes else "NVIDIA A100"
    nvml.nvmlDeviceGetMemoryInfo = lambda h: (
        types.SimpleNamespace(total=sizes[h][0], used=1 << 30) if h in sizes else whole["nvmlDeviceGetMemoryInfo"](h)
    )
    nvml.nvmlDeviceGetGpuInstanceId = lambda h: int(h[-1]) + 1
    nvml.nvmlDeviceGetComputeInstanceId = lambda h: 0
    nvml.nvmlDeviceGetAttributes_v2 = lambda h: types.SimpleNamespace(multiprocessorCount=sizes[h][2])
    nvml.nvmlDeviceGetUtilizationRates = of_card(types.SimpleNamespace(gpu=61, memory=3))
    nvml.nvmlDeviceGetTemperature = of_card(48)
    return nvml


def test_mig_instances_are_devices(mig):
    inventory = Inventory(parse_devices("cuda"))
    first, second, whole = inventory.devices
    assert [d.visible for d in inventory.devices] == ["MIG-0/0", "MIG-0/2", "GPU-1"]
    assert [d.memory_total for d in (first, second)] == [20 << 30, 10 << 30]
    assert first.name == "NVIDIA A100 MIG 3g.20gb" and "mig" not in whole.properties
    about = second.properties["mig"]
    assert (about["profile"], about["number"], about["gpu_instance"], about["compute_instance"]) == ("2g.10gb", 2, 3, 0)
    assert (about["card"], about["card_uuid"], about["multiprocessors"]) == (0, "GPU-0", 28)
    assert first.properties["topology"] == {"0": "X", "1": "PIX", "2": "HOST"}
    reading = inventory.read(first, [session(0, 0, 0.5)])
    assert (reading.memory_used, reading.utilization, reading.details["temperature"]) == (1 << 30, 50, 48)
    assert reading.details["mig_mode"] == "Enabled" and inventory.read(whole, []).utilization == 61
    inventory.close()


def test_a_mig_instance_is_leased_like_any_device(mig):
    from rgpu.leases.filters import parse_filters
    from rgpu.leases.terms import Client, Terms
    from rgpu.server.broker import Broker
    from rgpu.server.lease import LeaseBook

    devices = Inventory(parse_devices("cuda")).devices
    facts = [{"memory_total": d.memory_total, "kind": d.kind, **d.properties} for d in devices]
    broker = Broker(LeaseBook(lambda: 0.0, [d.memory_total for d in devices]), facts, lambda device: 0.0)
    terms = Terms(memory=4 << 30, compute=1.0, filters=parse_filters("mig=2g.*"))
    lease = broker.request(Client("u", "h", 1, "p"), terms)
    assert devices[min(lease.parts)].visible == "MIG-0/2"


def test_mig_without_instances_says_what_to_do(mig):
    mig.nvmlDeviceGetMaxMigDeviceCount = lambda handle: 0
    with pytest.raises(ConfigError, match="nvidia-smi mig -cgi"):
        Inventory(parse_devices("cuda:0"))
    assert [d.visible for d in Inventory(parse_devices("cuda")).devices] == ["GPU-1"]


def test_mig_as_smi_and_metrics_show_it(mig):
    from rgpu.smi import render, report
    from rgpu.web import metrics

    inventory = Inventory(parse_devices("cuda"))
    shown = [
        {
            "index": d.index, "pool_index": d.index, "name": d.name, "kind": d.kind, "memory_total": d.memory_total,
            "memory_used": 1 << 30, "utilization": 5, "sessions": [], **d.properties, **inventory.read(d, []).details,
        }
        for d in inventory.devices
    ]  # fmt: skip
    shown[1]["sessions"] = [{"user": "u", "host": "h", "pid": 7, "program": "p", "memory_used": 0}]
    server = {"name": "one", "address": "one:1", "reachable": True, "devices": shown, "host": "one", "rtt": None}
    assert render.listing([server]).splitlines() == [
        "GPU 0: NVIDIA A100 (UUID: GPU-0) on one (one:1)",
        "  MIG 3g.20gb     Device  0: (UUID: MIG-0/0) on one:0 (one:1)",
        "  MIG 2g.10gb     Device  1: (UUID: MIG-0/2) on one:1 (one:1)",
        "GPU 2: NVIDIA A100 (UUID: GPU-1) on one:2 (one:1)",
    ]
    text = report.text([server], [])
    assert text.count("MIG Device") == 2 and text.count("Multiprocessor count") == 2
    assert "<mig_device>" in report.xml([server]) and "<gpu_instance_id>3</gpu_instance_id>" in report.xml([server])
    table = render.table([server], "0")
    assert "2g.10gb" in table and "    1     3    0               7      C   p" in table
    assert 'gpu="0"' in metrics.text([server]) and 'GPU_I_ID="3",GPU_I_PROFILE="2g.10gb"' in metrics.text([server])
    inventory.close()
