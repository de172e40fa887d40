"""rgpu-smi against nvidia-smi's documented formats, field by field: a host with one H100 as real nvidia-smi writes it.

The expected lines follow NVIDIA's manual page of nvidia-smi 610, `--help-query-gpu`, and published output of drivers
580 and 595. What differs on purpose is named in each test.
"""

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from rgpu.smi import fields, monitor, query, render, report

FACTS = Path(__file__).parent / "facts"

SESSION = {
    "id": "0a1b2c3d", "user": "ada", "host": "laptop", "pid": 2094147, "program": "sglang::scheduler_TP0_EP0",
    "memory_used": 90480 << 20, "utilization": 92, "worker_pid": 77, "commands": 5, "age": 9.0,
}  # fmt: skip
DEVICE = {
    "index": 0, "pool_index": 0, "kind": "cuda", "name": "NVIDIA A100-SXM4-40GB",
    "uuid": "GPU-5428af19-1e82-a38c-ee42-cdd3ad745b7e", "pci_bus_id": "00000000:C1:04.0", "serial": "1565020014673",
    "pci_device_id": 0x20B010DE, "pci_subsystem_id": 0x134F10DE, "driver": "580.126.09", "cuda": "13.0",
    "compute_capability": [8, 0], "vbios": "92.00.45.00.03", "minor_number": 0, "architecture": "Ampere",
    "memory_total": 40960 << 20, "memory_used": 606 << 20, "memory_reserved": 520 << 20,
    "utilization": 99, "utilization_memory": 55, "utilization_encoder": 0, "utilization_decoder": 0,
    "utilization_jpeg": 0, "utilization_ofa": 0, "bar1_total": 65536 << 20, "bar1_used": 1 << 20,
    "temperature": 29, "temperature_memory": None, "fan_speed": None, "performance_state": "P0",
    "power": 299.351, "power_limit": 300.0, "power_enforced_limit": 400.0, "power_default_limit": 400.0,
    "power_min_limit": 100.0, "power_max_limit": 400.0, "energy": 1, "persistence_mode": "Disabled",
    "display_active": "Disabled", "compute_mode": "Default", "mig_mode": "Disabled", "ecc_mode": "Enabled",
    "ecc_corrected_volatile": 0, "ecc_uncorrected_volatile": 0, "ecc_corrected_aggregate": 0,
    "ecc_uncorrected_aggregate": 0, "clocks": {"graphics": 1410, "sm": 1410, "memory": 1215, "video": 1275},
    "clocks_max": {"graphics": 1410, "sm": 1410, "memory": 1215, "video": 1290}, "clocks_event_reasons": 4,
    "pcie_gen": 4, "pcie_gen_max": 5, "pcie_width": 16, "pcie_width_max": 16, "pcie_replays": 0,
    "pcie_sent": 2048, "pcie_received": 4096, "temperature_limits": {"shutdown": 92, "slowdown": 89, "gpu_max": 85},
    "topology": {"0": "X", "1": "SYS"}, "cpu_affinity": "0-23", "numa_affinity": 0, "sessions": [],
}  # fmt: skip
SERVER = {
    "address": "gpu1:47800", "name": "gpu1", "host": "gpu1", "version": "0.1.0", "reachable": True, "error": None,
    "rtt": 0.0001, "devices": [DEVICE],
}  # fmt: skip
POOL = [SERVER]
BUSY = [SERVER | {"devices": [DEVICE | {"sessions": [SESSION]}]}]
NOW = 1_778_297_912.25


def csv(fields, form="csv", what="gpu", pool=POOL):
    return query.Query(what, fields, form).text(pool, NOW)


# The table


