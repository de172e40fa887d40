"""The outline of `-q`: labels in nvidia-smi's order (drivers up to 610), XML elements, and where a server's answer has
the values. Facts only; `report` draws them.

A line of the table: label (indented as it is shown) | element | value | the word of -d. Without a label only XML has
it, without an element only text; a line with lines below it is a section. A value is a key of the device with its
unit and digits, one of ``_SPECIAL`` (with @), or nothing, which is shown as N/A. ``samples.``: a section of what the
server has seen of a value in the last two minutes, shown where -d asks for it, as nvidia-smi does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rgpu.smi.fields import EVENT_REASONS
from rgpu.smi.text import free, links, mib, milliseconds, pci

Entry = dict[str, Any]
Value = Callable[[Entry, Entry], Any]  # of server and device


class Part:
    """A fact, or with ``parts`` a section: its label in text, its element in XML, and where it is.

    ``display``: the word of -d that chooses it, by itself or by a section around it; ``asked``: only that word does.
    """

    def __init__(self, label: str, tag: str, value: Value, display: str = "") -> None:
        self.label, self.tag, self.value, self.display = label, tag, value, display
        self.parts: list[Part] = []
        self.asked = False

    @property
    def need(self) -> str:
        """What a device must have for it to be shown."""
        return "mig" if self.tag == "mig_device" else ""


_TABLE = """
Product Name | product_name | name
Product Brand | product_brand | brand
Product Architecture | product_architecture | architecture
Display Mode | display_mode | @deprecated
Display Attached | display_attached | display_attached
Display Active | display_active | display_active
Persistence Mode | persistence_mode | persistence_mode
Addressing Mode | addressing_mode
MIG Mode | mig_mode
    Current | current_mig | mig_mode
    Pending | pending_mig | mig_mode_pending
MIG Device | mig_device
    Index | index | mig.number
    GPU Instance ID | gpu_instance_id | mig.gpu_instance
    Compute Instance ID | compute_instance_id | mig.compute_instance
    Device Attributes | device_attributes
        Shared | shared
            Multiprocessor count | multiprocessor_count | mig.multiprocessors
    Profile | profile | mig.profile
    GPU | card_uuid | mig.card_uuid
| mig_devices | @none
Accounting Mode | accounting_mode | accounting_mode | ACCOUNTING
Accounting Mode Buffer Size | accounting_mode_buffer_size | accounting_buffer | ACCOUNTING
Driver Model | driver_model
    Current | current_dm
    Pending | pending_dm
Serial Number | serial | serial
GPU UUID | uuid | uuid
GPU PDI | pdi
Minor Number | minor_number | minor_number
VBIOS Version | vbios_version | vbios
MultiGPU Board | multigpu_board
Board ID | board_id
Board Part Number | board_part_number | board_part
GPU Part Number | gpu_part_number
FRU Part Number | gpu_fru_part_number
Platform Info | platformInfo
    Chassis Serial Number | chassis_serial_number
    Slot Number | slot_number
    Tray Index | tray_index
    Host ID | host_id
    Peer Type | peer_type
    Module Id | module_id
    GPU Fabric GUID | gpu_fabric_guid
Inforom Version | inforom_version
    Image Version | img_version | inforom_image
    OEM Object | oem_object
    ECC Object | ecc_object
    Power Management Object | pwr_object
Inforom BBX Object Flush | inforom_bbx_flush
    Latest Timestamp | latest_timestamp
    Latest Duration | latest_duration
Inforom Time Data | inforom_time_data
    Time Run | time_run
GPU Operation Mode | gpu_operation_mode
    Current | current_gom
    Pending | pending_gom
GPU C2C Mode | c2c_mode
GPU Virtualization Mode | gpu_virtualization_mode
    Virtualization Mode | virtualization_mode
    Host VGPU Mode | host_vgpu_mode
    vGPU Heterogeneous Mode | vgpu_heterogeneous_mode
GPU Recovery Action | gpu_recovery_action
GSP Firmware Version | gsp_firmware_version | gsp_firmware | GSP_FIRMWARE_VERSION
IBMNPU | ibmnpu
    Relaxed Ordering Mode | relaxed_ordering_mode
