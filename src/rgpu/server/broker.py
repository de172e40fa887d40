"""The choice of a device for a new session. Pure: facts in, an index or a refusal out.

What it must never do is keep state: leases are in ``lease``, measurements in ``telemetry``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rgpu.errors import NoSuchDevice, ServerBusy


@dataclass(frozen=True)
class Load:
    """What counts about one device."""

    sessions: int
    memory_free: int
    utilization: float


def choose(loads: Sequence[Load], wanted: int | None, most_sessions: int) -> int:
    """The index of the device to lease: the wanted one, or for None the least loaded.

    Raises NoSuchDevice or ServerBusy with a sentence for the user.
    """
    if wanted is not None:
        if not 0 <= wanted < len(loads):
            have = "device 0 only" if len(loads) == 1 else f"devices 0 to {len(loads) - 1}"
            raise NoSuchDevice(f"there is no device {wanted} on this server; it has {have}")
        if loads[wanted].sessions >= most_sessions:
            raise ServerBusy(
                f"device {wanted} already serves {loads[wanted].sessions} sessions, the most it may; "
                "try again later, use another device, or raise --sessions on the server"
            )
        return wanted
    free = [index for index, load in enumerate(loads) if load.sessions < most_sessions]
    if not free:
        raise ServerBusy(
            f"all {len(loads)} devices serve {most_sessions} sessions each, the most they may; "
            "try again later, or raise --sessions on the server"
        )
    return min(
        free, key=lambda index: (loads[index].sessions, loads[index].utilization, -loads[index].memory_free)
    )