def test_the_rows_of_the_table_are_nvidia_smis():
    """The third line of a device has server, link and leases where nvidia-smi leaves its cells empty."""
    lines = render.table(POOL, "580.126.09", NOW).splitlines()
    assert lines[1] == "+-----------------------------------------------------------------------------------------+"
    assert lines[3] == "+-----------------------------------------+------------------------+----------------------+"
    assert lines[4] == "| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |"
    assert lines[5] == "| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |"
    assert lines[6].endswith("|               MIG M. |")
    assert lines[7] == "|=========================================+========================+======================|"
    assert lines[8] == "|   0  NVIDIA A100-SXM4-40GB          Off |   00000000:C1:04.0 Off |                    0 |"
    assert lines[9] == "| N/A   29C    P0            299W /  400W |     606MiB /  40960MiB |     99%      Default |"
    assert lines[10].endswith("|             Disabled |")
    assert lines[11] == lines[3]
    assert "CUDA Version: 13.0     |" in lines[2]
    assert len(lines[2]) == len(lines[1])


def test_the_processes():
    """The second line of a process (whose it is, from where) is rgpu's own."""
    lines = render.table(BUSY, "0", NOW).splitlines()
    at = lines.index("| Processes:                                                                              |")
    assert lines[at + 1] == (
        "|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |"
    )
    assert lines[at + 2] == (
        "|        ID   ID                                                               Usage      |"
    )
    row = "|    0   N/A  N/A         2094147      C   sglang::scheduler_TP0_EP0"
    assert lines[at + 4] == f"{row:<81}90480MiB |"
    idle = render.table(POOL, "0").splitlines()
    assert "|  No running processes found                                                             |" in idle


def test_the_list():
    """What stands after nvidia-smi's line is where the device is."""
    line = "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5428af19-1e82-a38c-ee42-cdd3ad745b7e)"
    assert render.listing(POOL) == f"{line} on gpu1:0 (gpu1:47800)"


# --query-gpu