CUDA Compute Capability | cuda_compute_capability | @capability
PCI | pci
    Bus | pci_bus | @bus
    Device | pci_device | @slot
    Domain | pci_domain | @domain
    Base Classcode | pci_base_class
    Sub Classcode | pci_sub_class
    Device Id | pci_device_id | @device_id
    Bus Id | pci_bus_id | pci_bus_id
    Sub System Id | pci_sub_system_id | @subsystem_id
    GPU Link Info | pci_gpu_link_info
        PCIe Generation | pcie_gen
            Max | max_link_gen | pcie_gen_max
            Current | current_link_gen | pcie_gen
            Device Current | device_current_link_gen | pcie_gen
            Device Max | max_device_link_gen | pcie_gen_device
            Host Max | max_host_link_gen
        Link Width | link_widths
            Max | max_link_width | pcie_width_max x
            Current | current_link_width | pcie_width x
    Bridge Chip | pci_bridge_chip
        Type | bridge_chip_type
        Firmware | bridge_chip_fw
    Replays Since Reset | replay_counter | pcie_replays
    Replay Number Rollovers | replay_rollover_counter
    Tx Throughput | tx_util | pcie_sent KB/s
    Rx Throughput | rx_util | pcie_received KB/s
    Atomic Caps Outbound | atomic_caps_outbound
    Atomic Caps Inbound | atomic_caps_inbound
Fan Speed | fan_speed | fan_speed %
Performance State | performance_state | performance_state | PERFORMANCE
Clocks Event Reasons | clocks_event_reasons | | PERFORMANCE
    Idle | clocks_event_reason_gpu_idle | @gpu_idle
    Applications Clocks Setting | clocks_event_reason_applications_clocks_setting | @applications_clocks_setting
    SW Power Cap | clocks_event_reason_sw_power_cap | @sw_power_cap
    HW Slowdown | clocks_event_reason_hw_slowdown | @hw_slowdown
    ....HW Thermal Slowdown | clocks_event_reason_hw_thermal_slowdown | @hw_thermal_slowdown
    ....HW Power Brake Slowdown | clocks_event_reason_hw_power_brake_slowdown | @hw_power_brake_slowdown
    Sync Boost | clocks_event_reason_sync_boost | @sync_boost
    SW Thermal Slowdown | clocks_event_reason_sw_thermal_slowdown | @sw_thermal_slowdown
    Display Clock Setting | clocks_event_reason_display_clocks_setting | @display_clocks_setting
Clocks Event Reasons Counters | clocks_event_reasons_counters | | PERFORMANCE
    SW Power Capping | clocks_event_reasons_counters_sw_power_cap
    Sync Boost | clocks_event_reasons_counters_sync_boost
    SW Thermal Slowdown | clocks_event_reasons_counters_sw_therm_slowdown
    HW Thermal Slowdown | clocks_event_reasons_counters_hw_therm_slowdown
    HW Power Braking | clocks_event_reasons_counters_hw_power_brake
Sparse Operation Mode | sparse_operation_mode | | PERFORMANCE
FB Memory Usage | fb_memory_usage | | MEMORY
    Total | total | memory_total MiB
    Reserved | reserved | memory_reserved MiB
    Used | used | memory_used MiB
    Free | free | @free
BAR1 Memory Usage | bar1_memory_usage | | MEMORY
    Total | total | bar1_total MiB
    Used | used | bar1_used MiB
    Free | free | @bar1_free
Conf Compute Protected Memory Usage | cc_protected_memory_usage | | MEMORY
    Total | total
    Used | used
    Free | free
Compute Mode | compute_mode | compute_mode | COMPUTE
Utilization | utilization | | UTILIZATION
    GPU | gpu_util | utilization %
    Memory | memory_util | utilization_memory %
    Encoder | encoder_util | utilization_encoder %
    Decoder | decoder_util | utilization_decoder %
    JPEG | jpeg_util | utilization_jpeg %
    OFA | ofa_util | utilization_ofa %
GPU Utilization Samples | | samples.utilization % | UTILIZATION
Memory Utilization Samples | | samples.utilization_memory % | UTILIZATION
ENC Utilization Samples | | samples.utilization_encoder % | UTILIZATION
DEC Utilization Samples | | samples.utilization_decoder % | UTILIZATION
Encoder Stats | encoder_stats | | ENCODER_STATS
    Active Sessions | session_count
    Average FPS | average_fps
    Average Latency | average_latency
