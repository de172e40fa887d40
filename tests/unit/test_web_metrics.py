"""The metrics: DCGM exporter's names, labels and units, and Prometheus' text format."""

import re

from rgpu.web import metrics

SESSION = {"id": "0a", "user": "ada", "host": "laptop", "memory_used": 1 << 30, "utilization": 25, "commands": 7}
DEVICE = {
    "index": 1,
    "name": 'NVIDIA "H200"\\x\n',
    "kind": "cuda",
    "uuid": "GPU-1",
    "pci_bus_id": "00000000:19:00.0",
    "minor_number": 3,
    "memory_total": 143771 << 20,
    "memory_used": (5 << 30) + 1,
    "utilization": 61,
    "temperature": 48,
    "temperature_memory": None,
    "power": 412.5,
    "energy": 9_000_000_000,
    "clocks": {"sm": 1980, "memory": 2619},
    "sessions": [SESSION | {"age": 3.5}],
}
SERVER = {"name": "gpu1", "host": "gpu1.lab", "version": "0.1.0", "uptime": 9.0, "waiting": 2, "devices": [DEVICE]}
DEAD = {"address": "gpu2:47800", "reachable": False, "devices": []}
SAMPLE = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)\{((?:[a-zA-Z_]\w*="(?:[^"\\\n]|\\["\\n])*",?)*)\} (\S+)')


def samples(text):
    """{name: [(labels, value)]}; every line must be well-formed."""
    found = {}
    for line in text.splitlines():
        if line.startswith("#"):
            assert re.fullmatch(r"# (HELP|TYPE) \w+ .+", line)
            continue
        name, labels, value = SAMPLE.fullmatch(line).groups()
        found.setdefault(name, []).append((dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels)), float(value)))
    return found


def test_hardware_has_dcgm_exporters_names_labels_and_units():
    found = samples(metrics.text([SERVER]))
    ((labels, used),) = found["DCGM_FI_DEV_FB_USED"]
    assert labels == {
        "gpu": "1",
        "UUID": "GPU-1",
        "pci_bus_id": "00000000:19:00.0",
        "device": "nvidia3",
        "modelName": 'NVIDIA \\"H200\\"\\\\x\\n',
        "Hostname": "gpu1.lab",
    }
    values = {name: entries[0][1] for name, entries in found.items() if name.startswith("DCGM")}
    assert used == 5120
    assert values["DCGM_FI_DEV_FB_FREE"] == 143771 - 5120 - 1
    assert values["DCGM_FI_DEV_GPU_UTIL"] == 61
    assert values["DCGM_FI_DEV_POWER_USAGE"] == 412.5
    assert (values["DCGM_FI_DEV_SM_CLOCK"], values["DCGM_FI_DEV_MEM_CLOCK"]) == (1980, 2619)
    assert values["DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"] == 9e9  # not ..._total
    assert "DCGM_FI_DEV_MEMORY_TEMP" not in found  # not known is not 0


def test_rgpus_own():
    found = samples(metrics.text([SERVER, DEAD]))
    assert [value for _, value in found["rgpu_server_up"]] == [1, 0]
    assert found["rgpu_queue_depth"][0][1] == 2
    ((labels, busy),) = found["rgpu_session_busy_ratio"]
    assert (labels["user"], labels["client"], busy) == ("ada", "laptop", 0.25)
    assert found["rgpu_session_memory_bytes"][0][1] == 1 << 30
    assert samples(metrics.text([])) == {}


def test_every_family_is_told_once_and_with_its_samples():
    lines = metrics.text([SERVER, SERVER | {"name": "gpu3"}]).splitlines()
    types = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(types) == len(set(types))
    current = None
    for line in lines:
        if line.startswith("# TYPE"):
            current = line.split()[2]
        elif not line.startswith("#"):
            assert line.startswith(current + "{")