EXPECTED = {
    "driver_version": ("driver_version", "580.126.09"),
    "count": ("count", "1"),
    "gpu_name": ("name", "NVIDIA A100-SXM4-40GB"),
    "serial": ("serial", "1565020014673"),
    "uuid": ("uuid", "GPU-5428af19-1e82-a38c-ee42-cdd3ad745b7e"),
    "gpu_bus_id": ("pci.bus_id", "00000000:C1:04.0"),
    "pci.domain": ("pci.domain", "0x0000"),
    "pci.bus": ("pci.bus", "0xC1"),
    "pci.device": ("pci.device", "0x04"),
    "pci.device_id": ("pci.device_id", "0x20B010DE"),
    "pci.sub_device_id": ("pci.sub_device_id", "0x134F10DE"),
    "pcie.link.gen.current": ("pcie.link.gen.current", "4"),
    "pcie.link.gen.max": ("pcie.link.gen.max", "5"),
    "pcie.link.width.current": ("pcie.link.width.current", "16"),
    "pcie.link.width.max": ("pcie.link.width.max", "16"),
    "index": ("index", "0"),
    "display_active": ("display_active", "Disabled"),
    "persistence_mode": ("persistence_mode", "Disabled"),
    "vbios_version": ("vbios_version", "92.00.45.00.03"),
    "fan.speed": ("fan.speed [%]", "[N/A]"),
    "pstate": ("pstate", "P0"),
    "clocks_throttle_reasons.active": ("clocks_event_reasons.active", "0x0000000000000004"),
    "clocks_event_reasons.sw_power_cap": ("clocks_event_reasons.sw_power_cap", "Active"),
    "clocks_event_reasons.hw_slowdown": ("clocks_event_reasons.hw_slowdown", "Not Active"),
    "memory.total": ("memory.total [MiB]", "40960 MiB"),
    "memory.reserved": ("memory.reserved [MiB]", "520 MiB"),
    "memory.used": ("memory.used [MiB]", "606 MiB"),
    "memory.free": ("memory.free [MiB]", "39834 MiB"),
    "compute_mode": ("compute_mode", "Default"),
    "compute_cap": ("compute_cap", "8.0"),
    "utilization.gpu": ("utilization.gpu [%]", "99 %"),
    "utilization.memory": ("utilization.memory [%]", "55 %"),
    "utilization.encoder": ("utilization.encoder [%]", "0 %"),
    "ecc.mode.current": ("ecc.mode.current", "Enabled"),
    "ecc.errors.uncorrected.volatile.total": ("ecc.errors.uncorrected.volatile.total", "0"),
    "temperature.gpu": ("temperature.gpu", "29"),
    "temperature.memory": ("temperature.memory", "N/A"),
    "power.draw": ("power.draw [W]", "299.35 W"),
    "power.draw.instant": ("power.draw.instant [W]", "299.35 W"),
    "power.limit": ("power.limit [W]", "300.00 W"),
    "enforced.power.limit": ("enforced.power.limit [W]", "400.00 W"),
    "power.min_limit": ("power.min_limit [W]", "100.00 W"),
    "clocks.gr": ("clocks.current.graphics [MHz]", "1410 MHz"),
    "clocks.sm": ("clocks.current.sm [MHz]", "1410 MHz"),
    "clocks.mem": ("clocks.current.memory [MHz]", "1215 MHz"),
    "clocks.max.memory": ("clocks.max.memory [MHz]", "1215 MHz"),
    "mig.mode.current": ("mig.mode.current", "Disabled"),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_property_of_a_gpu(name):
    head, cell = EXPECTED[name]
    assert csv(name).splitlines() == [head, cell]
    unit = re.search(r" \[(.+)\]$", head)
    bare = cell.removesuffix(f" {unit[1]}") if unit and cell != "[N/A]" else cell
    assert csv(name, "csv,nounits").splitlines() == [re.sub(r" \[.+\]$", "", head), bare]
    assert csv(name, "csv,noheader") == cell


def facts(name):
    return [line for line in (FACTS / name).read_text().splitlines() if line and not line.startswith("#")]


def test_every_documented_property_has_nvidia_smis_names_unit_and_place():
    """The list is what nvidia-smi 610 prints for --help-query-gpu and as the header of all of its properties."""
    ours = [field.names.split() for field in fields.GPU]
    for number, fact in enumerate(facts("query_gpu.txt")):
        names, _, unit = fact.partition(" [")
        assert ours[number] == names.split()
        first = names.split()[0]
        heads = {csv(name).splitlines()[0] for name in names.split()}
        assert heads == {f"{first} [{unit}" if unit else first}
        assert csv(first, "csv,noheader"), first
    everything = ",".join(fact.split()[0] for fact in facts("query_gpu.txt"))
    head, row = csv(everything).splitlines()
    assert len(head.split(", ")) == len(row.split(", ")) == 241
    explained = query.explain("gpu").splitlines()
    for fact in facts("query_gpu.txt"):
        assert " or ".join(f'"{name}"' for name in fact.partition(" [")[0].split()) in explained


def test_what_no_driver_tells_any_more_is_said_as_nvidia_smi_says_it():
    words = "[Requested functionality has been deprecated]"
    gone = "display_mode,power.management,clocks.applications.gr,clocks.default_applications.mem"
    assert csv(gone, "csv,noheader").split(", ") == [words] * 4
    assert csv("fabric.state,temperature.memory,fan.speed", "csv,noheader") == "N/A, N/A, [N/A]"


def test_several_properties_in_a_line():
    """As published for four cards on driver 595: no units, no header."""
    fields = "index,uuid,name,pci.bus_id,driver_version,utilization.gpu,utilization.memory,memory.total,power.draw"
    fields += ",pstate"
    assert csv(fields, "csv,noheader,nounits") == (
        "0, GPU-5428af19-1e82-a38c-ee42-cdd3ad745b7e, NVIDIA A100-SXM4-40GB, 00000000:C1:04.0, 580.126.09, "
        "99, 55, 40960, 299.35, P0"
    )
    assert re.fullmatch(r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.250", csv("timestamp", "csv,noheader"))


def test_what_a_device_does_not_know_is_not_available():
    needed = ("index", "pool_index", "kind", "name", "memory_total", "memory_used", "sessions")
    bare = {key: DEVICE[key] for key in needed}
    pool = [SERVER | {"devices": [bare | {"utilization": 0}]}]
    known = {"timestamp", "count", "name", "index", "memory.total", "memory.used", "memory.free", "utilization.gpu"}
    for name in EXPECTED.keys() - known - {"gpu_name"}:
        assert csv(name, "csv,noheader", pool=pool) in ("[N/A]", "N/A"), name


def test_json_has_the_same_fields():
    assert '"memory.used": "606"' in csv("memory.used", "json")


@pytest.mark.parametrize(
    ("fields", "form", "message"),
    [
        ("bogus.field", "csv", 'Field "bogus.field" is not a valid field to query.\n'),
        ("index", None, "--format=csv"),
        ("index", "noheader", "--format=csv"),
        ("index", "csv,nonsense", "--format=csv"),
        ("", "csv", 'Field "" is not a valid'),
    ],
)
def test_questions_without_a_meaning(fields, form, message):
    with pytest.raises(query.BadQuery, match=re.escape(message)):
        query.Query("gpu", fields, form)


def test_compute_apps():
    """`pid` is the program's on the client's host."""
    fields = "pid,process_name,gpu_uuid,used_memory"
    assert csv(fields, "csv", "compute-apps", BUSY).splitlines() == [
        "pid, process_name, gpu_uuid, used_gpu_memory [MiB]",
        "2094147, sglang::scheduler_TP0_EP0, GPU-5428af19-1e82-a38c-ee42-cdd3ad745b7e, 90480 MiB",
    ]
    assert csv(fields, "csv,noheader", "compute-apps", POOL) == ""


# dmon, pmon, topo


def test_dmon():
    head, units, row = monitor.dmon(POOL, "pucm", "", True).splitlines()
    assert head == (
        "# gpu    pwr  gtemp  mtemp     sm    mem    enc    dec    jpg    ofa   mclk   pclk     fb   bar1   ccpm "
    )
    assert units == (
        "# Idx      W      C      C      %      %      %      %      %      %    MHz    MHz     MB     MB     MB "
    )
    assert row == (
        "    0    299     29      -     99     55      0      0      0      0   1215   1410    606      1      - "
    )
    assert monitor.dmon(POOL, "t", "", True).splitlines()[0::2] == ["# gpu  rxpci  txpci ", "    0      4      2 "]


def test_dmon_with_date_and_time():
    row = monitor.dmon(POOL, "p", "DT", False, NOW)
    assert re.fullmatch(r" \d{8}   \d\d:\d\d:\d\d +0    299     29      - ", row)


def test_pmon():
    """After the program stands whose it is."""
    head, units, row = monitor.pmon(BUSY, "um", "", True).splitlines()
    assert head.split() == "# gpu pid type sm mem enc dec jpg ofa fb ccpm command client".split()
    assert units.split() == "# Idx # C/G % % % % % % MB MB name user@host".split()
    assert row.split() == "0 2094147 C 92 - - - - - 90480 - sglang::schedul ada@laptop".split()
    assert monitor.pmon(POOL, "u", "", False).split() == "0 - - - - - - - - - -".split()


def test_topo():
    other = DEVICE | {"index": 1, "pool_index": 1}
    far = DEVICE | {"pool_index": 2}
    pool = [SERVER | {"devices": [DEVICE, other]}, SERVER | {"name": "gpu2", "host": "gpu2", "devices": [far]}]
    head, first, second, third = monitor.topo(pool).splitlines()[:4]
    assert head.split("\t")[1:7] == ["GPU0", "GPU1", "GPU2", "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"]
    assert first.split("\t")[4:8] == ["0-23", "0", "", "N/A"]  # two tabs before the last, as there
    assert first.split("\t")[:4] == ["GPU0", " X ", "SYS", "NET"]
    assert third.split("\t")[:4] == ["GPU2", "NET", "NET", " X "]


# -q and -x


def test_the_report_in_text():
    lines = report.text(BUSY, [], NOW).splitlines()
    assert lines[:3] == ["", "==============NVSMI LOG==============", ""]
    for line in (
        "Driver Version                                         : 580.126.09",
        "CUDA Version                                           : 13.0",
        "Attached GPUs                                          : 1",
        "GPU 00000000:C1:04.0",
        "    Product Name                                       : NVIDIA A100-SXM4-40GB",
        "    FB Memory Usage",
        "        Total                                          : 40960 MiB",
        "        Reserved                                       : 520 MiB",
        "        Used                                           : 606 MiB",
        "        Free                                           : 39834 MiB",
        "    Compute Mode                                       : Default",
        "        GPU                                            : 99 %",
        "        OFA                                            : 0 %",
        "        GPU Current Temp                               : 29 C",
        "        SM                                             : 1410 MHz",
        "        Process ID                        : 2094147",
        "            Used GPU Memory               : 90480 MiB",
    ):
        assert line in lines, line
    at = lines.index("    Processes")
    assert {line.index(" : ") for line in lines[:at] if " : " in line} == {54}
    assert {line.index(" : ") for line in lines[at:] if " : " in line} == {41}


def test_the_report_has_every_label_of_nvidia_smi_in_its_order():
    """nvidia-smi 610 for one GPU; rgpu's own lines may stand between them."""
    ours = iter([line.split(" : ")[0].rstrip() for line in report.text(BUSY, [], NOW).splitlines()])
    for label in facts("report.txt"):
        assert label in ours, label  # goes on where the last one was found


def test_the_xml_has_every_element_of_nvidia_smi_in_its_order():
    """Paths of elements below <gpu>, driver 575; for what has changed since, driver 610's are there as well."""
    root = ElementTree.fromstring(report.xml(BUSY, NOW))

    def paths(element, above):
        for child in element:
            yield (path := f"{above}{child.tag}")
            yield from paths(child, f"{path}/")

    ours = iter(list(paths(root.find("gpu"), "")))
    for path in facts("xml.txt"):
        assert path in ours, path


def test_each_word_of_d_shows_something_and_nothing_else():
    for word in report.DISPLAYS:
        lines = report.text(POOL, [word], NOW).splitlines()
        assert len(lines) > lines.index("GPU 00000000:C1:04.0") + 1, word
        assert not any("Product Name" in line for line in lines)


def test_parts_of_the_report():
    lines = report.text(POOL, ["MEMORY", "UTILIZATION"], NOW).splitlines()
    at = lines.index("GPU 00000000:C1:04.0")
    sections = [line.strip() for line in lines[at + 1 :] if line.startswith("    ") and " : " not in line]
    assert sections == [
        "FB Memory Usage", "BAR1 Memory Usage", "Conf Compute Protected Memory Usage", "Utilization",
        "GPU Utilization Samples", "Memory Utilization Samples", "ENC Utilization Samples", "DEC Utilization Samples",
    ]  # fmt: skip
    assert not any("Product Name" in line for line in lines)


SAMPLED = DEVICE | {
    "samples": {
        "utilization": [98.02, 99, 99, 0, 41.6],
        "power": [117.957, 119, 407.5, 86.123, 299.351],
        "clock_sm": [117.957, 119, 1410, 210, 1204.4],
        "clock_memory": [117.957, 119, 1215, 1215, 1215.0],
    }
}


@pytest.mark.parametrize(
    ("word", "before", "expected", "after"),
    [
        ("UTILIZATION", "OFA", "98.02 sec|99|99 %|0 %|42 %", "Memory Utilization Samples"),
        ("UTILIZATION", "Avg", "N/A|N/A|N/A|N/A|N/A", "ENC Utilization Samples"),
        ("POWER", "Max Power Limit", "117.96 sec|119|407.50 W|86.12 W|299.35 W", "GPU Memory Power Readings"),
        ("CLOCK", "Graphics", "117.96 sec|119|1410 MHz|210 MHz|1204 MHz", "Memory Clock Samples"),
        ("CLOCK", "Avg", "117.96 sec|119|1215 MHz|1215 MHz|1215 MHz", "Clock Policy"),
    ],
    ids="gpu memory power sm clock".split(),
)
def test_samples_stand_where_nvidia_smi_has_them_and_only_where_d_asks(word, before, expected, after):
    """Labels, units and places of drivers 455 to 590; N/A as driver 418 says it."""
    pool = [SERVER | {"devices": [SAMPLED]}]
    lines = [line.split(" : ") for line in report.text(pool, [word], NOW).splitlines()]
    at = next(k for k, line in enumerate(lines) if line[0].strip() == after) - 6
    assert lines[at][0].endswith(" Samples")
    assert lines[at - 1][0].strip() == before
    labels = ["Duration", "Number of Samples", "Max", "Min", "Avg"]
    assert [(line[0].strip(), line[1]) for line in lines[at + 1 : at + 6]] == list(
        zip(labels, expected.split("|"), strict=True)
    )
    assert "Samples" not in report.text(pool, [], NOW)
    assert "amples" not in report.xml(pool, NOW)


XML = {
    "driver_version": "580.126.09",
    "cuda_version": "13.0",
    "attached_gpus": "1",
    "gpu/product_name": "NVIDIA A100-SXM4-40GB",
    "gpu/product_architecture": "Ampere",
    "gpu/persistence_mode": "Disabled",
    "gpu/mig_mode/current_mig": "Disabled",
    "gpu/serial": "1565020014673",
    "gpu/uuid": "GPU-5428af19-1e82-a38c-ee42-cdd3ad745b7e",
    "gpu/minor_number": "0",
    "gpu/vbios_version": "92.00.45.00.03",
    "gpu/pci/pci_bus_id": "00000000:C1:04.0",
    "gpu/pci/pci_gpu_link_info/pcie_gen/max_link_gen": "5",
    "gpu/pci/pci_gpu_link_info/link_widths/current_link_width": "16x",
    "gpu/pci/tx_util": "2048 KB/s",
    "gpu/fan_speed": "N/A",
    "gpu/performance_state": "P0",
    "gpu/clocks_event_reasons/clocks_event_reason_sw_power_cap": "Active",
    "gpu/clocks_event_reasons/clocks_event_reason_gpu_idle": "Not Active",
    "gpu/fb_memory_usage/total": "40960 MiB",
    "gpu/fb_memory_usage/reserved": "520 MiB",
    "gpu/fb_memory_usage/used": "606 MiB",
    "gpu/fb_memory_usage/free": "39834 MiB",
    "gpu/bar1_memory_usage/free": "65535 MiB",
    "gpu/compute_mode": "Default",
    "gpu/utilization/gpu_util": "99 %",
    "gpu/utilization/memory_util": "55 %",
    "gpu/utilization/jpeg_util": "0 %",
    "gpu/ecc_mode/current_ecc": "Enabled",
    "gpu/temperature/gpu_temp": "29 C",
    "gpu/gpu_power_readings/current_power_limit": "400.00 W",
    "gpu/gpu_power_readings/max_power_limit": "400.00 W",
    "gpu/clocks/sm_clock": "1410 MHz",
    "gpu/clocks/mem_clock": "1215 MHz",
    "gpu/pci/pci_bus": "C1",
    "gpu/pci/pci_device_id": "20B010DE",
    "gpu/gpu_power_readings/average_power_draw": "299.35 W",
    "gpu/max_clocks/graphics_clock": "1410 MHz",
    "gpu/processes/process_info/pid": "2094147",
    "gpu/processes/process_info/type": "C",
    "gpu/processes/process_info/process_name": "sglang::scheduler_TP0_EP0",
    "gpu/processes/process_info/used_memory": "90480 MiB",
}


def test_the_report_in_xml_has_nvidia_smis_elements():
    root = ElementTree.fromstring(report.xml(BUSY, NOW))
    assert root.tag == "nvidia_smi_log"
    assert root.find("gpu").get("id") == "00000000:C1:04.0"
    assert {path: root.findtext(path) for path in XML} == XML
    assert root.findtext("gpu/processes/process_info/user") == "ada"
    strange = [SERVER | {"devices": [DEVICE | {"name": "<&>", "pci_bus_id": '"<'}]}]
    assert ElementTree.fromstring(report.xml(strange)).findtext("gpu/product_name") == "<&>"