FBC Stats | fbc_stats | | FBC_STATS
    Active Sessions | session_count
    Average FPS | average_fps
    Average Latency | average_latency
DRAM Encryption Mode | dram_encryption_mode
    Current | current_dram_encryption
    Pending | pending_dram_encryption
ECC Mode | ecc_mode | | ECC
    Current | current_ecc | ecc_mode
    Pending | pending_ecc | ecc_mode_pending
ECC Errors | ecc_errors | | ECC
    Volatile | volatile
        SRAM Correctable | sram_correctable
        SRAM Uncorrectable Parity | sram_uncorrectable_parity
        SRAM Uncorrectable SEC-DED | sram_uncorrectable_secded
        DRAM Correctable | dram_correctable
        DRAM Uncorrectable | dram_uncorrectable
        Total Correctable | correctable | ecc_corrected_volatile
        Total Uncorrectable | uncorrectable | ecc_uncorrected_volatile
    Aggregate | aggregate
        SRAM Correctable | sram_correctable
        SRAM Uncorrectable Parity | sram_uncorrectable_parity
        SRAM Uncorrectable SEC-DED | sram_uncorrectable_secded
        DRAM Correctable | dram_correctable
        DRAM Uncorrectable | dram_uncorrectable
        SRAM Threshold Exceeded | sram_threshold_exceeded
        Total Correctable | correctable | ecc_corrected_aggregate
        Total Uncorrectable | uncorrectable | ecc_uncorrected_aggregate
    Aggregate Uncorrectable SRAM Sources | aggregate_uncorrectable_sram_sources
        SRAM L2 | sram_l2
        SRAM SM | sram_sm
        SRAM Microcontroller | sram_microcontroller
        SRAM PCIE | sram_pcie
        SRAM Other | sram_other
    Channel Repair Pending | channel_repair_pending
    TPC Repair Pending | tpc_repair_pending
    Unrepairable Memory | unrepairable_memory
Retired Pages | retired_pages | | PAGE_RETIREMENT
    Single Bit ECC |
    | multiple_single_bit_retirement
    ....| retired_count
    ....| retired_pagelist
    Double Bit ECC |
    | double_bit_retirement
    ....| retired_count
    ....| retired_pagelist
    Pending Page Blacklist | pending_blacklist
    | pending_retirement
Remapped Rows | remapped_rows | | ROW_REMAPPER
    Correctable Error | remapped_row_corr | remapped_corrected
    Uncorrectable Error | remapped_row_unc | remapped_uncorrected
    Pending | remapped_row_pending | remapping_pending
    Remapping Failure Occurred | remapped_row_failure | remapping_failed
    Bank Remap Availability Histogram | row_remapper_histogram
        Max | row_remapper_histogram_max
        High | row_remapper_histogram_high
        Partial | row_remapper_histogram_partial
        Low | row_remapper_histogram_low
        None | row_remapper_histogram_none
Temperature | temperature | | TEMPERATURE
    GPU Current Temp | gpu_temp | temperature C
    GPU Current T.Limit Temp | gpu_temp_tlimit
    GPU Shutdown Temp | gpu_temp_max_threshold | temperature_limits.shutdown C
    GPU Slowdown Temp | gpu_temp_slow_threshold | temperature_limits.slowdown C
    GPU Max Operating Temp | gpu_temp_max_gpu_threshold | temperature_limits.gpu_max C
    GPU Target Temperature Specification | gpu_target_temperature
    Memory Current Temp | memory_temp | temperature_memory C
    Memory Max Operating Temp | gpu_temp_max_mem_threshold | temperature_limits.memory_max C
| supported_gpu_target_temp
....| gpu_target_temp_min
....| gpu_target_temp_max
GPU Power Readings | gpu_power_readings | | POWER
    | power_state | performance_state
    | power_draw | power W 2
    Average Power Draw | average_power_draw | power W 2
    Instantaneous Power Draw | instant_power_draw | power W 2
    GPU Ceiling Power Limit |
        Current Power Limit | current_power_limit | power_enforced_limit W 2
        Requested Power Limit | requested_power_limit | power_limit W 2
        Default Power Limit | default_power_limit | power_default_limit W 2
    GPU Base Power | gpu_base_power
        Current Base Power | current_base_power
        Requested Base Power | requested_base_power
        Default Base Power | default_base_power
    Min Power Limit | min_power_limit | power_min_limit W 2
    Max Power Limit | max_power_limit | power_max_limit W 2
