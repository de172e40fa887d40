"""The properties that nvidia-smi documents for `--query-gpu`, in its order: names, units, what each means in our words.

Facts only, of drivers up to 610; `fields` says which of them a server's answer has. The others are accepted as well,
because scripts ask for them, and are N/A.
"""

from __future__ import annotations

NOT_AVAILABLE, DEPRECATED = "[N/A]", "[Requested functionality has been deprecated]"

_REASONS = {
    "gpu_idle": "nothing runs",
    "applications_clocks_setting": "clocks set for applications",
    "sw_power_cap": "the power limit",
    "hw_slowdown": "a slowdown by the hardware",
    "hw_thermal_slowdown": "heat, by the hardware",
    "hw_power_brake_slowdown": "the power supply, by the hardware",
    "sw_thermal_slowdown": "heat, by the driver",
    "sync_boost": "other devices of its group",
}
_COUNTED = ("sw_power_cap", "sync_boost", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")
_PLACES = {
    "device_memory": "device memory",
    "dram": "DRAM",
    "register_file": "register files",
    "l1_cache": "L1 caches",
    "l2_cache": "the L2 cache",
    "texture_memory": "texture memory",
    "cbu": "the branching units",
    "sram": "SRAM",
    "total": "all memories",
}
_SINCE = {"volatile": "since the last start", "aggregate": "in the board's life"}
_SRAM = """volatile.sram.parity volatile.sram.secded aggregate.sram.parity aggregate.sram.secded
    aggregate.sram.thresholdExceeded aggregate.sram.l2 aggregate.sram.sm aggregate.sram.mcu aggregate.sram.pcie
    aggregate.sram.other""".split()
# Of a profile of power smoothing: the name's end, its unit.
_PROFILE = {
    "percent_tmp_floor": "%",
    "ramp_up_rate": "W/s",
    "ramp_down_rate": "W/s",
    "ramp_down_hysteresis": "ms",
    "secondary_power_floor": "W",
    "primary_floor_act_window_multiplier": "",
    "primary_floor_tar_window_multiplier": "",
    "primary_floor_act_offset": "W",
}


def _profile(which: str) -> str:
    return "\n".join(f"power_smoothing.{which}.{name} | {unit} | Of a profile." for name, unit in _PROFILE.items())


_TABLE = f"""
timestamp | | When the question was asked: YYYY/MM/DD HH:MM:SS.msec.
driver_version | | The NVIDIA driver of the device's host.
kmd_version | | The same.
vgpu_driver_capability.heterogenous_multivGPU | | Whether vGPUs of several kinds may be mixed.
count | | Devices of the whole pool.
name gpu_name | | The product's name.
serial gpu_serial | | The number printed on the board.
uuid gpu_uuid | | The identity of the device; the same over restarts.
pci.bus_id gpu_bus_id | | domain:bus:device.function, hexadecimal.
pci.domain | | PCI domain.
pci.bus | | PCI bus.
pci.device | | PCI device.
pci.baseClass | | PCI base class.
pci.subClass | | PCI sub-class.
pci.device_id | | PCI vendor and device.
pci.sub_device_id | | PCI subsystem.
vgpu_device_capability.fractional_multiVgpu | | Of vGPUs.
vgpu_device_capability.heterogeneous_timeSlice_profile | | Of vGPUs.
vgpu_device_capability.heterogeneous_timeSlice_sizes | | Of vGPUs.
vgpu_device_capability.homogeneous_placements | | Of vGPUs.
vgpu_device_capability.mig_timeSlicing | | Of vGPUs.
vgpu_device_capability.mig_timeSlicing_mode | | Of vGPUs.
pcie.link.gen.current | | PCIe generation in use.
pcie.link.gen.gpucurrent | | The same.
pcie.link.gen.max | | Highest PCIe generation of device and host.
pcie.link.gen.gpumax | | Highest PCIe generation of the device.
pcie.link.gen.hostmax | | Highest PCIe generation of the host's port.
pcie.link.width.current | | PCIe lanes in use.
pcie.link.width.max | | Most PCIe lanes of device and host.
index | | The number of the device in the pool, as programs see it.
display_mode | | No longer told by any driver.
display_attached | | Whether a display is connected.
display_active | | Whether a display uses the device.
persistence_mode | | Whether the driver stays loaded.
addressing_mode | | How the host's memory is reached: HMM, ATS or None.
accounting.mode | | Whether the driver accounts for processes.
accounting.buffer_size | | Processes that it remembers.
driver_model.current | | Of Windows.
driver_model.pending | | Of Windows.
vbios_version | | The BIOS of the board.
inforom.img inforom.image | | Version of the board's own records.
inforom.oem | | Version of the maker's part of them.
inforom.ecc | | Version of the part about memory errors.
inforom.pwr inforom.power | | Version of the part about power.
inforom.checksum_validation | | Whether their checksum is right.
gpu_recovery_action | | What would bring the device back.
gom.current gpu_operation_mode.current | | Operation mode.
gom.pending gpu_operation_mode.pending | | Operation mode after the next start.
fan.speed | % | The intended speed of the fan.
pstate | | P0 (most performance) to P12.
clocks_event_reasons.supported clocks_throttle_reasons.supported | | What could hold the clocks back.
clocks_event_reasons.active clocks_throttle_reasons.active | | What holds the clocks back.
{
    chr(10).join(
        f"clocks_event_reasons.{name} clocks_throttle_reasons.{name} | | Active where {about} does."
        for name, about in _REASONS.items()
    )
}
{chr(10).join(f"clocks_event_reasons_counters.{name} | us | For how long it did." for name in _COUNTED)}
memory.total | MiB | Memory of the device, as far as it is lent.
memory.reserved | MiB | Memory the driver keeps.
memory.used | MiB | Memory in use.
memory.free | MiB | Memory not in use.
compute_mode | | Default, Exclusive_Process or Prohibited.
compute_cap | | CUDA compute capability, Major.Minor.
utilization.gpu | % | Share of the last second in which the device worked.
utilization.memory | % | Share in which its memory was read or written.
utilization.encoder | % | Share in which the encoder worked.
utilization.decoder | % | Share in which the decoder worked.
utilization.jpeg | % | Share in which the JPEG engine worked.
utilization.ofa | % | Share in which the optical flow engine worked.
encoder.stats.sessionCount | | Sessions of the encoder.
encoder.stats.averageFps | | Frames a second of these.
encoder.stats.averageLatency | | Microseconds a frame of these.
dramEncryption.mode.current | | Whether memory is encrypted.
dramEncryption.mode.pending | | Whether it will be after the next start.
ecc.mode.current | | Whether memory errors are corrected.
ecc.mode.pending | | Whether they will be after the next start.
{
    chr(10).join(
        f"ecc.errors.{what}.{span}.{place} | | Errors of {about}, {since}."
        for what in ("corrected", "uncorrected")
        for span, since in _SINCE.items()
        for place, about in _PLACES.items()
    )
}
{chr(10).join(f"ecc.errors.uncorrected.{name} | | Errors of SRAM by kind or place." for name in _SRAM)}
retired_pages.single_bit_ecc.count retired_pages.sbe | | Pages given up for single bit errors.
retired_pages.double_bit.count retired_pages.dbe | | Pages given up for double bit errors.
retired_pages.pending | | Whether pages will be given up at the next start.
remapped_rows.correctable remapped_rows.sbe | | Rows replaced for errors that were corrected.
remapped_rows.correctable_inactive | | Of these, not in use yet.
remapped_rows.uncorrectable remapped_rows.dbe | | Rows replaced for errors that were not.
remapped_rows.uncorrectable_inactive | | Of these, not in use yet.
remapped_rows.pending | | Whether rows will be replaced at the next start.
remapped_rows.failure | | Whether replacing one has failed.
{
    chr(10).join(
        f"remapped_rows.histogram.{name} | | Banks by the spare rows they have."
        for name in "max high partial low none".split()
    )
}
temperature.gpu | | Degrees C of the core.
temperature.gpu.tlimit | | Degrees C to where the core slows down.
temperature.memory | | Degrees C of the memory.
power.management | | No longer told by any driver.
power.draw | W | What the board draws.
power.draw.average gpu.power.draw.average | W | The same over a second.
power.draw.instant gpu.power.draw.instant | W | The same now.
power.limit gpu.power.requested_limit | W | The limit that was set.
enforced.power.limit gpu.power.current_limit | W | The limit that holds.
power.default_limit gpu.power.default_limit | W | The limit after a start of the driver.
power.min_limit gpu.power.min_limit | W | The lowest limit that can be set.
power.max_limit gpu.power.max_limit | W | The highest limit that can be set.
module.power.draw.average | W | Of a module with a CPU.
module.power.draw.instant | W | Of a module with a CPU.
module.power.limit module.power.requested_limit | W | Of a module with a CPU.
module.enforced.power.limit module.power.current_limit | W | Of a module with a CPU.
module.power.default_limit | W | Of a module with a CPU.
module.power.min_limit | W | Of a module with a CPU.
module.power.max_limit | W | Of a module with a CPU.
{chr(10).join(f"gpu.base.{name} | W | Base power." for name in "current requested default min max".split())}
power_smoothing.tmp_floor | W | Lowest power while smoothing.
power_smoothing.tmp_ceil | W | Highest power while smoothing.
power_smoothing.hw_lifetime_remaining_percent | % | What is left of the circuit's life.
power_smoothing.enabled | | Whether power is smoothed.
power_smoothing.delayed_power_smoothing_supported | | Whether it can be with a delay.
power_smoothing.soc_power_smoothing_enabled | | Whether it is by state of charge.
power_smoothing.priv_level | | Who may set it.
power_smoothing.imm_ramp_down | | Whether power may fall at once.
power_smoothing.max_percent_tmp_floor | % | Highest floor.
power_smoothing.min_percent_tmp_floor | % | Lowest floor.
power_smoothing.primary_power_floor | W | First floor.
power_smoothing.secondary_power_floor | W | Second floor.
power_smoothing.min_primary_floor_activation_offset | W | Where the first floor begins.
power_smoothing.min_primary_floor_activation_point | W | Where the first floor begins.
power_smoothing.window_multiplier | ms | Unit of its windows.
power_smoothing.num_preset_profiles | | Profiles there are.
{_profile("curr_profile")}
power_smoothing.active_profile | | The profile in use.
{_profile("admin_override")}
edpp_multiplier | % | How far peaks may go over the limit.
clocks.current.graphics clocks.gr | MHz | Graphics clock.
clocks.current.sm clocks.sm | MHz | Clock of the multiprocessors.
clocks.current.memory clocks.mem | MHz | Memory clock.
clocks.current.video clocks.video | MHz | Clock of encoder and decoder.
clocks.applications.graphics clocks.applications.gr | MHz | No longer told by any driver.
clocks.applications.memory clocks.applications.mem | MHz | No longer told by any driver.
clocks.default_applications.graphics clocks.default_applications.gr | MHz | No longer told by any driver.
clocks.default_applications.memory clocks.default_applications.mem | MHz | No longer told by any driver.
clocks.max.graphics clocks.max.gr | MHz | Highest graphics clock.
clocks.max.sm | MHz | Highest clock of the multiprocessors.
clocks.max.memory clocks.max.mem | MHz | Highest memory clock.
mig.mode.current | | Whether the device is cut into instances.
mig.mode.pending | | Whether it will be after the next reset.
gsp.mode.current | | Whether the device's own processor runs the driver's part.
gsp.mode.default | | Whether it does by default.
c2c.mode | | Whether a CPU is connected chip to chip.
protected_memory.total | MiB | Memory for confidential computing.
protected_memory.used | MiB | Of that, in use.
protected_memory.free | MiB | Of that, not in use.
fabric.state | | How far the device has joined its NVLink fabric.
fabric.status | | Whether that went well.
fabric.cliqueId | | Part of the fabric that it belongs to.
fabric.clusterUuid | | The fabric's identity.
{
    chr(10).join(
        f"fabric.health.{name} | | Health of the fabric."
        for name in "summary bandwidth route_recovery_in_progress route_unhealthy access_timeout_recovery "
        "incorrect_configuration partition_assigned".split()
    )
}
{
    chr(10).join(
        f"platform.{name} | | Where the device sits."
        for name in "chassis_serial_number slot_number tray_index host_id peer_type module_id gpu_fabric_guid".split()
    )
}
hostname | | The name that was given to the device.
bbx.time_run | seconds | How long it ran with a driver.
"""

_OTHERWISE = {"temperature.memory": "N/A"} | dict.fromkeys(
    """display_mode power.management clocks.applications.graphics clocks.applications.memory
    clocks.default_applications.graphics clocks.default_applications.memory""".split(),
    DEPRECATED,
)


def documented() -> list[tuple[str, str, str, str]]:
    """Names (the first one is the header's), unit, meaning, and what stands where there is no value."""
    rows = []
    for line in _TABLE.strip().splitlines():
        names, unit, about = (part.strip() for part in line.split("|"))
        first = names.split()[0]
        missing = "N/A" if first.startswith("fabric.") else _OTHERWISE.get(first, NOT_AVAILABLE)
        rows.append((names, unit, about, missing))
    return rows