Power Samples | | samples.power W 2 | POWER
GPU Memory Power Readings | gpu_memory_power_readings | | POWER
    Average Power Draw | average_power_draw
    Instantaneous Power Draw | instant_power_draw
Module Power Readings | module_power_readings | | POWER
    | power_state | performance_state
    Average Power Draw | average_power_draw
    Instantaneous Power Draw | instant_power_draw
    Current Power Limit | current_power_limit
    Requested Power Limit | requested_power_limit
    Default Power Limit | default_power_limit
    Min Power Limit | min_power_limit
    Max Power Limit | max_power_limit
Power Smoothing | power_smoothing | | POWER_SMOOTHING
Workload Power Profiles | power_profiles | | POWER_PROFILES
    Requested Profiles | power_profile_requested_profiles
    Enforced Profiles | power_profile_enforced_profiles
EDPp Multiplier | edpp_multiplier
Clocks | clocks | | CLOCK
    Graphics | graphics_clock | clocks.graphics MHz
    SM | sm_clock | clocks.sm MHz
    Memory | mem_clock | clocks.memory MHz
    Video | video_clock | clocks.video MHz
Applications Clocks | applications_clocks | | CLOCK
    Graphics | graphics_clock | @deprecated
    Memory | mem_clock | @deprecated
Default Applications Clocks | default_applications_clocks | | CLOCK
    Graphics | graphics_clock | @deprecated
    Memory | mem_clock | @deprecated
Deferred Clocks | deferred_clocks | | CLOCK
    Memory | mem_clock
Max Clocks | max_clocks | | CLOCK
    Graphics | graphics_clock | clocks_max.graphics MHz
    SM | sm_clock | clocks_max.sm MHz
    Memory | mem_clock | clocks_max.memory MHz
    Video | video_clock | clocks_max.video MHz
Max Customer Boost Clocks | max_customer_boost_clocks | | CLOCK
    Graphics | graphics_clock
SM Clock Samples | | samples.clock_sm MHz | CLOCK
Memory Clock Samples | | samples.clock_memory MHz | CLOCK
Clock Policy | clock_policy | | CLOCK
    Auto Boost | auto_boost
    Auto Boost Default | auto_boost_default
Fabric | fabric
    State | state
    Status | status
    CliqueId | cliqueId
    ClusterUUID | clusterUuid
    Health | health
        Summary | summary
        Bandwidth | bandwidth
        Route Recovery in progress | route_recovery_in_progress
        Route Unhealthy | route_unhealthy
        Access Timeout Recovery | access_timeout_recovery
        Incorrect Configuration | incorrect_configuration
        Partition Assigned | partition_assigned
| supported_clocks
Remote | remote | | LEASE
    Pool Index | pool_index | pool_index
    Kind | kind | kind
    Server | server | @server
    Server Device | server_device | index
    Server Version | server_version | @version
    Address | address | @address
    Host | host | @host
    Link | link | @link
    Round Trip | round_trip | @round_trip
    Memory Leased | memory_leased | memory_leased MiB
    Queue | queue | @queue
"""

# What -d knows; those that no line has are shown as N/A.
DISPLAYS = (
    "MEMORY UTILIZATION ECC TEMPERATURE POWER CLOCK COMPUTE PIDS PERFORMANCE SUPPORTED_CLOCKS PAGE_RETIREMENT "
    "ACCOUNTING ENCODER_STATS SUPPORTED_GPU_TARGET_TEMP VOLTAGE FBC_STATS ROW_REMAPPER RESET_STATUS "
    "GSP_FIRMWARE_VERSION POWER_SMOOTHING POWER_PROFILES LEASE"
).split()


def _key(spec: str) -> Value:
    """``clocks.sm MHz``: a key of the device, one inside it, a unit, digits."""
    key, unit, digits = (*spec.split(), *("", "0")[len(spec.split()) - 1 :])
    outer, _, inner = key.partition(".")

    def find(_server: Entry, device: Entry) -> Any:
        value = device.get(outer)
        if inner:
            value = (value or {}).get(inner)
        if value is None or value == "":
            return None
        if unit == "MiB":
            return f"{mib(value)} MiB"
        text = f"{value:.{int(digits)}f}" if isinstance(value, float) else str(value)
        return f"{text}{unit if unit == 'x' else ' ' * bool(unit) + unit}"

    return find


_OF_SAMPLES = {"Duration": "sec 2", "Number of Samples": "", "Max": None, "Min": None, "Avg": None}


def _samples(spec: str) -> list[Part]:
    """``samples.power W 2``: the lines of such a section."""
    key, unit = spec.removeprefix("samples.").split(" ", 1)
    return [
        Part(label, "", _sample(key, k, unit if own is None else own))
        for k, (label, own) in enumerate(_OF_SAMPLES.items())
    ]


def _sample(key: str, which: int, form: str) -> Value:
    unit, _, digits = form.partition(" ")

    def find(_server: Entry, device: Entry) -> Any:
        numbers = (device.get("samples") or {}).get(key)
        return f"{numbers[which]:.{digits or 0}f} {unit}".rstrip() if numbers else None

    return find


def _nothing(_server: Entry, _device: Entry) -> Any:
    return None


def _reason(bit: int) -> Value:
    def find(_server: Entry, device: Entry) -> Any:
        mask = device.get("clocks_event_reasons")
        return None if mask is None else "Active" if mask & bit else "Not Active"

    return find


def _hex(key: str) -> Value:
    return lambda _server, device: None if device.get(key) is None else f"0x{device[key]:08X}"


def _bar1_free(_server: Entry, device: Entry) -> Any:
    total, used = device.get("bar1_total"), device.get("bar1_used")
    return None if total is None or used is None else f"{mib(total - used)} MiB"


def _capability(_server: Entry, device: Entry) -> Any:
    pair = device.get("compute_capability")
    return ".".join(map(str, pair)) if pair else None


def _of_server(key: str) -> Value:
    return lambda server, _device: server.get(key)


_SPECIAL: dict[str, Value] = {
    "deprecated": lambda server, device: "Requested functionality has been deprecated",
    "none": lambda server, device: "None",
    "capability": _capability,
    "domain": lambda server, device: pci(device, 0),
    "bus": lambda server, device: pci(device, 1),
    "slot": lambda server, device: pci(device, 2),
    "device_id": _hex("pci_device_id"),
    "subsystem_id": _hex("pci_subsystem_id"),
    **{name: _reason(bit) for name, bit in EVENT_REASONS.items()},
    "display_clocks_setting": _reason(0x100),
    "free": lambda server, device: f"{mib(free(device))} MiB",
    "bar1_free": _bar1_free,
    "server": _of_server("name"),
    "version": _of_server("version"),
    "address": _of_server("address"),
    "host": _of_server("host"),
    "link": lambda server, device: links(device),
    "round_trip": lambda server, device: milliseconds(server.get("rtt")),
    "queue": lambda server, device: len(server["queue"]) if "queue" in server else server.get("waiting"),
}


def _parsed() -> list[Part]:
    top: list[Part] = []
    above: list[tuple[int, list[Part]]] = [(-1, top)]
    for line in _TABLE.strip("\n").splitlines():
        label, tag, spec, display = (*(part.strip() for part in line.split("|")), "", "")[:4]
        depth = (len(line) - len(line.lstrip(" "))) // 4
        if label.startswith("....") and label != "....":  # a fact below a fact: indented in text, beside it in XML
            label = "    " + label[4:]
        elif label == "....":  # below an element that text does not have
            label, depth = "", depth + 1
        value = _SPECIAL[spec[1:]] if spec.startswith("@") else _key(spec) if spec else _nothing
        part = Part(label, tag, value, display)
        if spec.startswith("samples."):
            part.parts, part.asked = _samples(spec), True
        while above[-1][0] >= depth:
            above.pop()
        above[-1][1].append(part)
        above.append((depth, part.parts))
    return top


OUTLINE = _parsed()
